"""How much slower than its model's fit is each replica, just now?

Two speeds. What is ordinary noise moves a replica's pace slowly (EWMA). A replica that turns slow,
or well again, is followed at its second such batch: once the median of its last three batches is
off by more than noise explains, the pace is that median. So one hiccup, however long, moves it by
a few percent only. The pool's pace is where its replicas are, an odd one counting little; a new
replica is taken to be like the pool. Logarithms throughout, so that half and double weigh alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

_GAIN = 0.05
_FIRST_GAIN = 0.25
_POOL_GAIN = 0.3  # for a round of the pool
_ODD = 0.5  # how far from the pool a replica counts in full, log


@dataclass(slots=True)
class _Pace:
    log: float
    factor: float
    before: tuple[float, float]  # the two batches before, log
    gain: float = _FIRST_GAIN


class Paces:
    """Factors on the fit's seconds by replica, 1 while nothing is known."""

    def __init__(self) -> None:
        self._paces: dict[str, _Pace] = {}
        self._pool_log = 0.0
        self.pool = 1.0

    def of(self, replica_id: str) -> float:
        pace = self._paces.get(replica_id)
        return self.pool if pace is None else pace.factor

    def ratio(self, replica_id: str) -> float:
        """To the pool; 1.0 for one that has not been measured."""
        return self.of(replica_id) / self.pool

    def follow(self, replica_id: str, off: float, noise: float) -> None:
        """A batch took e^`off` times the fit's seconds; beyond `noise` (log) it is no noise."""
        pace = self._paces.get(replica_id)
        if pace is None:
            start = self._pool_log
            pace = self._paces[replica_id] = _Pace(start, exp(start), (start, start))
        log, (older, old) = pace.log, pace.before
        middle = max(min(older, old), min(max(older, old), off))
        if abs(middle - log) > noise:
            log, pace.gain = middle, _FIRST_GAIN
        else:
            log += pace.gain * max(-noise, min(noise, off - log))
            pace.gain = max(_GAIN, pace.gain / (1.0 + pace.gain))
        pace.log, pace.factor, pace.before = log, exp(log), (old, off)
        step = max(-_ODD, min(_ODD, log - self._pool_log))
        self._pool_log += _POOL_GAIN / len(self._paces) * step
        self.pool = exp(self._pool_log)

    def forget(self, replica_id: str) -> None:
        self._paces.pop(replica_id, None)
