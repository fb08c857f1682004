from __future__ import annotations

import numpy as np
import pytest

from examples.calibration import (
    expected_calibration_error,
    fitted_temperature,
    negative_log_likelihood,
    softmax,
)


def drawn(times: float, rows: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are `times` too large for labels drawn by what they ought to be."""
    chance = np.random.default_rng(5)
    true = chance.normal(size=(rows, 4)) * 2
    shares = softmax(true).cumsum(axis=1)
    labels = (chance.random((rows, 1)) > shares).sum(axis=1)
    return true * times, np.minimum(labels, 3)


@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_the_temperature_undoes_what_made_scores_too_sure_or_too_shy(times):
    logits, labels = drawn(times)
    assert fitted_temperature(logits, labels) == pytest.approx(times, rel=0.05)


def test_no_neighbouring_temperature_is_likelier():
    logits, labels = drawn(2.0, 500)
    found = fitted_temperature(logits, labels)
    best = negative_log_likelihood(logits, labels, found)
    for other in (found * 0.98, found * 1.02):
        assert negative_log_likelihood(logits, labels, other) > best


def test_calibrated_scores_are_as_often_right_as_they_say():
    logits, labels = drawn(3.0)
    before, after = (
        expected_calibration_error(softmax(logits, t), labels)
        for t in (1.0, fitted_temperature(logits, labels))
    )
    assert before > 0.1
    assert after < 0.02


def test_the_error_of_scores_known_by_heart():
    scores = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    labels = np.array([0, 1, 0, 1])
    # Two at 0.9, half of them right; two at 0.6, all right: (2 x 0.4 + 2 x 0.4) / 4.
    assert expected_calibration_error(scores, labels) == pytest.approx(0.4)


def test_huge_logits_overflow_nothing():
    assert softmax(np.array([[1e6, -1e6]])).tolist() == [[1.0, 0.0]]


def test_one_class_has_no_temperature():
    with pytest.raises(ValueError, match="one class"):
        fitted_temperature(np.zeros((4, 1)), np.zeros(4, np.int64))
