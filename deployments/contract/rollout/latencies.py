"""A histogram of latencies with steps of 10 %."""

from __future__ import annotations

import math
from collections.abc import Mapping

_STEP = 1.1  # ratio of a step's upper bound to the one before
_MIN_S = 1e-4  # upper bound of step 0

Histogram = Mapping[int, int]
"""Number of requests by step: step n holds latencies up to `_MIN_S * _STEP**n` seconds."""


def step_of(latency_s: float) -> int:
    """The step that holds this latency."""
    return max(0, math.ceil(math.log(max(latency_s, _MIN_S) / _MIN_S, _STEP)))


def seconds_of(step: int) -> float:
    """The step's upper bound."""
    return _MIN_S * float(_STEP**step)
