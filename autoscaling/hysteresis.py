"""When does a group's number follow what is wanted?

Up at once, for a spike or where a little less work would need more too. Down only to the largest
number that plans wanted over a window, when a little more work would be held by fewer, in steps,
with a pause after each change, and never while something starts or a spike holds. So demand that
scatters around a boundary changes nothing (the dead band), and a start that takes long is never
undone by a lull that is shorter (kserve#1247). What a spike added above that follows the largest
number that the spike wanted over `hold_s`: held for the window, short bursts would cost a quarter
of all replica hours and serve nothing. Where it had gone when the next spike came, within a quarter
of an hour, the next one's stays for one and a half times what lay between them: bursts that follow
each other find it there. Counts are replicas of one group; times are seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from autoscaling.settings import PolicySettings

FIRM, RELAXED = 0.95, 1.1
"""Of the planned work: what must need more before there are more; what fewer must hold."""
_LEAST_WINDOW_S = 600.0
_LEAST_PAUSE_S = 60.0
_LEAST_FALL = 0.25  # of the target, while a spike is not over
_LONGEST_GAP_S, _GAPS_HELD = 900.0, 1.5


@dataclass(frozen=True, slots=True)
class Wants:
    """Of one group. planned: for the work as planned; firm: for a little less; relaxed: for a
    little more, which fewer replicas must hold before one goes; spike: for a spike's work, 0: there
    is none."""

    planned: int
    firm: int
    relaxed: int
    spike: int = 0

    @property
    def now(self) -> int:
        return max(self.planned, self.spike)


@dataclass(frozen=True, slots=True)
class Terms:
    """down_window_s: over which the largest want of plans holds; hold_s: that of spikes; pause_s:
    after a change before fewer; down_step: largest share that goes at once."""

    down_window_s: float
    pause_s: float
    down_step: float
    hold_s: float

    @classmethod
    def of(cls, settings: PolicySettings, time_to_capacity_s: float) -> Terms:
        window_s = settings.down_window_s
        if window_s is None:
            window_s = max(_LEAST_WINDOW_S, 4.0 * time_to_capacity_s)
        pause_s = max(min(_LEAST_PAUSE_S, window_s), 2.0 * time_to_capacity_s)
        return cls(window_s, pause_s, settings.down_step, settings.hold_s)


class Peaks:
    """The largest number over a sliding window, kept as those that no later one exceeds."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def most(self) -> int:
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
    """Of one group. in_spike: the target is above what plans wanted, because of a spike. gap_s:
    between the latest two spikes, where what the first had ordered was gone at the second."""

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
        """Longer where spikes followed each other: what one ordered is there for the next."""
        if self.gap_s is None or self.gap_s > _LONGEST_GAP_S:
            return terms.hold_s
        return max(terms.hold_s, _GAPS_HELD * self.gap_s)

    def up(self, target: int, wants: Wants, now: float) -> int:
        """The target, raised where that is due."""
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
        """The target, lowered where that is due. Nobody may be starting; where a spike holds, only
        what it added may go."""
        peak = max(self._plans.most, wants.planned)
        if self.in_spike:
            self.in_spike = self._spikes.most > 0
            floor = max(peak, self._spikes.most if self.in_spike else wants.relaxed)
            if self.in_spike and target - floor < max(2, _LEAST_FALL * target):
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
