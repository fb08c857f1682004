"""Which replicas are so much slower than their peers that they had better not be used?

One whose ratio (the cost model's ratio, so neither batch sizes nor lengths matter) exceeds the
median of its group by `eject_ratio` is ejected, a limited share of the group at most. It is probed:
it gets a copy of a batch that is served elsewhere, so that nobody waits for it, at intervals that
double while it stays slow, and is back as soon as its ratio is good again. Two slow answers in a
row do not eject. While frozen nobody is ejected, probed or taken back. Source: outlier detection as
in Envoy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from routers.api.settings import OutlierParameters
from routers.estimates.groups import ReplicaGroup
from routers.state.replica_state import ReplicaState

_STREAK = 3  # slow answers in a row, before which nobody is ejected
_LEAST_REFRESH = 8  # answers for which the median is used again, at least
_SLACK = 32


@dataclass(slots=True)
class _Peers:
    """A group's median ratio, for how many more answers it is used, how many are ejected, and when
    each of these is probed."""

    median: float = 1.0
    fresh: int = 0
    ejected: int = 0
    probes: list[tuple[float, int, ReplicaState]] = field(default_factory=list)


class Outliers:
    """`ejected`: how many there are. Replicas are the pool's, `healthy` counts are its own."""

    def __init__(self, settings: OutlierParameters) -> None:
        self.settings = settings
        self.frozen = False
        self.ejected = 0
        self._peers: dict[ReplicaGroup, _Peers] = {}
        self._pushed = 0

    def judge(
        self, replica: ReplicaState, ratio: float, pool: Iterable[ReplicaState], now: float
    ) -> None:
        """It has answered; `ratio`: that answer's seconds over its group's prediction. `pool`: all
        replicas; compared with are those of its group."""
        if self.frozen or replica.draining:
            return
        slow = self._is_slow(replica, ratio, pool)
        replica.slow_streak = replica.slow_streak + 1 if slow else 0
        if replica.ejected:
            self._probed(replica, slow, pool, now)
        elif replica.slow_streak >= _STREAK and self._is_slow(replica, replica.slowdown, pool):
            running, peers = len(_peers(replica, pool)), self._of(replica.group)
            if peers.ejected + 1 <= self.settings.max_ejected * running:
                self.eject(replica, now)

    def _probed(
        self, replica: ReplicaState, slow: bool, pool: Iterable[ReplicaState], now: float
    ) -> None:
        settings = self.settings
        if not slow and not self._is_slow(replica, replica.slowdown, pool):
            self.gone(replica)
            return
        doubled = min(settings.max_probe_s, 2.0 * replica.probe_every_s)
        replica.probe_every_s = doubled if slow else settings.probe_s
        self._push(replica, now + replica.probe_every_s)

    def eject(self, replica: ReplicaState, now: float) -> None:
        """It has stopped answering, whatever its ratio was: a probe brings it back. Not while
        frozen."""
        if not (replica.ejected or self.frozen):
            replica.ejected, replica.probe_every_s = True, self.settings.probe_s
            self.ejected += 1
            self._of(replica.group).ejected += 1
            self._push(replica, now + self.settings.probe_s)

    def failed(self, replica: ReplicaState, now: float) -> None:
        """A probe brought no answer."""
        if replica.ejected:
            self._push(replica, now + replica.probe_every_s)

    def gone(self, replica: ReplicaState) -> None:
        if replica.ejected:
            replica.ejected = False
            self.ejected -= 1
            self._of(replica.group).ejected -= 1

    def to_probe(self, group: ReplicaGroup, now: float) -> ReplicaState | None:
        """An ejected replica of the group whose probe is due and that holds nothing; one that
        streams goes on with what it had begun, and has room."""
        probes = self._of(group).probes
        while probes and probes[0][0] <= now and not self.frozen:
            at, _, replica = probes[0]
            if replica.probe_at != at or not replica.ejected:
                heappop(probes)
                continue
            if _is_taken(replica, now):
                heappop(probes)
                self._push(replica, now + replica.probe_every_s)
                continue
            return replica
        return None

    def sent_probe(self, replica: ReplicaState) -> None:
        """Whatever becomes of it: `judge` or `failed` says when the next one is due."""
        replica.probe_at = None

    def _push(self, replica: ReplicaState, at: float) -> None:
        replica.probe_at = at
        self._pushed += 1
        peers = self._of(replica.group)
        heappush(peers.probes, (at, self._pushed, replica))
        if len(peers.probes) > 2 * peers.ejected + _SLACK:
            peers.probes = [e for e in peers.probes if e[2].ejected and e[2].probe_at == e[0]]
            heapify(peers.probes)

    def _is_slow(self, replica: ReplicaState, ratio: float, pool: Iterable[ReplicaState]) -> bool:
        """Slower than its group's median by the ratio; the median is a little old at times."""
        peers = self._of(replica.group)
        peers.fresh -= 1
        if peers.fresh <= 0:
            ratios = sorted(each.slowdown for each in _peers(replica, pool))
            peers.median = ratios[(len(ratios) - 1) // 2] if ratios else 1.0
            peers.fresh = max(_LEAST_REFRESH, len(ratios))
        return ratio > self.settings.eject_ratio * peers.median

    def _of(self, group: ReplicaGroup) -> _Peers:
        peers = self._peers.get(group)
        if peers is None:
            peers = self._peers[group] = _Peers()
        return peers


def _peers(replica: ReplicaState, pool: Iterable[ReplicaState]) -> list[ReplicaState]:
    """Those of its group that run."""
    group = replica.group
    return [each for each in pool if each.group is group and not each.draining]


def _is_taken(replica: ReplicaState, now: float) -> bool:
    gone = replica.draining or not replica.has_room()
    busy = bool(replica.leases) and not replica.streams
    return gone or busy or replica.blocked_until > now
