"""The scale of an axis, linear or logarithmic: positions of values, and ticks.

Ticks are 1, 2 or 5 times a power of ten, and never more than asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, inf, log10, sqrt

MAX_TICKS = 7
MIN_RATIO = 8.0


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale from `low` to `high`, with `low` < `high`; both are above 0 if `log`."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """A value's position, 0 at `low` and 1 at `high`; values outside are put at the edge."""
        low, high, here = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, here = log10(low), log10(high), log10(here)
        return (here - low) / (high - low)

    def ticks(self) -> list[float]:
        return self._decades() if self.log else self._steps()

    def _steps(self) -> list[float]:
        step = nice((self.high - self.low) / (MAX_TICKS - 1))
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [place * step for place in range(first, last + 1)]

    def _decades(self) -> list[float]:
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [digit * 10.0**power for power in powers for digit in digits]
            found = [
                value for value in found if self.low <= value * 1.000001 <= self.high * 1.00001
            ]
            if len(found) <= MAX_TICKS:
                return found
        return found[:: ceil(len(found) / MAX_TICKS)]


def linear(values: Iterable[float], low: float = 0.0) -> Scale:
    """A linear scale from `low` to just above the largest value."""
    high = max((value for value in values if value < inf), default=low)
    if high <= low:
        return Scale(low, low + 1.0)
    high += (high - low) * 0.04
    step = nice((high - low) / (MAX_TICKS - 1))
    return Scale(low, low + step * ceil((high - low) / step - 1e-9))


def logarithmic(values: Iterable[float]) -> Scale:
    """A logarithmic scale around all values above 0, wide enough for two ticks."""
    found = [value for value in values if 0.0 < value < inf] or [1.0]
    low, high = min(found) / 1.05, max(found) * 1.05
    wider = max(1.0, sqrt(MIN_RATIO / (high / low)))
    return Scale(low / wider, high * wider, log=True)


def nice(step: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is at least `step`."""
    power = 10.0 ** floor(log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * (1 - 1e-9))


def label(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
