"""Runs the same samples through reference and candidate, and gathers how they differ.

Both get the same batches, formed by length bucket and as large as the model would get them, so that
padding and batching are tested too. Each batch goes through both before the next is formed, because
the outputs of 200 long rows need not fit into memory. Outputs are matched by name; if each side has
only one output, those two are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deployments.replica.finite import non_finite_rows
from deployments.replica.verify.agreement import Gathered, Interval, Tolerances, Verdict
from deployments.replica.verify.samples import Sample, batch_of, batches
from deployments.settings.reference import CannotVerify
from runtimes.errors import LoadError, RunError, RuntimeFault
from runtimes.types import Batch, Limits, Ragged, Result, Runtime

Array = np.ndarray[Any, Any]


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
) -> Verdict:
    """Compare two loaded runtimes. `progress` gets the share of the samples that have run. Raises
    `CannotVerify` if one side does not take the samples, `NotAccepted` if the candidate fails on
    them, gives an answer that is not finite although it may not, or gives them all the same."""
    limits, gathered, sameness = candidate.limits(), Gathered(), Sameness()
    pairs = matched(reference.limits(), limits)
    done = 0
    for interval, places in batches(plan.samples, plan.among, plan.max_size, plan.max_tokens):
        chosen = [plan.samples[place] for place in places]
        batch = batch_of(limits, chosen)
        expected = _run(reference, batch, "the reference", CannotVerify)
        actual = _run(candidate, batch, "the model", NotAccepted)
        if plan.finite:
            _refuse_non_finite(actual, places)
        sameness.add(actual.outputs)
        for reference_name, candidate_name in pairs:
            left, right = (
                rows_of(expected.outputs[reference_name]),
                rows_of(actual.outputs[candidate_name]),
            )
            for at, place in enumerate(places):
                sample = place, chosen[at].length
                gathered.add(candidate_name, interval, sample, left[at], right[at])
        done += len(places)
        progress(done / len(plan.samples))
    if sameness.holds and _differ(plan.samples):
        raise NotAccepted(
            f"the model answers all {len(plan.samples)} samples alike, whatever they hold: are its "
            "weights the trained ones, and does its output depend on the input?"
        )
    return gathered.verdict(plan.tolerances)


def _differ(samples: Sequence[Sample]) -> bool:
    first = samples[0].inputs
    return any(
        not np.array_equal(array, first[name])
        for sample in samples[1:]
        for name, array in sample.inputs.items()
    )


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


def rows_of(ragged: Ragged) -> list[Array]:
    """Each row as an array of its own shape."""
    rows, start = [], 0
    for shape in ragged.shapes:
        size = int(np.prod(shape, dtype=np.int64))
        rows.append(ragged.data[start : start + size].reshape(shape))
        start += size
    return rows


def _run(runtime: Runtime, batch: Batch, who: str, failed: type[LoadError]) -> Result:
    try:
        return runtime.run(batch)
    except RunError as error:
        raise failed(f"{who} fails on a batch of {batch.rows}: {error}") from error
    except RuntimeFault as error:
        raise CannotVerify(f"{who} does not take the samples: {error}") from error
