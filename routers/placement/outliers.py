"""Which replicas are so much slower than their peers that they had better not be used?

One whose pace (the cost model's ratio, so neither batch sizes nor lengths matter) exceeds the
pool's median by `eject_ratio` is ejected, a limited share of the pool at most. It is probed: it
gets a copy of a batch that is served elsewhere, so that nobody waits for it, at intervals that
double while it stays slow, and is back as soon as its pace is good again. Two slow answers in a row
do not eject. While frozen nobody is ejected, probed or taken back. Source: outlier detection as in
Envoy.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from routers.replica_state import ReplicaState
from routers.settings import OutlierSettings

_STREAK = 3  # slow answers in a row, before which nobody is ejected
_LEAST_REFRESH = 8  # answers for which the median is used again, at least
_SLACK = 32


class Outliers:
    """`ejected`: how many there are. Holders are the pool's, `healthy` counts are its own."""

    def __init__(self, settings: OutlierSettings) -> None:
        self.settings = settings
        self.frozen = False
        self.ejected = 0
        self._median = 1.0
        self._fresh = 0
        self._probes: list[tuple[float, int, ReplicaState]] = []
        self._pushed = 0

    def judge(
        self, holder: ReplicaState, pace: float, pool: Iterable[ReplicaState], now: float
    ) -> None:
        """It has answered; `pace`: that answer's seconds over the pool's prediction."""
        if self.frozen or holder.draining:
            return
        slow = self._is_slow(pace, pool)
        holder.slow_streak = holder.slow_streak + 1 if slow else 0
        if holder.ejected:
            self._probed(holder, slow, pool, now)
        elif holder.slow_streak >= _STREAK and self._is_slow(holder.ratio, pool):
            running = sum(not each.draining for each in pool)
            if self.ejected + 1 <= self.settings.max_ejected * running:
                holder.ejected, holder.probe_every_s = True, self.settings.probe_s
                self.ejected += 1
                self._push(holder, now + self.settings.probe_s)

    def _probed(
        self, holder: ReplicaState, slow: bool, pool: Iterable[ReplicaState], now: float
    ) -> None:
        settings = self.settings
        if not slow and not self._is_slow(holder.ratio, pool):
            holder.ejected = False
            self.ejected -= 1
            return
        doubled = min(settings.max_probe_s, 2.0 * holder.probe_every_s)
        holder.probe_every_s = doubled if slow else settings.probe_s
        self._push(holder, now + holder.probe_every_s)

    def failed(self, holder: ReplicaState, now: float) -> None:
        """A probe brought no answer."""
        if holder.ejected:
            self._push(holder, now + holder.probe_every_s)

    def gone(self, holder: ReplicaState) -> None:
        if holder.ejected:
            holder.ejected = False
            self.ejected -= 1

    def to_probe(self, now: float) -> ReplicaState | None:
        """An ejected replica whose probe is due and that holds nothing."""
        probes = self._probes
        while probes and probes[0][0] <= now and not self.frozen:
            at, _, holder = probes[0]
            if holder.probe_at != at or not holder.ejected:
                heappop(probes)
                continue
            if _is_taken(holder, now):
                heappop(probes)
                self._push(holder, now + holder.probe_every_s)
                continue
            return holder
        return None

    def sent_probe(self, holder: ReplicaState) -> None:
        """Whatever becomes of it: `judge` or `failed` says when the next one is due."""
        holder.probe_at = None

    def _push(self, holder: ReplicaState, at: float) -> None:
        holder.probe_at = at
        self._pushed += 1
        heappush(self._probes, (at, self._pushed, holder))
        if len(self._probes) > 2 * self.ejected + _SLACK:
            self._probes = [e for e in self._probes if e[2].ejected and e[2].probe_at == e[0]]
            heapify(self._probes)

    def _is_slow(self, pace: float, pool: Iterable[ReplicaState]) -> bool:
        """Slower than the pool's median by the ratio; the median is a little old at times."""
        self._fresh -= 1
        if self._fresh <= 0:
            paces = sorted(each.ratio for each in pool if not each.draining)
            self._median = paces[(len(paces) - 1) // 2] if paces else 1.0
            self._fresh = max(_LEAST_REFRESH, len(paces))
        return pace > self.settings.eject_ratio * self._median


def _is_taken(holder: ReplicaState, now: float) -> bool:
    gone = holder.draining or not holder.has_room()
    return gone or bool(holder.leases) or holder.blocked_until > now
