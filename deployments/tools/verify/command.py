"""`headrace verify`: compares one model of a settings file with a reference, on this machine.

The model is loaded exactly as by a replica (same settings, threads, staged artifact, fingerprint).
Prints progress and a report. Exit code: 0 if the model is accepted, 1 if not.
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
from deployments.replica.verify.agreement import MEASURES, Tolerances
from deployments.replica.verify.samples import Reading
from deployments.replica.verify.verification import (
    VerificationOptions,
    VerificationReport,
    as_json,
    of_settings,
    verify,
)
from deployments.settings.accept import AcceptSettings
from deployments.settings.model import ModelSettings
from deployments.settings.reference import CannotVerify
from deployments.settings_files.load import load
from deployments.settings_files.made import cache_dir
from deployments.tools.console import verify_report
from deployments.tools.verify.layers import lines as layer_lines
from deployments.tools.verify.layers import look
from runtimes import catalog
from runtimes.types import RuntimeSettings

Note = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is written."""

    report: Path | None = None  # file that also gets the report
    as_json: bool = False  # print JSON instead of tables
    layers: bool = False  # compare the tensors inside the model too


def run(file: Path, name: str, given: Mapping[str, Any], written: OutputOptions) -> int:
    """Verify a model and write the report. Returns the exit code. `given`: see `of_command_line`.
    Raises SettingsErrors, `CannotVerify` and what loading raises."""
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


def _check(given: Mapping[str, Any], written: OutputOptions) -> None:
    """Check the options before the work, which takes minutes. Raises `CannotVerify`."""
    for measure in MEASURES:
        if given[measure] is not None and not isfinite(given[measure]):
            option = measure.replace("_", "-")
            raise CannotVerify(f"--{option} is {given[measure]}; must be a finite number")
    if written.report is not None and not written.report.absolute().parent.is_dir():
        raise CannotVerify(
            f"--report is {written.report}, whose folder does not exist; must be in an existing one"
        )


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
    """A progress line on standard error, removed at the end; nothing if that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda phase, share: progress.update(
            task, description=f"{name}: {phase}", completed=share
        )


def of_command_line(accept: AcceptSettings, given: Mapping[str, Any]) -> VerificationOptions:
    """The section's options with those of the command line (by name, None where left out) in their
    place. If any bound is given there, all of the section's bounds are dropped."""
    base = of_settings(accept)
    bounds = {name: given[name] for name in MEASURES}
    stated = any(bound is not None for bound in bounds.values())
    return VerificationOptions(
        against=given["against"] or base.against,
        artifact=given["artifact"] or base.artifact,
        file=given["samples_file"] or base.file,
        count=given["samples"] or base.count,
        seed=given["seed"] or base.seed,
        tolerances=Tolerances(**bounds) if stated else base.tolerances,
    )
