"""The findings of a profile as tables: the baseline first, then what it rests on.

The same tables go to the terminal, into Markdown and onto the page. Times are milliseconds unless a
heading says otherwise; what was not measured is a dash.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

from deployments.tools.profile.findings import Findings
from deployments.tools.profile.fitting import Knee
from deployments.tools.profile.sweep import TimedRun
from loadtests.results.report_table import Cell, Table
from routers.estimates.cost.model import CostError

MIB = 1 << 20
_STAGES = ("pad_s", "copy_in_s", "run_s", "copy_out_s", "post_s")
_STAGE_NAMES = ("pad", "copy in", "run", "copy out", "post-process")


def tables(found: Findings) -> Iterator[Table]:
    """Those that there is something for."""
    yield baseline(found)
    if found.fitted is None:
        return
    yield by_batch(found)
    yield knees(found)
    yield stages(found)
    yield costs(found)
    if found.binding is not None:
        yield binds(found)
    if found.depths:
        yield depths(found)


def baseline(found: Findings) -> Table:
    """The five figures that a model is first asked for."""
    subject, memory, tokens = found.subject, found.memory, found.tokenising
    counted = subject.parameters
    kind = f"computed in {subject.settings.precision}"
    if counted is not None:
        kind = f"{counted.total / 1e6:,.1f} M, stored as {', '.join(counted.dtypes)}, {kind}"
    rows: list[tuple[Cell, ...]] = [
        ("parameters and dtype", kind),
        ("peak memory of one request", "–" if memory is None else (
            f"{memory.request / MIB:,.1f} MiB above {memory.loaded / MIB:,.0f} MiB loaded; "
            f"{memory.row / MIB:,.2f} MiB for each row more")),
        ("overhead per call", _overhead(found)),
        ("preprocessing", "no texts" if tokens is None else (
            f"{tokens.rows_per_s:,.0f} texts/s a thread of {subject.lengths.mean:,.0f} tokens on "
            f"average, {tokens.row_s * 1e3:.3f} ms each")),
        ("queue depth at " + "/".join(str(each.clients) for each in found.depths) + " clients"
         if found.depths else "queue depth",
         "/".join(f"{each.rows:,.0f}" for each in found.depths) + " rows on average (virtual time)"
         if found.depths else "–"),
    ]  # fmt: skip
    return Table(f"{subject.name}: baseline", ("figure", "measured"), tuple(rows))


def _overhead(found: Findings) -> str:
    parts = []
    if found.fitted is not None:
        launch_s = found.fitted.coefficients.launch_s
        parts.append(f"{launch_s * 1e3:.2f} ms launch in every batch")
    if found.samples:
        parts.append(f"{median(map(_beside, found.samples)) * 1e3:.3f} ms around the run")
    if found.hop_s is not None:
        parts.append(f"{found.hop_s * 1e3:.3f} ms to the device's thread and back")
    return ", ".join(parts) or "–"


def _beside(sample: TimedRun) -> float:
    """What a call takes beside the stage `run`."""
    return sample.took_s - sample.stages.run_s


def by_batch(found: Findings) -> Table:
    """Of rows of the typical length."""
    knee = typical(found)
    rows = []
    for size in sorted({sample.timed.rows for sample in found.samples if not sample.timed.held}):
        took = [s.took_s for s in _grid(found, size, knee.width)]
        if took:
            usual = median(took)
            rows.append((size, len(took), usual * 1e3, _p99(took) * 1e3, size / usual,
                         size * knee.width / usual))  # fmt: skip
    return Table(
        f"Throughput and latency by batch, rows of {knee.width}",
        ("rows", "runs", "p50 ms", "p99 ms", "rows/s", "tokens/s"),
        tuple(rows),
    )


def knees(found: Findings) -> Table:
    rows = tuple(
        (knee.width, knee.at.rows, knee.at.seconds * 1e3, knee.at.rows_per_s,
         knee.best.rows_per_s, knee.in_slo, "still rising" if knee.rises else "")
        for knee in found.knees
    )  # fmt: skip
    max_ms = found.subject.max_s * 1e3
    return Table(
        "Knee: the smallest batch within 5 % of the most rows a second; "
        f"in SLO: the largest within {max_ms:,.0f} ms",
        ("length", "rows", "ms", "rows/s", "most rows/s", "in SLO", ""),
        rows,
    )


def stages(found: Findings) -> Table:
    """Mean milliseconds a batch, of one row and of the knee at the typical length."""
    knee = typical(found)
    sizes = {1, knee.at.rows}
    kinds = {n: runs for n in sorted(sizes) if (runs := _grid(found, n, knee.width))}
    columns = []
    for size, samples in kinds.items():
        means = [fmean(getattr(s.stages, name) for s in samples) * 1e3 for name in _STAGES]
        total = fmean(s.took_s for s in samples) * 1e3
        tokenise = found.tokenising.row_s * size * 1e3 if found.tokenising else None
        queue = found.depths[0].wait_p50_s * 1e3 if found.depths else None
        columns.append([tokenise, queue, *means, total - sum(means), total])
    queued = f"queue, {found.depths[0].clients} clients, p50" if found.depths else "queue"
    names = ("tokenise, one thread", queued, *_STAGE_NAMES, "the rest of the call", "the call")
    return Table(
        f"Stages of a batch of rows of {knee.width}, ms",
        ("stage", *(f"{size} row{'' if size == 1 else 's'}" for size in kinds)),
        tuple((name, *cells) for name, *cells in zip(names, *columns, strict=True)),
    )


def costs(found: Findings) -> Table:
    assert found.fitted is not None
    c, fitted = found.fitted.coefficients, found.fitted
    said = (
        f"{c.launch_s * 1e3:.4g} ms + {c.row_s * 1e6:.4g} µs a row + {c.token_s * 1e6:.4g} µs "
        f"a token + {c.square_s * 1e9:.4g} ns a token and token of width"
    )
    rows = tuple(
        (name, *_error(error))
        for name, error in (
            ("held-out batches, their medians", fitted.held),
            ("held-out batches, each run", fitted.runs),
            ("fitted batches, their medians", fitted.fitted),
            ("noise: runs against their own median", fitted.noise),
        )
    )
    return Table(f"Cost of a batch: {said}; how far off", ("", "median", "p99", "samples"), rows)


def _error(error: CostError | None) -> tuple[Cell, Cell, Cell]:
    if error is None:
        return None, None, None
    return f"{error.median * 100:.1f} %", f"{error.p99 * 100:.1f} %", error.samples


def binds(found: Findings) -> Table:
    assert found.binding is not None
    knee, meanings = typical(found), {
        "compute": "of what a matrix product reaches here",
        "memory bandwidth": "of what a copy reaches here, weights alone",
        "preprocessing": "of the batch's time, to tokenise it on one thread",
        "transfer": "of the batch's time",
        "launch": "of the batch's time, whatever is in it",
    }  # fmt: skip
    rows = tuple(
        (name, None if share is None else f"{share * 100:.1f} %", meanings[name])
        for name, share in found.binding.shares.items()
    )
    return Table(
        f"What binds {knee.at.rows} rows of {knee.width}: {found.binding.binds}",
        ("", "share", "of what"),
        rows,
    )


def depths(found: Findings) -> Table:
    replicas = found.subject.replicas
    rows = tuple(
        (each.clients, each.rows, each.max_rows, each.wait_p50_s * 1e3, each.wait_p99_s * 1e3,
         each.answered_per_s, f"{each.in_time * 100:.1f} %", each.batch_rows)
        for each in found.depths
    )  # fmt: skip
    return Table(
        f"Queue of clients that each wait for their answer, {replicas} "
        f"replica{'' if replicas == 1 else 's'}, simulated on virtual time with the costs above",
        ("clients", "waiting rows", "most", "wait p50 ms", "wait p99 ms", "answers/s", "in time",
         "rows a batch"),
        rows,
    )  # fmt: skip


def typical(found: Findings) -> Knee:
    """That of the measured length next to the median one."""
    return min(found.knees, key=lambda each: abs(each.width - found.subject.lengths.median))


def _grid(found: Findings, rows: int, width: int) -> list[TimedRun]:
    pads, wanted = found.subject.limits.pads, (rows, width)
    grid = (each for each in found.samples if not each.timed.held)
    return [each for each in grid if (each.timed.rows, each.timed.width(pads)) == wanted]


def _p99(took: list[float]) -> float:
    ordered = sorted(took)
    return ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
