"""How far rows differ, zeros and infinities too; which tolerances hold in every bucket, and what
is said of those that do not."""

from __future__ import annotations

from math import inf, nan

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


def test_equal_rows_have_no_error():
    error = row_difference(real(1, -2, 3), real(1, -2, 3))
    assert (error.max_abs, error.sum_abs, error.max_rel, error.cosine) == (0, 0, 0, 1)
    assert (error.elements, error.asked, error.hits) == (3, 1, 1)


def test_absolute_errors_are_in_the_output_s_unit():
    error = row_difference(real(10, 0), real(10.5, 0.25))
    assert error.max_abs == 0.5
    assert error.sum_abs == 0.75


def test_a_value_near_zero_is_judged_by_the_row_s_size():
    error = row_difference(real(3, 4, 0), real(3, 4, 0.01))
    assert error.max_rel == pytest.approx(0.01 / np.sqrt(25 / 3))


def test_a_large_value_is_judged_by_itself():
    error = row_difference(real(100, 1, 1), real(101, 1, 1))
    assert error.max_rel == pytest.approx(0.01)


@pytest.mark.parametrize("spoilt", [inf, -inf, nan])
def test_what_is_finite_on_one_side_alone_is_infinitely_wrong(spoilt):
    for left, right in ((real(1, 2), real(1, spoilt)), (real(1, spoilt), real(1, 2))):
        error = row_difference(left, right)
        assert error.max_abs == inf
        assert error.cosine == 0
        assert error.odd == 1


@pytest.mark.parametrize("spoilt", [inf, -inf, nan])
def test_what_is_not_finite_on_both_sides_alike_agrees(spoilt):
    error = row_difference(real(1, spoilt), real(1, spoilt))
    assert (error.max_abs, error.max_rel, error.cosine, error.odd) == (0, 0, 1, 0)


def test_zeros_agree_with_zeros_and_with_nothing_else():
    assert row_difference(real(0, 0), real(0, 0)).max_rel == 0
    error = row_difference(real(0, 0), real(0, 1e-9))
    assert (error.max_rel, error.cosine) == (inf, 0)


def test_another_shape_is_no_agreement_and_says_so():
    error = row_difference(np.zeros((2, 3)), np.zeros((3, 2)))
    assert error.max_abs == inf
    assert error.note == "has the shape [3, 2] for [2, 3]"


def test_choices_are_counted_along_the_last_axis():
    left = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
    right = np.array([[1, 2, 2.5], [1, 2, 1]], np.float32)
    error = row_difference(left, right)
    assert (error.asked, error.hits) == (2, 1)


def test_a_choice_that_is_as_good_counts_as_the_same():
    assert row_difference(real(5, 5, 1), real(1, 5, 0)).hits == 1


def test_a_row_with_nan_chooses_nothing():
    assert row_difference(real(1, 2), real(nan, 2)).hits == 0


def test_integers_are_compared_as_numbers_and_have_no_angle():
    error = row_difference(np.array([1, 2]), np.array([1, 4]))
    assert (error.max_abs, error.cosine, error.asked) == (2, None, 0)


def test_texts_are_alike_or_not():
    left, right = np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)
    assert row_difference(left, left).max_abs == 0
    assert row_difference(left, right).max_abs == 1


def test_bfloat16_is_real():
    row = np.array([1, 2], ml_dtypes.bfloat16)
    assert row_difference(row, row).cosine == 1


def test_the_angle_of_huge_values_does_not_overflow():
    assert row_difference(real(1e38, 1e38), real(1e38, 1.1e38)).cosine == pytest.approx(
        0.9989, abs=1e-3
    )


def test_an_empty_row_agrees():
    assert row_difference(real(), real()).max_abs == 0


def test_a_row_may_be_a_single_number():
    error = row_difference(np.float32(2), np.array(2.5, np.float32))
    assert (error.max_abs, error.asked, error.elements) == (0.5, 0, 1)
    assert row_difference(np.array(b"a", object), np.array(b"b", object)).max_abs == 1
