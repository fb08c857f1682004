"""`headrace profile`: measures a model, prints what its batches cost, and stores the profile.

Tables go to standard output, progress to standard error; times are milliseconds unless a heading
says otherwise. The profile is stored only if the run was complete and --dry-run was not given.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from statistics import fmean, median

from deployments.replica import known_costs as stored
from deployments.tools.console.progress_bar import shown_progress
from deployments.tools.profile import generation
from deployments.tools.profile.fitting import Knee
from deployments.tools.profile.lengths import share_longer
from deployments.tools.profile.measure import (
    CannotProfile,
    ChosenModel,
    Findings,
    ProfileOptions,
    chosen,
    named,
    profiled,
)
from deployments.tools.profile.sweep import TimedRun
from loadtests.report.table import aligned
from loadtests.results.report_table import Cell, Table
from routers.estimates.cost.residuals import at_quantile
from runtimes.catalog import GENERATE

STOPPED = 130
_BUSY = 0.1  # of the processors used by others: from here on it is said
_STAGES = {
    "pad": "pad_s", "copy in": "copy_in_s", "run": "run_s", "copy out": "copy_out_s",
    "post-process": "post_s",
}  # fmt: skip


def profile(options: ProfileOptions, *, dry_run: bool, as_json: bool) -> int:
    """The exit code. Raises SettingsErrors, WrongArguments, CannotProfile, and what reading lengths
    raises."""
    if named(options)[1].task == GENERATE:
        return generation.profile(options, as_json=as_json)
    found = chosen(options)
    with shown_progress(found.name) as note:
        findings = profiled(found, options.seconds, options.seed, note)
    notes = [*_notes(found, findings), _kept(findings, dry_run)]
    if as_json:
        print(json.dumps({**findings.as_json(), "notes": notes}))
    else:
        for table in tables(findings):
            print(f"{table.caption}\n")
            print("\n".join(aligned(table)) + "\n")
        print("\n".join(notes))
    return STOPPED if findings.stopped else 0


def _notes(found: ChosenModel, findings: Findings) -> Iterator[str]:
    """What follows for serving, a sentence each."""
    lengths, model = findings.lengths, found.model
    over = share_longer(lengths.all, model.lengths.max)
    if over:
        yield f"{over:.1%} of the given rows are longer than lengths.max ({model.lengths.max})."
    if findings.others is not None and findings.others > _BUSY:
        yield (f"Other processes used {findings.others:.0%} of the processors meanwhile: "
               "the figures may be too slow.")  # fmt: skip
    if findings.fitted is None:
        yield "Not one batch was measured: give it more --seconds."
        return
    if findings.target is None:
        yield f"Batch target: none below batch.max_size ({model.batch.max_size}); it still gains."
    else:
        yield f"Batch target: {findings.target} rows (batch.max_size is {model.batch.max_size})."
    if findings.edges:
        edges = ", ".join(map(str, findings.edges))
        why = "" if lengths.given else "; not stored: the lengths are made up (--lengths FILE)"
        yield f"Bucket edges for {lengths.said}: {edges}{why}" + _unless(
            model.lengths.buckets != "auto", "lengths.buckets"
        )


def _unless(says: bool, setting: str) -> str:
    return f"; not used: {setting} says otherwise." if says else "."


def _kept(findings: Findings, dry_run: bool) -> str:
    """Stores the profile, unless that is not to be; says what was done."""
    if findings.stopped:
        return "Stopped before the end: nothing is stored."
    if findings.fitted is None:
        return "Nothing to store."
    if dry_run:
        return "Nothing is stored (--dry-run)."
    found, fitted = findings.chosen, findings.fitted
    c, error = fitted.coefficients, fitted.held or fitted.fitted
    made = stored.StoredProfile(
        identity=findings.identity,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        points=fitted.points,
        coefficients=(c.launch_s, c.row_s, c.token_s, c.square_s),
        target_rows=findings.target,
        edges=findings.edges if findings.lengths.given else (),
        error=None if error is None else (error.median, error.p99),
    )
    try:
        path = stored.save(made, found.cache_dir)
    except OSError as fault:
        raise CannotProfile(
            f"{fault.filename or found.cache_dir}: cannot be written: {fault.strerror}"
        ) from None
    ignored = "" if found.model.profile == "stored" else " (profile: start ignores it)"
    return f"Stored for serve: {path}{ignored}"


# ---- tables -------------------------------------------------------------------------------------


def tables(found: Findings) -> Iterator[Table]:
    if found.memory:
        yield _memory(found)
    if found.fitted is not None:
        # Of the measured length next to the median one.
        typical = min(found.knees, key=lambda each: abs(each.width - found.lengths.median))
        yield _by_batch(found, typical)
        yield _knees(found)
        yield _stages(found, typical)
        yield _costs(found)


def _memory(found: Findings) -> Table:
    """MiB; of all processes where the driver hides whose it is."""
    rows: list[tuple[Cell, ...]] = []
    for each in found.memory:
        memory = each.memory
        if memory is None:
            rows.append((each.length, each.rows, "does not fit", "", ""))
        else:
            own = "hidden" if memory.own is None else memory.own >> 20
            rows.append((each.length, each.rows, own, memory.used >> 20, memory.total >> 20))
    return Table(
        "Memory of the GPU, MiB, at the largest batch of each length, the shortest first",
        ("length", "rows", "this process", "all", "of"),
        tuple(rows),
    )


def _by_batch(found: Findings, knee: Knee) -> Table:
    rows = []
    for size in sorted({sample.timed.rows for sample in found.samples if not sample.timed.held}):
        took = sorted(s.took_s for s in _grid(found, size, knee.width))
        if took:
            usual = median(took)
            rows.append((size, len(took), usual * 1e3, at_quantile(took, 0.99) * 1e3, size / usual,
                         size * knee.width / usual))  # fmt: skip
    return Table(
        f"{found.chosen.name}: throughput and latency by batch, rows of {knee.width}",
        ("rows", "runs", "p50 ms", "p99 ms", "rows/s", "tokens/s"),
        tuple(rows),
    )


def _knees(found: Findings) -> Table:
    rows = tuple(
        (knee.width, knee.at.rows, knee.at.seconds * 1e3, knee.at.rows_per_s,
         knee.best.rows_per_s, knee.in_slo, "still rising" if knee.rises else "")
        for knee in found.knees
    )  # fmt: skip
    return Table(
        "Knee: the smallest batch within 5 % of the most rows a second; "
        f"in SLO: the largest within {found.max_s * 1e3:,.0f} ms",
        ("length", "rows", "ms", "rows/s", "most rows/s", "in SLO", ""),
        rows,
    )


def _stages(found: Findings, knee: Knee) -> Table:
    """Mean milliseconds a batch, of one row and of the knee at the typical length."""
    sizes = sorted({1, knee.at.rows})
    kinds = {n: runs for n in sizes if (runs := _grid(found, n, knee.width))}
    columns = []
    for samples in kinds.values():
        means = [fmean(getattr(s.stages, name) for s in samples) * 1e3 for name in _STAGES.values()]
        total = fmean(s.took_s for s in samples) * 1e3
        columns.append([*means, total - sum(means), total])
    names = (*_STAGES, "the rest of the call", "the call")
    return Table(
        f"Where the time of a batch goes, rows of {knee.width}, ms",
        ("stage", *(f"{size} row{'' if size == 1 else 's'}" for size in kinds)),
        tuple((name, *cells) for name, *cells in zip(names, *columns, strict=True)),
    )


def _costs(found: Findings) -> Table:
    assert found.fitted is not None
    c, fitted = found.fitted.coefficients, found.fitted
    said = (
        f"{c.launch_s * 1e3:.4g} ms + {c.row_s * 1e6:.4g} µs a row + {c.token_s * 1e6:.4g} µs "
        f"a token + {c.square_s * 1e9:.4g} ns a token and token of width"
    )
    rows = tuple(
        (name, f"{error.median * 100:.1f} %", f"{error.p99 * 100:.1f} %", error.samples)
        for name, error in (
            ("held-out batches, their medians", fitted.held),
            ("held-out batches, each run", fitted.runs),
            ("fitted batches, their medians", fitted.fitted),
            ("noise: runs against their own median", fitted.noise),
        )
        if error is not None
    )
    return Table(f"Cost of a batch: {said}; how far off", ("", "median", "p99", "samples"), rows)


def _grid(found: Findings, rows: int, width: int) -> list[TimedRun]:
    pads, wanted = found.limits.pads, (rows, width)
    grid = (each for each in found.samples if not each.timed.held)
    return [each for each in grid if (each.timed.rows, each.timed.width(pads)) == wanted]
