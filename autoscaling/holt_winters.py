"""Forecasts the next minutes from a level, a trend and perhaps a season (Holt-Winters).

Additive exponential smoothing with a damped trend (Gardner and McKenzie 1985; Hyndman and
Athanasopoulos, *Forecasting*, chapter 8), one value a minute. A value far from its expectation is
clipped to the nearest plausible one, so that a burst enters neither level nor season, and
yesterday's burst is not expected today. After `_BURST` such minutes in a row on one side it is no
burst, and counts more with each minute. A season is stored in at most `SEASON_BINS` parts of its
period and interpolated; it is known once a whole period was seen.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from statistics import fmean, median
from typing import Any

SEASON_BINS = 288
_LEVEL, _TREND, _SEASON, _DAMPING = 0.2, 0.05, 0.1, 0.95
_CLIP_DEVIATIONS = 5.0
_ERRORS = 60
_BURST = 10


class Season:
    """What each part of a period adds to the level. `minutes`: the length of the period."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes
        self._width = max(1, -(-minutes // SEASON_BINS))
        self.parts = [0.0] * max(1, minutes // self._width)
        self._seen = [0.0] * len(self.parts)
        self.periods = 0.0

    @property
    def known(self) -> bool:
        return self.periods >= 1.0

    def at(self, minute: int) -> float:
        """Interpolated between the middles of parts; 0.0 before a whole period was seen."""
        if not self.known:
            return 0.0
        place = (minute % self.minutes) / self._width - 0.5
        first = int(place // 1)
        part = place - first
        count = len(self.parts)
        return (1.0 - part) * self.parts[first % count] + part * self.parts[(first + 1) % count]

    def learn(self, minute: int, value: float, level: float) -> None:
        """In the first period the means of its parts, which at its end become what they add to
        the mean of all; later a slow correction."""
        index = min((minute % self.minutes) // self._width, len(self.parts) - 1)
        known = self.known
        self.periods += 1.0 / self.minutes
        if known:
            gain = _SEASON / self._width
            self.parts[index] += gain * (value - level - self.parts[index])
            return
        self._seen[index] += 1.0
        self.parts[index] += (value - self.parts[index]) / self._seen[index]
        if self.periods > 1.0 - 0.5 / self.minutes:
            self.periods = 1.0
            mean = fmean(self.parts)
            self.parts = [each - mean for each in self.parts]

    def save(self) -> dict[str, Any]:
        return {
            "minutes": self.minutes,
            "periods": self.periods,
            "parts": [float(f"{each:.5g}") for each in self.parts],
            "seen": [] if self.known else self._seen,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a saved state; ignored if its period is another one."""
        if state["minutes"] == self.minutes:
            self.periods, self.parts = float(state["periods"]), list(state["parts"])
            self._seen = list(state["seen"]) or [1.0] * len(self.parts)


class HoltWinters:
    """Exponential smoothing. `season`: None for no seasonal part."""

    def __init__(self, season: Season | None = None) -> None:
        self.season = season
        self.level: float | None = None
        self.trend = 0.0
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._clipped_for = 0

    def add(self, minute: int, value: float, request_work_s: float) -> None:
        """Take the work a second of that minute."""
        if self.level is None:
            self.level = value
        expected = self.ahead(minute, 1)
        self._errors.append(abs(value - expected))
        value = self._clipped(value, expected, request_work_s)
        damped = _DAMPING * self.trend
        added = self.season.at(minute) if self.season else 0.0
        before = self.level
        self.level += damped + _LEVEL * (value - added - before - damped)
        self.trend = _TREND * (self.level - before) + (1.0 - _TREND) * damped
        if self.season:
            was_known = self.season.known
            self.season.learn(minute, value, self.level)
            if self.season.known and not was_known:
                self.level -= self.season.at(minute)

    def skip(self, minutes: int) -> None:
        """Skip minutes of which nothing is known: the level stays, the trend decays."""
        self.trend *= _DAMPING ** min(minutes, 1000)

    def ahead(self, minute: int, steps: int) -> float:
        """The forecast for that minute, `steps` after the last one added; never below 0."""
        if self.level is None:
            return 0.0
        grown = _DAMPING * (1.0 - _DAMPING**steps) / (1.0 - _DAMPING)
        added = self.season.at(minute) if self.season else 0.0
        return max(0.0, self.level + grown * self.trend + added)

    def _clipped(self, value: float, expected: float, request_work_s: float) -> float:
        """The value, clipped to its plausible range, which is at least what chance explains.
        `_clipped_for`: clipped minutes in a row, negative if the values were too low."""
        usual = median(self._errors) if len(self._errors) > 10 else expected
        chance = sqrt(max(value, expected) * request_work_s / 60.0)
        room = _CLIP_DEVIATIONS * max(usual, chance, 0.01 * expected)
        side = (value > expected + room) - (value < expected - room)
        self._clipped_for = self._clipped_for + side if side * self._clipped_for >= 0 else side
        if not side:
            self._clipped_for = 0
        room *= max(1, abs(self._clipped_for) - _BURST)
        return min(max(value, expected - room), expected + room)

    def save(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "trend": self.trend,
            "errors": [float(f"{each:.4g}") for each in self._errors],
            "season": self.season.save() if self.season else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.level, self.trend = state["level"], float(state["trend"])
        self._errors = deque(state["errors"], maxlen=_ERRORS)
        if self.season and state["season"]:
            self.season.load(state["season"])
