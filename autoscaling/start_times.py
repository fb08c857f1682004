"""How long does a replica of this model take from its order until it serves? Seconds.

Keeps the last `_KEPT` measured starts for each state in which they began. The time to capacity is
the 90th percentile of starts from the state in which the latest one began (the next will probably
begin there too), plus the time that a decision takes to reach the cluster.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from autoscaling.types import StartReading, State

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
