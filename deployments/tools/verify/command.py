"""`headrace verify`: one model of a settings file against a reference, on this machine, now.

Loads the model exactly as a replica would (same settings, threads, staged artifact, fingerprint),
shows progress, prints the report and gives the exit code: 0 accepted, 1 not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from deployments.replica import describe
from deployments.replica.artifacts.local_model import local_model
from deployments.replica.verify.agreement import MEASURES
from deployments.replica.verify.sample_file import Reading
from deployments.replica.verify.verification import (
    VerificationOptions,
    VerificationReport,
    as_json,
    of_command_line,
    verify,
)
from deployments.settings.load import load
from deployments.settings.made import cache_dir
from deployments.settings.model import ModelSettings
from deployments.settings.reference import CannotVerify
from deployments.tools.console import verify_report
from deployments.tools.verify.layers import lines as layer_lines
from deployments.tools.verify.layers import look
from runtimes import catalog
from runtimes.types import RuntimeSettings

Note = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Written:
    """Where the report goes besides the terminal. `as_json`: printed instead of tables. `layers`:
    whether the tensors inside are looked at too."""

    report: Path | None = None
    as_json: bool = False
    layers: bool = False


def run(file: Path, name: str, given: Mapping[str, Any], written: Written) -> int:
    """The exit code. `given`: see `of_command_line`. Raises SettingsErrors, `CannotVerify` and what
    loading raises."""
    model = chosen(file, name)
    _check(given, written)
    with shown_progress(name) as note:
        model = local_model(model, cache_dir(), note)
        options = of_command_line(model.accept, given)
        settings = describe.runtime_settings(name, model, cache_dir(), note)
        reading = Reading(describe.tokenizer_bytes(settings.source), model.image)
        report = verified(settings, options, reading)
        note("layers", 0.0)
        looked = look(settings, report, options, reading) if written.layers else None
    if written.report is not None:
        verify_report.write(report, written.report)
    if written.as_json:
        click.echo(as_json(report))
    else:
        verify_report.show(report)
    for line in [] if looked is None else layer_lines(looked):
        click.echo(line, err=written.as_json)
    return 0 if report.verdict.accepted else 1


def _check(given: Mapping[str, Any], written: Written) -> None:
    """What would come to light only after the work."""
    for measure in MEASURES:
        if given[measure] is not None and not isfinite(given[measure]):
            option = measure.replace("_", "-")
            raise CannotVerify(f"--{option} is {given[measure]}; must be a finite number")
    if written.report is not None and not written.report.absolute().parent.is_dir():
        raise CannotVerify(f"--report {written.report}: its folder does not exist")


def chosen(file: Path, name: str) -> ModelSettings:
    """The model of that name. Raises SettingsErrors and `CannotVerify`."""
    models = load(file).models
    if name not in models:
        raise CannotVerify(f"{file} has no model {name!r}; it has {', '.join(models)}")
    return models[name]


def verified(
    settings: RuntimeSettings, options: VerificationOptions, reading: Reading
) -> VerificationReport:
    candidate = catalog.create(settings)
    candidate.load()
    try:
        progress = partial(settings.progress, "verifying")
        return verify(settings, candidate, options, reading, progress)
    finally:
        candidate.close()


@contextmanager
def shown_progress(name: str) -> Iterator[Note]:
    """A line on a terminal's standard error, gone when it is over; nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda phase, share: progress.update(
            task, description=f"{name}: {phase}", completed=share
        )
