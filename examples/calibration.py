"""Fits the temperature that makes a classifier's scores as often right as they say.

One number divides all logits; it changes no order, so no accuracy, and is fitted by the likelihood
of labels that the weights were not fitted on. What `classify.temperature` is for.

Source: Guo et al., "On Calibration of Modern Neural Networks" (2017): temperature scaling, and the
expected calibration error over 15 bins of equal width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BINS = 15
_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 60


def softmax(logits: Array, temperature: float = 1.0) -> Array:
    """float64 [rows, classes]."""
    scaled = np.asarray(logits, np.float64) / temperature
    grown = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    found: Array = grown / grown.sum(axis=1, keepdims=True)
    return found


def negative_log_likelihood(logits: Array, labels: Array, temperature: float) -> float:
    """Mean over rows, in nats; `labels`: int64 [rows], the right class of each."""
    scaled = np.asarray(logits, np.float64) / temperature
    top = scaled.max(axis=1)
    logs = np.log(np.exp(scaled - top[:, None]).sum(axis=1)) + top
    return float((logs - scaled[np.arange(len(labels)), labels]).mean())


def fitted_temperature(
    logits: Array, labels: Array, least: float = 0.05, most: float = 20.0
) -> float:
    """The temperature between `least` and `most` under which the labels are the likeliest, by
    golden section over its logarithm, of which the likelihood has one peak. ValueError for one
    class, whose softmax is 1 whatever the temperature is."""
    if np.shape(logits)[1] < 2:
        raise ValueError("a softmax over one class has no temperature; give two or more classes")
    low, high = float(np.log(least)), float(np.log(most))
    for _ in range(_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        costs = [negative_log_likelihood(logits, labels, np.exp(at)) for at in (left, right)]
        low, high = (low, right) if costs[0] < costs[1] else (left, high)
    return float(np.exp((low + high) / 2))


def expected_calibration_error(scores: Array, labels: Array, bins: int = BINS) -> float:
    """Mean distance, 0 to 1, of how sure the best guesses are from how often they are right, over
    bins of how sure, each weighted by its guesses."""
    sure, right = scores.max(axis=1), scores.argmax(axis=1) == labels
    bin_of = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [
        abs(sure[bin_of == at].mean() - right[bin_of == at].mean()) * (bin_of == at).sum()
        for at in np.unique(bin_of)
    ]
    return float(sum(gaps) / len(labels))
