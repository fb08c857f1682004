"""When does a group's number of replicas follow the wanted number?

It grows at once for a spike, or if a little less work (`FIRM`) would need more replicas too. It
shrinks only to the largest number that plans wanted within a window, and only if fewer replicas
would also serve a little more work (`RELAXED`). It shrinks in steps, pauses after each change, and
never shrinks while a replica starts or a spike holds. So demand that scatters around a boundary
changes nothing, and a lull shorter than a replica's start does not undo growth (kserve#1247).

Replicas added for a spike go earlier: they follow the largest number that spikes wanted within
`hold_s`. Held for the whole window, short bursts would cost a quarter of all replica hours and
serve nothing. Counts are replicas of one group; times are seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from autoscaling.settings import PolicySettings

FIRM, RELAXED = 0.95, 1.1
"""Shares of the planned work: FIRM must need more replicas before any is added; fewer replicas must
be able to serve RELAXED before any is removed."""
_MIN_WINDOW_S = 600.0
_MIN_PAUSE_S = 60.0
_MIN_FALL = 0.25  # of the target, while a spike is not over
# If a spike's replicas were gone when the next spike came, at most `_LONGEST_GAP_S` later, those of
# the next spike stay for `_GAPS_HELD` times the time between both, so that repeated bursts find
# them there.
_LONGEST_GAP_S, _GAPS_HELD = 900.0, 1.5


@dataclass(frozen=True, slots=True)
class Wants:
    """The numbers of replicas of one group that different amounts of work want."""

    planned: int  # the planned work
    firm: int  # a little less
    relaxed: int  # a little more
    spike: int = 0  # a spike's work; 0: there is no spike

    @property
    def now(self) -> int:
        return max(self.planned, self.spike)


@dataclass(frozen=True, slots=True)
class Terms:
    """How slowly replicas are removed."""

    down_window_s: float  # the largest number that plans wanted within this time holds
    pause_s: float  # after a change, before any is removed
    down_step: float  # largest share that is removed at once
    hold_s: float  # the largest number that spikes wanted within this time holds

    @classmethod
    def of(cls, settings: PolicySettings, time_to_capacity_s: float) -> Terms:
        window_s = settings.down_window_s
        if window_s is None:
            window_s = max(_MIN_WINDOW_S, 4.0 * time_to_capacity_s)
        pause_s = max(min(_MIN_PAUSE_S, window_s), 2.0 * time_to_capacity_s)
        return cls(window_s, pause_s, settings.down_step, settings.hold_s)


class Peaks:
    """The maximum over a sliding window. Keeps only numbers that no later one exceeds."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def maximum(self) -> int:
        return self._kept[0][1] if self._kept else 0

    def add(self, number: int, window_s: float, now: float) -> None:
        while self._kept and self._kept[-1][1] <= number:
            self._kept.pop()
        self._kept.append((now, number))
        while self._kept[0][0] < now - window_s:
            self._kept.popleft()

    def save(self, now: float) -> list[list[float]]:
        return [[now - at, number] for at, number in self._kept]

    def load(self, state: list[list[float]], now: float) -> None:
        self._kept = deque((now - age, int(number)) for age, number in state)


class Hysteresis:
    """The hysteresis of one group.

    in_spike: a spike has raised the target above what plans wanted. gap_s: seconds between the last
    two spikes, if the first one's replicas were gone when the second began; else None.
    """

    def __init__(self, now: float) -> None:
        self.since = self.changed_at = now
        self.in_spike = False
        self.gap_s: float | None = None
        self._raised_at: float | None = None
        self._lowered = True
        self._plans = Peaks()
        self._spikes = Peaks()

    def record(self, wants: Wants, terms: Terms, now: float) -> None:
        self._plans.add(wants.planned, terms.down_window_s, now)
        self._spikes.add(wants.spike, self._hold_s(terms), now)

    def _hold_s(self, terms: Terms) -> float:
        """How long a spike's replicas stay; longer if spikes follow each other."""
        if self.gap_s is None or self.gap_s > _LONGEST_GAP_S:
            return terms.hold_s
        return max(terms.hold_s, _GAPS_HELD * self.gap_s)

    def up(self, target: int, wants: Wants, now: float) -> int:
        """The target, raised if that is due."""
        if wants.spike > target and wants.spike >= wants.planned:
            self.in_spike = True
            if self._lowered:
                self.gap_s = None if self._raised_at is None else now - self._raised_at
                self._raised_at, self._lowered = now, False
            return wants.spike
        if wants.firm > target:
            return wants.planned
        return target

    def down(self, target: int, wants: Wants, terms: Terms, now: float) -> int:
        """The target, lowered if that is due. The caller asks only while no replica starts, and
        while a spike holds only if the target is above plans because of it (`in_spike`)."""
        peak = max(self._plans.maximum, wants.planned)
        if self.in_spike:
            self.in_spike = self._spikes.maximum > 0
            floor = max(peak, self._spikes.maximum if self.in_spike else wants.relaxed)
            if self.in_spike and target - floor < max(2, _MIN_FALL * target):
                return target
            self._lowered = self._lowered or floor < target
            return min(target, floor)
        if peak >= target or wants.relaxed >= target:
            return target
        if now - self.changed_at < terms.pause_s or now - self.since < terms.down_window_s:
            return target
        step = max(1, int(target * terms.down_step))
        return max(peak, wants.relaxed, target - step)

    def changed(self, now: float) -> None:
        self.changed_at = now

    def save(self, now: float) -> dict[str, Any]:
        return {
            "since": now - self.since,
            "changed": now - self.changed_at,
            "in_spike": self.in_spike,
            "gap_s": self.gap_s,
            "raised": None if self._raised_at is None else now - self._raised_at,
            "lowered": self._lowered,
            "plans": self._plans.save(now),
            "spikes": self._spikes.save(now),
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        self.since = now - state["since"]
        self.changed_at = now - state["changed"]
        self.in_spike, self._lowered = bool(state["in_spike"]), bool(state["lowered"])
        self.gap_s, raised = state["gap_s"], state["raised"]
        self._raised_at = None if raised is None else now - raised
        self._plans.load(state["plans"], now)
        self._spikes.load(state["spikes"], now)
