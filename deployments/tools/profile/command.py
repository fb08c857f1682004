"""`headrace profile`: measures a model, prints what its batches cost, and stores the profile.

Tables go to standard output, progress to standard error. The profile is stored only if the run was
complete and --dry-run was not given.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from deployments.replica import known_costs as stored
from deployments.tools.console.progress_bar import ShareBar
from deployments.tools.profile import chrome_trace, engine, html_page
from deployments.tools.profile.errors import CannotProfile, WrongArguments
from deployments.tools.profile.findings import Findings
from deployments.tools.profile.lengths import share_longer
from deployments.tools.profile.measure import ProfileRun
from deployments.tools.profile.subject import ChosenModel, ProfileOptions, chosen
from deployments.tools.profile.tables import tables
from loadtests.report.table import aligned

STOPPED = 130
_BUSY = 0.1  # of the processors used by others: from here on it is said


@dataclass(frozen=True, slots=True)
class ProfileOutput:
    """What becomes of the findings. `dry_run`: nothing is stored."""

    dry_run: bool = False
    as_json: bool = False
    trace: Path | None = None
    html: Path | None = None


def profile(options: ProfileOptions, output: ProfileOutput) -> int:
    """The exit code. Raises SettingsErrors, WrongArguments, CannotProfile, and what reading lengths
    raises."""
    must_be_writable(output)
    found = chosen(options)
    if found.model.task == "generate":
        return engine.show(found, options.seconds, as_json=output.as_json)
    console = Console(stderr=True)
    with ShareBar(found.name, console) as advance:
        profile_run = ProfileRun(found, options.seconds, options.seed, advance)
        profile_run.run()
    findings = profile_run.findings
    assert findings is not None, "a run without findings raises"
    notes = [*_notes(found, findings), _kept(findings, found, output)]
    _print(findings, notes, as_json=output.as_json)
    _write(findings, notes, output)
    return STOPPED if findings.stopped else 0


def must_be_writable(output: ProfileOutput) -> None:
    """Before a long run rather than after it. Raises WrongArguments."""
    for path in (output.trace, output.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise WrongArguments(f"{path}: its folder does not exist")
        if path is not None and path.is_dir():
            raise WrongArguments(f"{path}: is a folder; name a file in it")


def _print(findings: Findings, notes: list[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**findings.as_json(), "notes": notes}))
        return
    for table in tables(findings):
        print(f"{table.caption}\n")
        print("\n".join(aligned(table)) + "\n")
    print("\n".join(notes))


def _write(findings: Findings, notes: list[str], output: ProfileOutput) -> None:
    try:
        if output.trace is not None:
            chrome_trace.write(findings, output.trace)
        if output.html is not None:
            html_page.write(findings, notes, output.html)
    except OSError as error:
        raise CannotProfile(f"{error.filename}: cannot be written: {error.strerror}") from None


def _notes(found: ChosenModel, findings: Findings) -> Iterator[str]:
    """What follows for serving, a sentence each."""
    lengths, model = findings.subject.lengths, found.model
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
        yield (f"Batch target: {findings.target} rows (batch.max_size is {model.batch.max_size})"
               + _unless(model.batch.fixed_size is not None, "batch.fixed_size"))  # fmt: skip
    if findings.edges:
        edges = ", ".join(map(str, findings.edges))
        why = "" if lengths.given else "; not stored: the lengths are made up (--lengths FILE)"
        yield f"Bucket edges for {lengths.said}: {edges}{why}" + _unless(
            model.lengths.buckets != "auto", "lengths.buckets"
        )


def _unless(says: bool, setting: str) -> str:
    return f"; not used: {setting} says otherwise." if says else "."


def _kept(findings: Findings, found: ChosenModel, output: ProfileOutput) -> str:
    if findings.stopped:
        return "Stopped before the end: nothing is stored."
    made = to_store(findings)
    if made is None:
        return "Nothing to store."
    if output.dry_run:
        return "Nothing is stored (--dry-run)."
    try:
        path = stored.save(made, found.cache_dir)
    except OSError as error:
        raise CannotProfile(
            f"{error.filename or found.cache_dir}: cannot be written: {error.strerror}"
        ) from None
    ignored = "" if found.model.profile == "stored" else " (profile: start ignores it)"
    return f"Stored for serve: {path}{ignored}"


def to_store(findings: Findings) -> stored.StoredProfile | None:
    """None where nothing was measured."""
    fitted = findings.fitted
    if fitted is None:
        return None
    c, error = fitted.coefficients, fitted.held or fitted.fitted
    return stored.StoredProfile(
        identity=findings.subject.identity,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        points=fitted.points,
        coefficients=(c.launch_s, c.row_s, c.token_s, c.square_s),
        target_rows=findings.target,
        edges=findings.edges if findings.subject.lengths.given else (),
        error=None if error is None else (error.median, error.p99),
    )
