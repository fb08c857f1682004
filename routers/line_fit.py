"""What line do the latest points lie on?

Least squares over exponentially forgotten points: y = base + slope * x, the slope never negative.
While the latest points lie too close together to tell, the slope stays what it was, at first the
one to start from, and the base follows. O(1) a point. Plain numbers, the caller's units.
"""

from __future__ import annotations

from dataclasses import dataclass

_KEEP = 0.98  # of a point's weight, with each newer one: about the last fifty count
_APART = 0.2  # standard deviation of x, relative to its mean, from which a slope is believed
_LEAST = 8


@dataclass(slots=True)
class LineFit:
    """`slope`, and `base` to go with it, are to be read only; `first`: the slope to start from;
    `is_known`: points have shown it."""

    first: float = 0.0
    points: int = 0
    base: float = 0.0
    slope: float = 0.0
    is_known: bool = False
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def __post_init__(self) -> None:
        self.slope = self.first

    def learn(self, x: float, y: float) -> None:
        self.points += 1
        self._weight = self._weight * _KEEP + 1.0
        gain = 1.0 / self._weight
        self._x += gain * (x - self._x)
        self._y += gain * (y - self._y)
        self._xx += gain * (x * x - self._xx)
        self._xy += gain * (x * y - self._xy)
        spread = self._xx - self._x * self._x
        if self.points >= _LEAST and spread > (_APART * self._x) ** 2:
            self.slope = max(0.0, (self._xy - self._x * self._y) / spread)
            self.is_known = True
        self.base = max(0.0, self._y - self.slope * self._x)
