"""Draws values over time as one line of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_LEVELS = " ▁▂▃▄▅▆▇█"
_WIDTH = 48


def chart(values: Sequence[float], top: float, width: int = _WIDTH) -> str:
    """Each value as a bar of 0 to 8 eighths; `top` is a full one. More than `width` values are
    averaged."""
    if not values or top <= 0.0:
        return ""
    count = min(width, len(values))
    bounds = [round(n * len(values) / count) for n in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    return "".join(_LEVELS[round(min(1.0, mean / top) * (len(_LEVELS) - 1))] for mean in means)
