"""What one row's error is, where numbers are zero, infinite, or none at all."""

from __future__ import annotations

from math import inf, nan

import ml_dtypes
import numpy as np
import pytest

from deployments.replica.verify.row_error import row_error


def real(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_equal_rows_have_no_error():
    error = row_error(real(1, -2, 3), real(1, -2, 3))
    assert (error.max_abs, error.sum_abs, error.max_rel, error.cosine) == (0, 0, 0, 1)
    assert (error.elements, error.asked, error.hits) == (3, 1, 1)


def test_absolute_errors_are_in_the_output_s_unit():
    error = row_error(real(10, 0), real(10.5, 0.25))
    assert error.max_abs == 0.5
    assert error.sum_abs == 0.75


def test_a_value_near_zero_is_judged_by_the_row_s_size():
    error = row_error(real(3, 4, 0), real(3, 4, 0.01))
    assert error.max_rel == pytest.approx(0.01 / np.sqrt(25 / 3))


def test_a_large_value_is_judged_by_itself():
    error = row_error(real(100, 1, 1), real(101, 1, 1))
    assert error.max_rel == pytest.approx(0.01)


@pytest.mark.parametrize("spoilt", [inf, -inf, nan])
def test_what_is_finite_on_one_side_alone_is_infinitely_wrong(spoilt):
    for left, right in ((real(1, 2), real(1, spoilt)), (real(1, spoilt), real(1, 2))):
        error = row_error(left, right)
        assert error.max_abs == inf
        assert error.cosine == 0
        assert error.odd == 1


@pytest.mark.parametrize("spoilt", [inf, -inf, nan])
def test_what_is_not_finite_on_both_sides_alike_agrees(spoilt):
    error = row_error(real(1, spoilt), real(1, spoilt))
    assert (error.max_abs, error.max_rel, error.cosine, error.odd) == (0, 0, 1, 0)


def test_zeros_agree_with_zeros_and_with_nothing_else():
    assert row_error(real(0, 0), real(0, 0)).max_rel == 0
    error = row_error(real(0, 0), real(0, 1e-9))
    assert (error.max_rel, error.cosine) == (inf, 0)


def test_another_shape_is_no_agreement_and_says_so():
    error = row_error(np.zeros((2, 3)), np.zeros((3, 2)))
    assert error.max_abs == inf
    assert error.note == "has the shape [3, 2] for [2, 3]"


def test_choices_are_counted_along_the_last_axis():
    left = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
    right = np.array([[1, 2, 2.5], [1, 2, 1]], np.float32)
    error = row_error(left, right)
    assert (error.asked, error.hits) == (2, 1)


def test_a_choice_that_is_as_good_counts_as_the_same():
    assert row_error(real(5, 5, 1), real(1, 5, 0)).hits == 1


def test_a_row_with_nan_chooses_nothing():
    assert row_error(real(1, 2), real(nan, 2)).hits == 0


def test_integers_are_compared_as_numbers_and_have_no_angle():
    error = row_error(np.array([1, 2]), np.array([1, 4]))
    assert (error.max_abs, error.cosine, error.asked) == (2, None, 0)


def test_texts_are_alike_or_not():
    left, right = np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)
    assert row_error(left, left).max_abs == 0
    assert row_error(left, right).max_abs == 1


def test_bfloat16_is_real():
    row = np.array([1, 2], ml_dtypes.bfloat16)
    assert row_error(row, row).cosine == 1


def test_the_angle_of_huge_values_does_not_overflow():
    assert row_error(real(1e38, 1e38), real(1e38, 1.1e38)).cosine == pytest.approx(0.9989, abs=1e-3)


def test_an_empty_row_agrees():
    assert row_error(real(), real()).max_abs == 0


def test_a_row_may_be_a_single_number():
    error = row_error(np.float32(2), np.array(2.5, np.float32))
    assert (error.max_abs, error.asked, error.elements) == (0.5, 0, 1)
    assert row_error(np.array(b"a", object), np.array(b"b", object)).max_abs == 1
