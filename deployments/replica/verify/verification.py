"""The whole check of one model: choose a reference, take samples, run both, judge.

The reference is the most trusted other way to run the same artifact, if the settings do not say:
torch in fp32 for a folder, ONNX Runtime in fp32 for an ONNX file. If the settings ask a graph
backend for pooling, torch is ruled out, because it does the folder's own pooling.

Both sides get the same batches, by length bucket and as large as the model would get them. Each
batch goes through both before the next is formed, because all outputs need not fit into memory.
`headrace verify` and a starting replica (`gate`) both use it. Nothing is printed or stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from deployments.contract.channel.frames import rows_of
from deployments.replica.device import non_finite_rows
from deployments.replica.verify.agreement import (
    MEASURES,
    AgreementVerdict,
    ErrorStatistics,
    Interval,
    Measured,
    Tolerances,
)
from deployments.replica.verify.samples import (
    LEAST,
    Reading,
    Sample,
    SampleFile,
    batch_of,
    batches,
    completed,
    drawn,
    intervals,
)
from deployments.settings.accept import AcceptSettings
from deployments.settings.reference import PREFERRED, CannotVerify, parse_reference
from deployments.settings_files.sources import resolve as source_path
from runtimes import catalog, source
from runtimes.errors import LoadError, RunError, RuntimeFault
from runtimes.types import (
    INDICES,
    VALUES,
    Batch,
    Limits,
    Ragged,
    Result,
    Runtime,
    RuntimeSettings,
    side_by_side,
)

Array = np.ndarray[Any, Any]
POOLING = ("pooling", "normalize", "embed_output")
GRAPH_OPTIONS = (*POOLING, "layout")
GRAPH_RUNTIMES = ("onnxruntime", "openvino")


def reference_for(
    candidate: RuntimeSettings, against: str | None = None, artifact: Path | None = None
) -> RuntimeSettings:
    """The reference's settings: the candidate's, except for runtime, precision and options.

    `against`: "RUNTIME" or "RUNTIME:PRECISION", by default in fp32; None: chosen here. `artifact`:
    what the reference runs; None: the candidate's artifact. Raises `CannotVerify`, and `LoadError`
    for an unfit artifact.
    """
    place = artifact or candidate.source
    if place is None:
        raise CannotVerify(
            f"a {candidate.runtime} model has no artifact that a reference could run"
        )
    runtime, precision = parse_reference(against) if against else _chosen(candidate, place)
    # Options that shape answers, without those that tune the candidate's backend.
    shaping = GRAPH_OPTIONS if runtime in GRAPH_RUNTIMES else ()
    options = {name: candidate.options[name] for name in shaping if name in candidate.options}
    wanted = replace(candidate, runtime=runtime, precision=precision, source=place, options=options)
    own = (candidate.runtime, candidate.precision, candidate.source)
    if own == (runtime, precision, place):
        raise CannotVerify(
            f"{runtime} in {precision} is what is to be verified; name another with --against, or "
            "accept.against"
        )
    catalog.check(runtime, wanted.options, precision)
    return wanted


def runtime_label(settings: RuntimeSettings) -> str:
    """As reports write it: `openvino bf16`."""
    return f"{settings.runtime} {settings.precision}"


def _chosen(candidate: RuntimeSettings, place: Path) -> tuple[str, str]:
    kind = source.inspect(place, candidate.cache_dir).kind
    asks_pooling = any(candidate.options.get(name) is not None for name in POOLING)
    own = (candidate.runtime, candidate.precision, candidate.source)
    for runtime in PREFERRED[kind]:
        fits = runtime in GRAPH_RUNTIMES or not asks_pooling
        if fits and (runtime, "fp32", place) != own and catalog.available(runtime) is None:
            return runtime, "fp32"
    able = " and ".join(PREFERRED[kind])
    raise CannotVerify(
        f"{place.name} is run by {able} alone, which leaves nothing to compare "
        f"{runtime_label(candidate)} with: install another runtime, or "
        "name another artifact as the reference"
    )


class NotAccepted(LoadError):
    """The model does not agree with its reference as its settings ask; the message says where."""


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What is run, in which batches, and what is allowed. finite: of the candidate's answers."""

    samples: Sequence[Sample]
    among: Sequence[Interval]
    max_size: int
    max_tokens: int
    tolerances: Tolerances
    finite: bool = False


