"""Same batches through both sides; whose fault it is when one of them fails."""

from __future__ import annotations

import numpy as np
import pytest

from deployments.replica.verify.agreement import Interval, Tolerances
from deployments.replica.verify.samples import Sample
from deployments.replica.verify.verification import ComparisonPlan, NotAccepted, compare, matched
from deployments.settings.reference import CannotVerify
from runtimes.errors import BadRows, RunError
from runtimes.types import Batch, Limits, Ragged, Result, StageTimes, TensorSpec

SHORT, LONG = Interval(1, 4), Interval(5, 16)


class Summing:
    """`ids` → `sum` of each row, and whatever `spoil` makes of it."""

    def __init__(self, fault: Exception | None = None, outputs: tuple[str, ...] = ("sum",)) -> None:
        self.fault = fault
        self.outputs = outputs
        self.seen: list[list[int]] = []

    def limits(self) -> Limits:
        return Limits(
            (TensorSpec("ids", "INT64", (-1, -1)),),
            tuple(TensorSpec(name, "FP32", (-1,)) for name in self.outputs),
            length_input="ids",
        )

    def run(self, batch: Batch) -> Result:
        if self.fault is not None:
            raise self.fault
        self.seen.append(batch.lengths.tolist())
        ids, ends = batch.inputs["ids"].data, np.cumsum(batch.lengths)
        sums = np.array([part.sum() for part in np.split(ids, ends[:-1])], np.float32)
        ragged = Ragged("FP32", sums, ((),) * batch.rows)
        return Result(dict.fromkeys(self.outputs, ragged), StageTimes(), 0)

    load = warm = health = close = lambda self: None


class Breaking(Summing):
    """As `Summing`, but of more than 8 tokens it makes infinity."""

    def run(self, batch: Batch) -> Result:
        result = super().run(batch)
        sums = result.outputs["sum"].data
        sums[sums > 8] = np.inf
        return result


def plan(max_size: int = 2, *, finite: bool = False) -> ComparisonPlan:
    samples = [Sample({"ids": np.ones(n, np.int64)}, n) for n in (3, 9, 1, 16, 2)]
    return ComparisonPlan(samples, (SHORT, LONG), max_size, 32, Tolerances(), finite)


def test_both_sides_get_the_same_batches_bucket_by_bucket_with_progress():
    reference, candidate, told = Summing(), Summing(), list[float]()
    verdict = compare(reference, candidate, plan(), told.append)
    assert reference.seen == candidate.seen == [[3, 1], [2], [9, 16]]
    assert told == [0.4, 0.6, 1.0]
    assert verdict.accepted
    assert verdict.samples == 5


def test_a_candidate_that_fails_is_not_accepted():
    with pytest.raises(NotAccepted, match="the model fails on a batch of 2: no memory"):
        compare(Summing(), Summing(RunError("no memory")), plan(), lambda share: None)


def test_an_answer_that_is_not_finite_is_not_accepted_even_where_the_reference_has_the_same():
    with pytest.raises(NotAccepted, match="answer to sample 1 and to 1 more of its batch is not"):
        compare(Breaking(), Breaking(), plan(finite=True), lambda share: None)
    assert compare(Breaking(), Breaking(), plan(), lambda share: None).accepted
    assert compare(Summing(), Summing(), plan(finite=True), lambda share: None).accepted


@pytest.mark.parametrize("fault", [RunError("no memory"), BadRows("an id is too large")])
def test_a_reference_that_fails_says_nothing_of_the_candidate(fault):
    with pytest.raises(CannotVerify, match=r"the reference .*: (no memory|an id)"):
        compare(Summing(fault), Summing(), plan(), lambda share: None)


def test_outputs_are_matched_by_name_or_for_being_the_only_ones():
    both = ("a", "b")
    assert matched(Summing(outputs=both).limits(), Summing(outputs=("b", "a")).limits()) == [
        ("b", "b"),
        ("a", "a"),
    ]
    assert matched(Summing(outputs=("x",)).limits(), Summing().limits()) == [("x", "sum")]
    assert matched(Summing(outputs=both).limits(), Summing(outputs=("b",)).limits()) == [("b", "b")]


def test_an_output_that_would_not_be_looked_at_is_said():
    with pytest.raises(CannotVerify, match="has no output c, it has a, b"):
        matched(Summing(outputs=("a", "b")).limits(), Summing(outputs=("a", "c")).limits())


class Constant(Summing):
    """Answers 1, whatever the row holds: a softmax over one class."""

    def run(self, batch: Batch) -> Result:
        ones = np.ones(batch.rows, np.float32)
        return Result({"sum": Ragged("FP32", ones, ((),) * batch.rows)}, StageTimes(), 0)


def test_a_model_that_answers_all_samples_alike_is_refused_even_if_its_reference_does_too():
    with pytest.raises(NotAccepted, match="answers all 5 samples alike"):
        compare(Constant(), Constant(), plan(), lambda share: None)


def test_samples_that_are_all_the_same_say_nothing_of_it():
    same = [Sample({"ids": np.ones(3, np.int64)}, 3)] * 2
    asked = ComparisonPlan(same, (SHORT, LONG), 2, 32, Tolerances())
    assert compare(Constant(), Constant(), asked, lambda share: None).accepted
