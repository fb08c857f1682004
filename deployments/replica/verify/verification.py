"""The whole check of one model: choose a reference, take samples, run both, judge.

`headrace verify` and a starting replica (`gate`) both use it, so that what was accepted on a desk
is accepted in the cluster. The candidate may be running already; the reference is loaded here and
closed again. Nothing is printed or stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from deployments.replica.verify.agreement import MEASURES, Interval, Measured, Tolerances, Verdict
from deployments.replica.verify.comparison import ComparisonPlan, compare
from deployments.replica.verify.reference import reference_for, runtime_label
from deployments.replica.verify.sample_file import Reading, SampleFile
from deployments.replica.verify.samples import LEAST, Sample, completed, drawn, intervals
from deployments.settings.accept import AcceptSettings
from deployments.settings.reference import CannotVerify
from deployments.settings_files.sources import resolve as source_path
from runtimes import catalog
from runtimes.types import Limits, Runtime, RuntimeSettings


@dataclass(frozen=True, slots=True)
class VerificationOptions:
    """What is compared, with what, and within which bounds."""

    against: str | None = None  # as in `reference_for`
    artifact: Path | None = None  # as in `reference_for`
    file: Path | None = None  # the user's samples; None: drawn ones
    count: int = LEAST  # samples to draw, at least 200; a file must have as many
    seed: int = 0  # of all that is drawn
    tolerances: Tolerances = field(default_factory=Tolerances)
    finite: bool = False  # refuse an answer that is not finite, whatever the reference's is


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result of one check."""

    model: str
    candidate: str  # "RUNTIME PRECISION"
    reference: str  # "RUNTIME PRECISION"
    verdict: Verdict
    tolerances: Tolerances
    given: int  # samples from the user's file


def of_settings(accept: AcceptSettings) -> VerificationOptions:
    """What a model's `accept` section asks for. Raises SourceError if a named file is not here."""
    return VerificationOptions(
        against=accept.against,
        artifact=_path(accept.artifact),
        file=_path(accept.samples_file),
        count=accept.samples,
        tolerances=Tolerances(**{name: getattr(accept, name) for name in MEASURES}),
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


def _path(named: str | None) -> Path | None:
    return None if named is None else source_path(named)


def verify(
    settings: RuntimeSettings,
    candidate: Runtime,
    options: VerificationOptions,
    reading: Reading,
    progress: Callable[[float], None] = lambda share: None,
) -> VerificationReport:
    """Compare the candidate, which is loaded from `settings`, with its reference. `reading`: how
    samples of a file become rows; `progress` gets the share done. Raises `CannotVerify`, and what
    loading the reference raises."""
    quiet = replace(settings, progress=lambda phase, fraction: None)
    wanted = reference_for(quiet, options.against, options.artifact)
    reference = catalog.create(wanted)
    reference.load()
    try:
        limits = _known_bounds(reference.limits(), candidate.limits())
        among = intervals(limits, settings.edges)
        samples = samples_for(options, limits, among, reading)
        size = min(settings.max_size, limits.max_rows or settings.max_size)
        plan = ComparisonPlan(
            samples, among, size, settings.max_tokens, options.tolerances, options.finite
        )
        verdict = compare(reference, candidate, plan, progress)
    finally:
        reference.close()
    given = sum(not sample.drawn for sample in samples)
    return VerificationReport(
        settings.name,
        runtime_label(settings),
        runtime_label(wanted),
        verdict,
        options.tolerances,
        given,
    )


def samples_of(
    settings: RuntimeSettings, candidate: Runtime, options: VerificationOptions, reading: Reading
) -> tuple[Limits, list[Sample]]:
    """The samples that `verify` runs, in its order, and limits that hold for both sides."""
    wanted = reference_for(settings, options.against, options.artifact)
    reference = catalog.create(wanted)
    reference.load()
    try:
        limits = _known_bounds(reference.limits(), candidate.limits())
    finally:
        reference.close()
    return limits, samples_for(options, limits, intervals(limits, settings.edges), reading)


def samples_for(
    options: VerificationOptions, limits: Limits, among: Sequence[Interval], reading: Reading
) -> list[Sample]:
    """The file's samples, and drawn ones for length buckets that the file leaves empty; without a
    file, drawn ones only."""
    rng = np.random.default_rng(options.seed)
    if options.file is None:
        return drawn(limits, among, options.count, rng)
    given = SampleFile(limits, reading).read(options.file)
    if len(given) < options.count:
        raise CannotVerify(
            f"{options.file} has {len(given)} samples, a verdict takes {options.count} at least"
        )
    return completed(given, limits, among, rng)


def _known_bounds(reference: Limits, candidate: Limits) -> Limits:
    """The candidate's limits, with ids within both sides' tables and batches within both sides'
    bounds."""
    bounds = dict(candidate.id_bounds)
    for name, bound in reference.id_bounds.items():
        bounds[name] = min(bound, bounds.get(name, bound))
    rows = [side.max_rows for side in (reference, candidate) if side.max_rows is not None]
    return replace(candidate, id_bounds=bounds, max_rows=min(rows, default=None))


def as_json(report: VerificationReport) -> str:
    """The report as JSON. Numbers that are not finite are written as texts, since JSON has none."""
    verdict = report.verdict
    return json.dumps(
        {
            "model": report.model,
            "candidate": report.candidate,
            "reference": report.reference,
            "accepted": verdict.accepted,
            "samples": verdict.samples,
            "given": report.given,
            "tolerances": report.tolerances.stated(),
            "measured": [_record(found) for found in verdict.measured],
            "breaches": [
                {
                    "output": breach.output,
                    "tokens": str(breach.interval),
                    "measure": breach.measure,
                    "measured": _number(breach.measured),
                    "allowed": breach.allowed,
                    "sample": breach.sample and breach.sample[0],
                    "sentence": breach.sentence(),
                }
                for breach in verdict.breaches
            ],
        },
        indent=2,
    )


def _record(found: Measured) -> dict[str, Any]:
    numbers = {measure: _number(found.of(measure)) for measure in MEASURES}
    worst = {measure: sample for measure, (sample, _) in found.worst.items()}
    return {
        "output": found.output,
        "tokens": str(found.interval),
        "rows": found.rows,
        **numbers,
        "not_finite": found.odd,
        "worst_sample": worst,
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or isfinite(value) else str(value)
