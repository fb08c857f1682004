"""How far rows differ, zeros and infinities too; which tolerances hold in every bucket, and what
is said of those that do not."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from deployments.replica.verify.agreement import (
    ErrorStatistics,
    Interval,
    Tolerances,
    row_difference,
)

SHORT, LONG, NONE = Interval(1, 16), Interval(17, 512), Interval(0, 0)


def gathered(rows) -> ErrorStatistics:
    """`rows`: (interval, reference, candidate)."""
    found = ErrorStatistics()
    for number, (interval, left, right) in enumerate(rows):
        left, right = (np.asarray(side, np.float32) for side in (left, right))
        found.add("y", interval, (number, interval.longest), left, right)
    return found


def test_rows_that_agree_are_accepted():
    verdict = gathered([(SHORT, [1, 2], [1, 2])] * 3).verdict(Tolerances())
    assert verdict.accepted
    assert verdict.samples == 3
    assert verdict.measured[0].rows == 3


@pytest.mark.parametrize(("error", "accepted"), [(0.0009, True), (0.0011, False)])
def test_a_thousandth_is_allowed_when_nothing_is_stated(error, accepted):
    assert gathered([(SHORT, [1], [1 + error])]).verdict(Tolerances()).accepted == accepted


def test_a_bound_that_is_stated_replaces_the_default():
    rows = gathered([(SHORT, [1, 0], [1.4, 0])])
    assert rows.verdict(Tolerances(max_abs=0.5)).accepted
    assert not rows.verdict(Tolerances(max_abs=0.3)).accepted
    assert rows.verdict(Tolerances(top1=1.0)).accepted


def test_damage_at_the_long_end_is_not_averaged_away():
    rows = [(SHORT, [1.0] * 4, [1.0] * 4)] * 199 + [(LONG, [1.0] * 4, [1.5] * 4)]
    verdict = gathered(rows).verdict(Tolerances(mean_abs=0.01))
    (breach,) = verdict.breaches
    assert (breach.interval, breach.measure, breach.measured) == (LONG, "mean_abs", 0.5)
    everything = gathered([(NONE, left, right) for _, left, right in rows])
    assert everything.verdict(Tolerances(mean_abs=0.01)).accepted


def test_the_sentence_names_output_bucket_measured_allowed_and_the_worst_sample():
    rows = gathered([(LONG, [1], [1]), (LONG, [1], [1.25])])
    (breach,) = rows.verdict(Tolerances(max_abs=0.001)).breaches
    assert breach.sentence() == (
        "output y, rows of 17-512 tokens: max_abs is 0.25, allowed at most 0.001 "
        "(worst in sample 1, 512 tokens)"
    )


def test_rows_without_a_length_are_one_bucket_that_is_not_named():
    (breach,) = gathered([(NONE, [1], [2])]).verdict(Tolerances(max_abs=0.5)).breaches
    assert breach.sentence() == ("output y: max_abs is 1, allowed at most 0.5 (worst in sample 0)")


def test_what_became_infinite_is_said():
    (breach,) = gathered([(SHORT, [1], [np.inf])]).verdict(Tolerances(max_abs=9)).breaches
    assert "max_abs is inf" in breach.sentence()
    assert breach.sentence().endswith("1 values are not finite on one side alone")


def test_cosine_and_top1_are_least_values():
    rows = gathered([(SHORT, [1, 2, 3], [3, 2, 1]), (SHORT, [1, 2, 3], [1, 2, 3])])
    cosine, top1 = rows.verdict(Tolerances(cosine=0.99, top1=0.9)).breaches
    assert cosine.measured == pytest.approx(10 / 14)
    assert (top1.measured, top1.sample) == (0.5, (0, 16))
    assert "top1 is 0.5, allowed at least 0.9" in top1.sentence()
    assert rows.verdict(Tolerances(cosine=0.7, top1=0.5)).accepted


def test_a_measure_that_no_output_has_is_no_agreement():
    (breach,) = gathered([(SHORT, [1], [1])]).verdict(Tolerances(top1=1.0)).breaches
    assert breach.sentence() == "top1 is asked for (1), no output of real numbers has it"


def test_nothing_compared_is_no_agreement():
    verdict = ErrorStatistics().verdict(Tolerances())
    assert not verdict.accepted
    assert "no output in common" in verdict.breaches[0].sentence()


def test_each_output_is_judged_and_buckets_come_shortest_first():
    found = ErrorStatistics()
    one, two = np.ones(2, np.float32), np.full(2, 2, np.float32)
    for interval in (LONG, SHORT):
        found.add("b", interval, (0, interval.longest), one, one)
        found.add("a", interval, (0, interval.longest), one, two)
    verdict = found.verdict(Tolerances())
    places = [(each.output, each.interval) for each in verdict.measured]
    assert places == [("b", SHORT), ("b", LONG), ("a", SHORT), ("a", LONG)]
    assert {breach.output for breach in verdict.breaches} == {"a"}


def real(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def texts(*values: bytes) -> np.ndarray:
    return np.array(values, object)


BF16, TWO_ROWS = np.array([1, 2], ml_dtypes.bfloat16), real(1, 2, 3, 3, 2, 1).reshape(2, 3)
SAME = {"max_abs": 0, "sum_abs": 0, "max_rel": 0, "cosine": 1, "odd": 0}
DIFFERENCES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "equal": (real(1, -2, 3), real(1, -2, 3), SAME | {"elements": 3, "asked": 1, "hits": 1}),
    "in the output's unit": (real(10, 0), real(10.5, 0.25), {"max_abs": 0.5, "sum_abs": 0.75}),
    "near zero, by the row's size": (
        real(3, 4, 0), real(3, 4, 0.01), {"max_rel": 0.01 / np.sqrt(25 / 3)},
    ),
    "large, by itself": (real(100, 1, 1), real(101, 1, 1), {"max_rel": 0.01}),
    "zeros": (real(0, 0), real(0, 0), {"max_rel": 0}),
    "zero and nearly so": (real(0, 0), real(0, 1e-9), {"max_rel": inf, "cosine": 0}),
    "another shape": (
        np.zeros((2, 3)), np.zeros((3, 2)),
        {"max_abs": inf, "note": "has the shape [3, 2] for [2, 3]"},
    ),
    "choices along the last axis": (
        TWO_ROWS, real(1, 2, 2.5, 1, 2, 1).reshape(2, 3), {"asked": 2, "hits": 1},
    ),
    "a choice that is as good": (real(5, 5, 1), real(1, 5, 0), {"hits": 1}),
    "NaN chooses nothing": (real(1, 2), real(nan, 2), {"hits": 0}),
    "whole numbers have no angle": (
        np.array([1, 2]), np.array([1, 4]), {"max_abs": 2, "cosine": None, "asked": 0},
    ),
    "texts alike": (texts(b"a", b"b"), texts(b"a", b"b"), {"max_abs": 0}),
    "texts": (texts(b"a", b"b"), texts(b"a", b"c"), {"max_abs": 1}),
    "bfloat16 is real": (BF16, BF16, {"cosine": 1}),
    "nothing": (real(), real(), {"max_abs": 0}),
    "a single number": (
        np.float32(2), np.array(2.5, np.float32), {"max_abs": 0.5, "asked": 0, "elements": 1},
    ),
    "a single text": (np.array(b"a", object), np.array(b"b", object), {"max_abs": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("left", "right", "said"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_rows_differ_as_said(left: Any, right: Any, said: dict[str, Any]) -> None:
    error = row_difference(left, right)
    for name, value in said.items():
        wanted = pytest.approx(value, rel=1e-5) if isinstance(value, int | float) else value
        assert getattr(error, name) == wanted, name


@pytest.mark.parametrize("spoilt", [inf, -inf, nan])
def test_what_is_not_finite_agrees_only_with_itself(spoilt):
    for left, right in ((real(1, 2), real(1, spoilt)), (real(1, spoilt), real(1, 2))):
        error = row_difference(left, right)
        assert (error.max_abs, error.cosine, error.odd) == (inf, 0, 1)
    error = row_difference(real(1, spoilt), real(1, spoilt))
    assert (error.max_abs, error.max_rel, error.cosine, error.odd) == (0, 0, 1, 0)


def test_the_angle_of_huge_values_does_not_overflow():
    cosine = row_difference(real(1e38, 1e38), real(1e38, 1.1e38)).cosine
    assert cosine == pytest.approx(0.9989, abs=1e-3)
