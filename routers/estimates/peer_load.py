"""How much of the replicas do other gateways take?

The answers of a replica say what it has served for other gateways since its last answer. Averaged
for each replica over about `_WINDOW_S`. Unit: reference seconds a second, so a replica that works
for others alone counts as its group's speed. A replica's first report is ignored: nobody knows what
time it covers. While a replica is not heard of, its last average stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, inf
from typing import Final

_WINDOW_S: Final = 5.0
_SHORT_S: Final = 1e-6  # a report that covers less counts as one of a moment


@dataclass(slots=True)
class _Told:
    at: float
    rate: float = 0.0


class PeerLoad:
    """What other gateways take of one model's replicas."""

    def __init__(self) -> None:
        self.rate = 0.0  # of all replicas, reference seconds a second
        self._told: dict[str, _Told] = {}

    def report(self, replica_id: str, work_s: float, now: float, *, most: float = inf) -> None:
        """Since its last report the replica has served so much for others, of `most` a second that
        it can do: a report may cover work that was charged when it began."""
        told = self._told.get(replica_id)
        if told is None:
            self._told[replica_id] = _Told(now)
            return
        span_s, told.at = now - told.at, now
        if not (work_s or told.rate):
            return  # always so where there is one gateway
        new = -expm1(-span_s / _WINDOW_S)  # the weight of this report
        gain = new / span_s if span_s > _SHORT_S else 1.0 / _WINDOW_S
        change = min(gain * work_s - new * told.rate, most - told.rate)
        told.rate += change
        self.rate = max(0.0, self.rate + change)

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        told = self._told.pop(replica_id, None)
        if told is not None:
            self.rate = max(0.0, self.rate - told.rate)