class Sameness:
    """Whether all answers so far are the same, to the last bit, in every output. Rows that are not
    finite are not judged here."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[Any, ...]] = {}
        self.holds = True

    def add(self, outputs: Mapping[str, Ragged]) -> None:
        self.holds = self.holds and not non_finite_rows(outputs)
        if not self.holds:
            return
        for name, ragged in outputs.items():
            for row in rows_of(ragged):
                answer = row.shape, row.tolist() if row.dtype == object else row.tobytes()
                if self._first.setdefault(name, answer) != answer:
                    self.holds = False
                    return


def compare(
    reference: Runtime, candidate: Runtime, plan: ComparisonPlan, progress: Callable[[float], None]
) -> AgreementVerdict:
    """Compare two loaded runtimes. `progress` gets the share of the samples that have run. Raises
    `CannotVerify` if one side does not take the samples, `NotAccepted` if the candidate fails on
    them, gives an answer that is not finite although it may not, or gives them all the same."""
    limits, errors, sameness = candidate.limits(), ErrorStatistics(), Sameness()
    pairs = matched(reference.limits(), limits)
    done = 0
    for interval, places in batches(plan.samples, plan.among, plan.max_size, plan.max_tokens):
        batch = batch_of(limits, [plan.samples[place] for place in places])
        expected = _run(reference, batch, "the reference", CannotVerify)
        actual = _run(candidate, batch, "the model", NotAccepted)
        if plan.finite:
            _refuse_non_finite(actual, places)
        sameness.add(actual.outputs)
        for name, rows in _side_by_side(expected, actual, pairs):
            for place, pair in zip(places, rows, strict=True):
                errors.add(name, interval, (place, plan.samples[place].length), *pair)
        done += len(places)
        progress(done / len(plan.samples))
    first = plan.samples[0].inputs
    if sameness.holds and any(
        not np.array_equal(array, first[name])
        for sample in plan.samples[1:]
        for name, array in sample.inputs.items()
    ):
        raise NotAccepted(
            f"the model answers all {len(plan.samples)} samples alike, whatever they hold: are its "
            "weights the trained ones, and does its output depend on the input?"
        )
    return errors.verdict(plan.tolerances)


def _side_by_side(
    expected: Result, actual: Result, pairs: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, Iterable[tuple[Array, Array]]]]:
    """The candidate's outputs, each with the reference's and its own answer to every row. Of sparse
    vectors the values of the same entries, which the indices then say no more of."""
    if {name for _, name in pairs} == {INDICES, VALUES}:
        sides = (
            zip(rows_of(each.outputs[INDICES]), rows_of(each.outputs[VALUES]), strict=True)
            for each in (expected, actual)
        )
        yield VALUES, [side_by_side(*row) for row in zip(*sides, strict=True)]
        return
    for theirs, own in pairs:
        left, right = rows_of(expected.outputs[theirs]), rows_of(actual.outputs[own])
        yield own, zip(left, right, strict=True)


def _refuse_non_finite(actual: Result, places: Sequence[int]) -> None:
    bad = non_finite_rows(actual.outputs)
    if bad:
        more = f" and to {len(bad) - 1} more of its batch" if len(bad) > 1 else ""
        raise NotAccepted(
            f"the model's answer to sample {places[bad[0]]}{more} is not finite: it holds NaN or "
            "infinity. Where that is right, say allow_non_finite: true"
        )


def matched(reference: Limits, candidate: Limits) -> list[tuple[str, str]]:
    """The names of the outputs to compare, as (reference's, candidate's), in the candidate's order.
    Raises `CannotVerify` if an output of the candidate has no counterpart."""
    reference_names = [spec.name for spec in reference.outputs]
    candidate_names = [spec.name for spec in candidate.outputs]
    if len(reference_names) == len(candidate_names) == 1:
        return [(reference_names[0], candidate_names[0])]
    missing = [name for name in candidate_names if name not in reference_names]
    if missing:
        raise CannotVerify(
            f"the reference has no output {' or '.join(missing)}, it has "
            f"{', '.join(reference_names)}: nothing would be said of it"
        )
    return [(name, name) for name in candidate_names]


def _run(runtime: Runtime, batch: Batch, who: str, failed: type[LoadError]) -> Result:
    try:
        return runtime.run(batch)
    except RunError as error:
        raise failed(f"{who} fails on a batch of {batch.rows}: {error}") from error
    except RuntimeFault as error:
        raise CannotVerify(f"{who} does not take the samples: {error}") from error


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
    verdict: AgreementVerdict
    tolerances: Tolerances
    given: int  # samples from the user's file


def of_settings(accept: AcceptSettings) -> VerificationOptions:
    """What a model's `accept` section asks for. Raises SourceError if a named file is not here."""
    return VerificationOptions(
        against=accept.against,
        artifact=None if accept.artifact is None else source_path(accept.artifact),
        file=None if accept.samples_file is None else source_path(accept.samples_file),
        count=accept.samples,
        tolerances=Tolerances(**{name: getattr(accept, name) for name in MEASURES}),
    )


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
    with _reference(settings, candidate, options) as (reference, limits):
        samples = samples_for(options, limits, intervals(limits, settings.edges), reading)
        plan = ComparisonPlan(
            samples,
            intervals(limits, settings.edges),
            min(settings.max_size, limits.max_rows or settings.max_size),
            settings.max_tokens,
            options.tolerances,
            options.finite,
        )
        verdict = compare(reference, candidate, plan, progress)
    return VerificationReport(
        settings.name,
        runtime_label(settings),
        runtime_label(reference_for(settings, options.against, options.artifact)),
        verdict,
        options.tolerances,
        sum(not sample.drawn for sample in samples),
    )


@contextmanager
def _reference(
    settings: RuntimeSettings, candidate: Runtime, options: VerificationOptions
) -> Iterator[tuple[Runtime, Limits]]:
    """The loaded reference, and limits that hold for both sides: ids within both tables, batches
    within both bounds."""
    quiet = replace(settings, progress=lambda phase, fraction: None)
    reference = catalog.create(reference_for(quiet, options.against, options.artifact))
    reference.load()
    try:
        own, theirs = candidate.limits(), reference.limits()
        bounds = dict(own.id_bounds)
        for name, bound in theirs.id_bounds.items():
            bounds[name] = min(bound, bounds.get(name, bound))
        rows = [side.max_rows for side in (theirs, own) if side.max_rows is not None]
        yield reference, replace(own, id_bounds=bounds, max_rows=min(rows, default=None))
    finally:
        reference.close()


def samples_of(
    settings: RuntimeSettings, candidate: Runtime, options: VerificationOptions, reading: Reading
) -> tuple[Limits, list[Sample]]:
    """The samples that `verify` runs, in its order, and limits that hold for both sides."""
    with _reference(settings, candidate, options) as (_, limits):
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
