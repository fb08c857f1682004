"""When does a group's number follow what is wanted?

Up at once, for a spike or where a little less work would need more too. Down only to the largest
number that plans wanted over a window, when a little more work would be held by fewer, in steps,
with a pause after each change, and never while something starts or a spike holds. So demand that
scatters around a boundary changes nothing (the dead band), and a start that takes long is never
undone by a lull that is shorter (kserve#1247). What a spike added above that goes at once when the
spike's hold is over: held for the window, short bursts would cost a quarter of all replica hours
and serve nothing. Counts are replicas of one group; times are seconds.
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
    """down_window_s: over which the largest want holds; pause_s: after a change before fewer;
    down_step: largest share that goes at once."""

    down_window_s: float
    pause_s: float
    down_step: float

    @classmethod
    def of(cls, settings: PolicySettings, time_to_capacity_s: float) -> Terms:
        window_s = settings.down_window_s
        if window_s is None:
            window_s = max(_LEAST_WINDOW_S, 4.0 * time_to_capacity_s)
        pause_s = max(min(_LEAST_PAUSE_S, window_s), 2.0 * time_to_capacity_s)
        return cls(window_s, pause_s, settings.down_step)


class Hysteresis:
    """Of one group. The window's maximum is kept as the wants that no later one exceeds. in_spike:
    the target is above what plans wanted, because of a spike."""

    def __init__(self, now: float) -> None:
        self.since = self.changed_at = now
        self.in_spike = False
        self._peaks: deque[tuple[float, int]] = deque()

    def record(self, want: int, window_s: float, now: float) -> None:
        """What the plan wants."""
        while self._peaks and self._peaks[-1][1] <= want:
            self._peaks.pop()
        self._peaks.append((now, want))
        while self._peaks[0][0] < now - window_s:
            self._peaks.popleft()

    def up(self, target: int, wants: Wants) -> int:
        """The target, raised where that is due."""
        if wants.spike > target and wants.spike >= wants.planned:
            self.in_spike = True
            return wants.spike
        if wants.firm > target:
            return wants.planned
        return target

    def down(self, target: int, wants: Wants, terms: Terms, now: float) -> int:
        """The target, lowered where that is due. Nobody may be starting and no spike may hold."""
        peak = max(self._peaks[0][1] if self._peaks else 0, wants.now)
        if peak >= target or wants.relaxed >= target:
            self.in_spike = False
            return target
        if self.in_spike:
            self.in_spike = False
            return max(peak, wants.relaxed)
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
            "peaks": [[now - at, want] for at, want in self._peaks],
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        self.since = now - state["since"]
        self.changed_at = now - state["changed"]
        self.in_spike = bool(state["in_spike"])
        self._peaks = deque((now - age, int(want)) for age, want in state["peaks"])
