"""How long does a replica of this model take from the order until it serves?

Measured starts, by the state that they began in; the last `_KEPT` of each. The time to capacity is
their 90th percentile in the state that the latest one began in, since the next is likely to begin
there too, and what the decision takes to reach the cluster. Seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from autoscaling.types import StartReading, State

UNMEASURED_S = 30.0
DECISION_S = 2.0
_KEPT = 32
_MOST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class LadderStep:
    """Starts from one state: median and 90th percentile of their seconds, how many are known, and
    the phases of the latest."""

    median_s: float
    p90_s: float
    seen: int
    phases: tuple[tuple[str, float], ...]


class StartTimes:
    """Of one model. phases: of its latest start, by the state it began in."""

    def __init__(self) -> None:
        self.phases: dict[State, tuple[tuple[str, float], ...]] = {}
        self._seconds: dict[State, deque[float]] = {}
        self._latest: State | None = None

    def add(self, reading: StartReading) -> None:
        """What is no number of seconds up to a day is left out."""
        if not 0.0 <= reading.seconds <= _MOST_S:
            return
        kept = self._seconds.setdefault(reading.began_in, deque(maxlen=_KEPT))
        kept.append(reading.seconds)
        self.phases[reading.began_in] = reading.phases
        self._latest = reading.began_in

    def time_to_capacity_s(self) -> float:
        """90th percentile of the likely state, the decision's way included."""
        if self._latest is None:
            return UNMEASURED_S + DECISION_S
        return self.quantile_s(self._latest, 0.9) + DECISION_S

    def quantile_s(self, state: State, q: float) -> float:
        """From an order to hot; `UNMEASURED_S` before any start from that state was seen."""
        kept = self._seconds.get(state)
        if not kept:
            return UNMEASURED_S
        ordered = sorted(kept)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]

    def count(self, state: State) -> int:
        return len(self._seconds.get(state, ()))

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
        self._latest = State(state["latest"]) if state["latest"] else None
