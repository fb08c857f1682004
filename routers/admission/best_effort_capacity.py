"""May another late request wait, or is there no idle moment left that could serve it?

Room for late work is half of what idle moments could serve before it expires: the share of the
replicas' time that on-time work has lately left, times the time the newcomer has, times the
replicas. A system that has just started, or idles, has all of it; in lasting overload on-time work
takes all the time, the room closes, and a newcomer that would be late is refused at once instead of
expiring slowly. It cannot latch: what opens it is time that passes without on-time work. It says
nothing of who is late, and a device that hangs counts as idle: what waits for that one is bounded
by `max_late_rows` and expires.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.admission.verdicts import Verdicts
from routers.pace import Pace
from routers.settings import Mode

_SHARE = 0.5
_NOISE = 0.02  # so little is no idle time, but the ripple of the average


@dataclass(slots=True)
class LateRoom:
    """`window_s` should span several batches. `fixed_s`: this much room, nothing is learnt."""

    verdicts: Verdicts = field(default_factory=lambda: Verdicts(Mode.ENFORCE))
    window_s: float = 2.0
    fixed_s: float | None = None
    frozen: bool = False
    _on_time: Pace = field(init=False)

    def __post_init__(self) -> None:
        self._on_time = Pace(self.window_s)

    def worked(self, seconds: float, now: float) -> None:
        """On-time rows had a replica for so long, here or, as far as is known, for other gateways:
        from dispatch, or the end of the lease before it, to the answer; of a mixed batch their
        share of the charge."""
        if not self.frozen:
            self._on_time.add(seconds, now)

    def refuses(self, late_s: float, time_left_s: float, replicas: int, now: float) -> bool:
        """late_s: predicted device seconds of late work that would wait, the newcomer's too."""
        if self.verdicts.off or late_s <= self.room_s(time_left_s, replicas, now):
            return False
        return self.verdicts.no()

    def ends(self, late_s: float, time_left_s: float, replicas: int, now: float) -> bool:
        """Whether all idle moments together could not serve what waits late: for one whose deadline
        has passed; a newcomer may count on half of them."""
        return self.refuses(_SHARE * late_s, time_left_s, replicas, now)

    def room_s(self, time_left_s: float, replicas: int, now: float) -> float:
        """Predicted device seconds of late work that may wait."""
        if self.fixed_s is not None:
            return self.fixed_s
        return _SHARE * self.spare(replicas, now) * time_left_s * max(1, replicas)

    def spare(self, replicas: int, now: float) -> float:
        """Share of the replicas' time that on-time work leaves, 0 to 1."""
        taken = self._on_time.value if self.frozen else self._on_time.read(now)
        left = 1.0 - taken / max(1, replicas)
        return max(0.0, left - _NOISE) / (1.0 - _NOISE)

    def tune(self, mode: Mode, window_s: float, *, frozen: bool) -> None:
        """Other settings; what was learnt stays."""
        self.verdicts.tune(mode)
        self._on_time.window_s, self.frozen = window_s, frozen
