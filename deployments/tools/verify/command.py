"""`headrace verify`: compares one model of a settings file with a reference, on this machine.
`headrace check --fingerprint`: shows how its inputs are prepared, or stores that.

The model is loaded exactly as by a replica (same settings, threads, staged artifact, fingerprint).
Prints progress and a report, with a row for each output and length bucket. Exit code: 0 if the
model is accepted, 1 if not. A fingerprint that is stored with `--write`, where the model's answers
are known to be right, travels with the artifact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.replica import describe
from deployments.replica.artifacts.local_model import local_file, local_model
from deployments.replica.verify.agreement import MEASURES, Measured, Tolerances
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
from deployments.settings.remote_source import is_remote, redacted
from deployments.settings_files import preprocessing_support
from deployments.settings_files.load import load
from deployments.settings_files.made import cache_dir
from deployments.tools.console.progress_bar import shown_progress
from deployments.tools.verify.layers import lines as layer_lines
from deployments.tools.verify.layers import look
from runtimes import catalog, fingerprint
from runtimes.types import RuntimeSettings


def run(file: Path, name: str, given: Mapping[str, Any]) -> int:
    """Verify a model and print the report. Returns the exit code. `given`: the options, see
    `of_command_line`; `as_json`; `layers`: compare the tensors inside the model too.
    Raises SettingsErrors, `CannotVerify` and what loading raises."""
    model = chosen(file, name)
    _check(given)
    with shown_progress(name) as note:
        model = local_model(model, cache_dir(), note)
        options = of_command_line(model.accept, given)
        settings = describe.runtime_settings(name, model, cache_dir(), note)
        image = describe.with_lengths(model, settings.source).image
        reading = Reading(describe.tokenizer_bytes(settings.source), image)
        report = verified(settings, options, reading)
        note("layers", 0.0)
        looked = look(settings, report, options, reading) if given["layers"] else None
    if given["as_json"]:
        click.echo(as_json(report))
    else:
        show(report)
    for line in [] if looked is None else layer_lines(looked):
        click.echo(line, err=given["as_json"])
    return 0 if report.verdict.accepted else 1


def _check(given: Mapping[str, Any]) -> None:
    """Check the options before the work, which takes minutes. Raises `CannotVerify`."""
    for measure in MEASURES:
        if given[measure] is not None and not isfinite(given[measure]):
            option = measure.replace("_", "-")
            raise CannotVerify(f"--{option} is {given[measure]}; must be a finite number")


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


HEADINGS = ("output", "tokens", "rows", *(name.replace("_", " ") for name in MEASURES))


def show(report: VerificationReport, console: Console | None = None) -> None:
    """Prints a table for each output, and below them the verdict."""
    target = console or Console()
    target.print(Text(title(report), style="bold"))
    for output in dict.fromkeys(found.output for found in report.verdict.measured):
        target.print(_table(report, output))
    for line in verdict_lines(report):
        # Not wrapped here, so that it can be copied whole.
        style = "green" if report.verdict.accepted else "red"
        target.print(Text(line, style=style), soft_wrap=True)


def _table(report: VerificationReport, output: str) -> Table:
    table = Table(title=output, title_justify="left", box=None, pad_edge=False)
    for place, heading in enumerate(HEADINGS[1:]):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for found in report.verdict.measured:
        if found.output != output:
            continue
        bad = {b.measure for b in report.verdict.breaches if _is_of(b, found)}
        cells = [Text(cell) for cell in _cells(found)[1:]]
        for place, measure in enumerate(MEASURES, 2):
            cells[place].stylize("bold red" if measure in bad else "")
        table.add_row(*cells)
    return table


def title(report: VerificationReport) -> str:
    verdict = report.verdict
    given = f", {report.given} of them given" if report.given else ""
    return (
        f"{report.model}: {report.candidate} against {report.reference}, "
        f"{verdict.samples} samples{given}"
    )


def verdict_lines(report: VerificationReport) -> list[str]:
    """The verdict, then a sentence for each tolerance that does not hold."""
    bounds = ", ".join(f"{name} {bound:g}" for name, bound in report.tolerances.stated().items())
    if report.verdict.accepted:
        return [f"accepted: within {bounds}"]
    breaches = [f"  {breach.sentence()}" for breach in report.verdict.breaches]
    return [f"not accepted: {len(breaches)} beyond what is allowed ({bounds})", *breaches]


def _is_of(breach: Any, found: Measured) -> bool:
    return (breach.output, breach.interval) == (found.output, found.interval)


def _cells(found: Measured) -> list[str]:
    numbers = [_shown(found.of(measure)) for measure in MEASURES]
    return [found.output, str(found.interval), str(found.rows), *numbers]


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.6f}" if 0.5 <= value <= 1 else f"{value:.3g}"


def fingerprint_of(file: Path, name: str, *, write: bool) -> int:
    """Print the fingerprint; with `write`, store it. Returns the exit code. Raises SettingsErrors,
    also if a stored fingerprint disagrees: it is never overwritten. Raises CannotVerify."""
    model = chosen(file, name)
    if model.source is None:
        raise CannotVerify(f"models.{name} has no artifact to store a fingerprint beside")
    if write and is_remote(model.source):
        raise CannotVerify(
            f"models.{name} is fetched from {redacted(model.source)}: nothing can be stored beside "
            "it from here; store it where the artifact is made, and update the source's digest"
        )
    with shown_progress(name) as note:
        source = local_file(model.source, cache_dir(), note)
    model = preprocessing_support.with_image(model, source)
    does = preprocessing_support.supported_preprocessing(model, source)
    if not does:
        raise CannotVerify(f"models.{name} gets its tensors unchanged: it has no fingerprint")
    click.echo(json.dumps(does, indent=2))
    if write:
        stored = fingerprint.read(source)
        click.echo(f"stored in {fingerprint.write(source, stored | does)}", err=True)
    return 0


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
