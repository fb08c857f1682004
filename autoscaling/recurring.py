"""Is a spike expected now, because spikes came at this time before?

Jobs that run by the clock make the same burst each hour or each day. It is over before replicas
that start with it could help. Spikes are remembered by onset, length and height (a multiple of the
plan). A spike is *expected* if spikes began at that time, within `TOLERANCE_S`, in at least two of
the last three periods. Replicas are wanted for the plan times the greatest height seen at that time
in the last periods: from a replica's start time before the earliest moment of the onset, until the
latest. When the spike comes, the envelope sees it like any other. A spike that stays away costs the
idle replicas; after two misses in a row it is not expected any more. Only onsets are considered:
smooth seasonal demand is the forecast's task. Times are seconds; work is in reference seconds a
second. State: at most `MOST` spikes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

HOUR_S, DAY_S = 3_600.0, 86_400.0
TOLERANCE_S = 30.0
MOST = 256
_QUIET_S = 30.0  # without a sign, before the next one is another spike
_LONGEST_S = 900.0
_MIN_PERIOD_S = 120.0
_LOOKED_AT = 3
_NEEDED = 2
_HEIGHTS = 8  # periods whose heights count


@dataclass(slots=True)
class Episode:
    """A spike that was seen."""

    onset: float
    last: float  # its latest sign
    height: float  # its greatest rate over the plan's


@dataclass(frozen=True, slots=True)
class Expected:
    """A spike that is expected."""

    at: float  # when it is likely to begin
    height: float  # as a multiple of the plan


class RecurringSpikes:
    """Of one model. season_s: another period than an hour and a day, 0: there is none."""

    def __init__(self, season_s: float = 0.0) -> None:
        self._season_s = season_s
        self._episodes: list[Episode] = []
        self._expected: list[Expected] = []
        self._open: Episode | None = None

    def adopt(self, season_s: float) -> None:
        """Counts from the next spike on."""
        self._season_s = season_s

    @property
    def _periods(self) -> set[float]:
        return {HOUR_S, DAY_S, *([self._season_s] if self._season_s > _MIN_PERIOD_S else [])}

    def seen(self, rate: float, planned: float, now: float) -> None:
        """Take whether this decision saw a spike: its rate, or 0.0."""
        current = self._open
        if rate > 0.0 and planned > 0.0:
            height = rate / planned
            if current is None:
                self._open = Episode(now, now, height)
            else:
                current.last, current.height = now, max(current.height, height)
        elif current is not None and now - current.last > _QUIET_S:
            self._close(current, now)

    def expected(self, lead_s: float, now: float) -> float:
        """The multiple of the plan that is wanted now, if replicas must be ordered `lead_s` before
        a spike; 0.0: none is expected."""
        while self._expected and self._expected[0].at + TOLERANCE_S < now:
            self._expected.pop(0)
        height = 0.0
        for each in self._expected:
            if each.at - TOLERANCE_S - lead_s > now:
                break
            height = max(height, each.height)
        return height

    def _close(self, episode: Episode, now: float) -> None:
        """End a spike. One that lasted longer than a quarter of an hour was demand, not a spike."""
        self._open = None
        if episode.last - episode.onset <= _LONGEST_S:
            self._episodes.append(episode)
            del self._episodes[:-MOST]
        self._expect(now)

    def _expect(self, now: float) -> None:
        """Compute the expected spikes again, sorted by time."""
        onsets = [each.onset for each in self._episodes]
        found: list[Expected] = []
        for period_s in self._periods:
            for episode in self._episodes:
                for ahead in (1, 2):
                    at = episode.onset + ahead * period_s
                    if now < at + TOLERANCE_S:
                        found += self._supported(at, period_s, onsets)
        self._expected = sorted(found, key=lambda each: each.at)

    def _supported(self, at: float, period_s: float, onsets: list[float]) -> list[Expected]:
        """One, if enough spikes came at that time of the last periods."""
        heights = [self._height(at - n * period_s, onsets) for n in range(1, _HEIGHTS + 1)]
        if sum(height > 0.0 for height in heights[:_LOOKED_AT]) < _NEEDED:
            return []
        return [Expected(at, max(heights))]

    def _height(self, at: float, onsets: list[float]) -> float:
        """The height of the highest spike that began then; 0.0: none did."""
        place, height = bisect_left(onsets, at - TOLERANCE_S), 0.0
        while place < len(onsets) and onsets[place] <= at + TOLERANCE_S:
            height = max(height, self._episodes[place].height)
            place += 1
        return height

    # -- state for a successor

    def save(self, now: float) -> dict[str, Any]:
        kept = [*self._episodes, *([self._open] if self._open else [])]
        return {
            "episodes": [
                [now - e.onset, now - e.last, float(f"{e.height:.4g}")] for e in kept
            ]
        }  # fmt: skip

    def load(self, state: dict[str, Any], now: float) -> None:
        """Take over a saved state. Raises KeyError, TypeError or ValueError if it is none."""
        self._open = None
        self._episodes = [
            Episode(now - float(onset), now - float(last), float(height))
            for onset, last, height in state["episodes"]
        ]
        self._expect(now)
