"""What is known of one model's replicas: how many serve, start or wait, how long do starts take?

Keeps readings and adds them up; decides nothing. Times are seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from autoscaling.demand import FRESH_S
from autoscaling.settings import GroupTerms
from autoscaling.types import GroupReading, StartReading, State


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

    def speed_above(self, length: int, groups: Iterable[GroupTerms]) -> float:
        """The same of those that take rows longer than this."""
        found = [self.readings.get(each.name) for each in groups if each.takes_above(length)]
        return sum([each.hot * max(0.0, each.speed) for each in found if each is not None])

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


UNMEASURED_S = 30.0
DECISION_S = 2.0
_KEPT = 32
_MAX_S = 86_400.0


@dataclass(frozen=True, slots=True)
class LadderStep:
    """The starts from one state."""

    median_s: float
    p90_s: float
    seen: int  # number of starts
    phases: tuple[tuple[str, float], ...]  # of the latest one: (name, seconds)


class StartTimes:
    """The start times of one model. phases: of the latest start, by the state it began in."""

    def __init__(self) -> None:
        self.phases: dict[State, tuple[tuple[str, float], ...]] = {}
        self._seconds: dict[State, deque[float]] = {}
        self._latest: State | None = None
        self._likely_s = UNMEASURED_S

    def add(self, reading: StartReading) -> None:
        """Take a start. One that is not between 0 s and a day is ignored."""
        if not 0.0 <= reading.seconds <= _MAX_S:
            return
        kept = self._seconds.setdefault(reading.began_in, deque(maxlen=_KEPT))
        kept.append(reading.seconds)
        self.phases[reading.began_in] = reading.phases
        self._latest = reading.began_in
        self._likely_s = self.quantile_s(self._latest, 0.9)

    def time_to_capacity_s(self) -> float:
        """90th percentile of the likely state, the decision's way included."""
        return self._likely_s + DECISION_S

    def quantile_s(self, state: State, q: float) -> float:
        """From an order to hot; `UNMEASURED_S` before any start from that state was seen."""
        kept = self._seconds.get(state)
        if not kept:
            return UNMEASURED_S
        ordered = sorted(kept)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]

    def ladder(self) -> dict[State, LadderStep]:
        """Of every state that a start was seen from."""
        return {
            state: LadderStep(
                self.quantile_s(state, 0.5), self.quantile_s(state, 0.9), len(kept),
                self.phases.get(state, ()),
            )
            for state, kept in self._seconds.items()
        }  # fmt: skip

    def save(self) -> dict[str, Any]:
        return {
            "seconds": {state.value: list(kept) for state, kept in self._seconds.items()},
            "phases": {state.value: [list(p) for p in ps] for state, ps in self.phases.items()},
            "latest": self._latest.value if self._latest else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        for name, kept in state["seconds"].items():
            self._seconds[State(name)] = deque(kept, maxlen=_KEPT)
        for name, phases in state["phases"].items():
            self.phases[State(name)] = tuple((phase, seconds) for phase, seconds in phases)
        if state["latest"]:
            self._latest = State(state["latest"])
            self._likely_s = self.quantile_s(self._latest, 0.9)
