"""What runs of one model, as it was last said: replicas by group, what they do, what waits for a
place. Remembers and adds up; decides nothing."""

from __future__ import annotations

from collections.abc import Container

from autoscaling.demand import FRESH_S
from autoscaling.types import GroupReading


class Observation:
    """readings: by group. start_s: for how long some replica of a group has been starting."""

    def __init__(self) -> None:
        self.readings: dict[str, GroupReading] = {}
        self._at: float | None = None
        self._starting_since: dict[str, float] = {}

    def take(self, groups: tuple[GroupReading, ...], names: Container[str], now: float) -> None:
        """What is said of a group that the names do not hold is left out."""
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
        return now - self._starting_since.get(group, now)

    def is_stale(self, now: float) -> bool:
        return self._at is None or now - self._at > FRESH_S

    @property
    def hot(self) -> int:
        return sum([each.hot for each in self.readings.values()])

    @property
    def speed(self) -> float:
        """Work a second that the hot replicas do."""
        return sum([each.hot * max(0.0, each.speed) for each in self.readings.values()])

    def slack_s(self, slo_s: float, group: str) -> float:
        """Of the SLO beside the service of that group's batch."""
        reading = self.readings.get(group)
        return max(0.0, slo_s - reading.batch_p99_s) if reading else slo_s

    def is_unplaced(self, group: str, limit_s: float) -> bool:
        """Whether one has waited for a place for longer than that."""
        reading = self.readings.get(group)
        return reading is not None and reading.unplaced_s > limit_s

    def longest_unplaced(self, limit_s: float) -> GroupReading | None:
        """The group of the one that has waited longest, where that is longer than the limit."""
        longest = max(self.readings.values(), key=lambda each: each.unplaced_s, default=None)
        return longest if longest is not None and longest.unplaced_s > limit_s else None
