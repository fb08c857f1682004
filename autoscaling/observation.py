"""The last known replicas of one model, by group: how many serve, start, or wait for a node.

Keeps readings and adds them up; decides nothing. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Container

from autoscaling.demand import FRESH_S
from autoscaling.types import GroupReading


class Observation:
    """The last reading of each group of one model (`readings`)."""

    def __init__(self) -> None:
        self.readings: dict[str, GroupReading] = {}
        self._at: float | None = None
        self._starting_since: dict[str, float] = {}

    def take(self, groups: tuple[GroupReading, ...], names: Container[str], now: float) -> None:
        """Take the readings of the groups in `names`, and ignore others."""
        self.readings = {each.name: each for each in groups if each.name in names}
        self._at = now
        self._starting_since = {
            name: self._starting_since.get(name, now)
            for name, each in self.readings.items()
            if each.starting
        }

    def keep(self, names: Container[str]) -> None:
        self.readings = {name: each for name, each in self.readings.items() if name in names}

    def start_s(self, group: str, now: float) -> float:
        """For how long some replica of the group has been starting."""
        return now - self._starting_since.get(group, now)

    def is_stale(self, now: float) -> bool:
        return self._at is None or now - self._at > FRESH_S

    @property
    def hot(self) -> int:
        return sum([each.hot for each in self.readings.values()])

    @property
    def speed(self) -> float:
        """Work a second that the hot replicas can do."""
        return sum([each.hot * max(0.0, each.speed) for each in self.readings.values()])

    def slack_s(self, slo_s: float, group: str) -> float:
        """Seconds of the SLO that may be spent waiting: all but the group's p99 batch time."""
        reading = self.readings.get(group)
        return max(0.0, slo_s - reading.batch_p99_s) if reading else slo_s

    def is_unplaced(self, group: str, limit_s: float) -> bool:
        """Whether a replica of the group has waited for a node for longer than `limit_s`."""
        reading = self.readings.get(group)
        return reading is not None and reading.unplaced_s > limit_s

    def longest_unplaced(self, limit_s: float) -> GroupReading | None:
        """The group whose replica has waited longest for a node, if longer than `limit_s`."""
        longest = max(self.readings.values(), key=lambda each: each.unplaced_s, default=None)
        return longest if longest is not None and longest.unplaced_s > limit_s else None
