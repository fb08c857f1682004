"""Which replicas are so much slower than their peers that they had better not be used?

A replica whose ratio of measured to predicted seconds (of the cost model, so neither batch sizes
nor lengths matter) exceeds the median of its group by `eject_ratio` is ejected, but only up to a
limited share of its group. An ejected replica is probed with a copy of a batch that is served
elsewhere, so that no caller waits for it, at intervals that double while it stays slow. It is
readmitted as soon as its ratio is good again. Two slow answers in a row do not eject. While
learning is frozen, no replica is ejected, probed or readmitted.

`routers.shared.replica_watch` keeps which replicas are ejected and when each is probed. Source:
outlier detection as in Envoy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from routers.api.settings import OutlierParameters
from routers.estimates.groups import ReplicaGroup
from routers.state.replica_state import ReplicaState

_STREAK = 3  # slow answers in a row, before which no replica is ejected
_MIN_REFRESH = 8  # answers for which a median is used, at least, before it is computed again


class Verdict(Enum):
    """What follows from an answer. `PROBE`: the replica stays ejected and is to be probed again."""

    AS_BEFORE = "as before"
    EJECT = "eject"
    READMIT = "readmit"
    PROBE = "probe"


@dataclass(slots=True)
class _Peers:
    """A group's median ratio, and for how many more answers (`fresh`) it is used."""

    median: float = 1.0
    fresh: int = 0


@dataclass(slots=True)
class _Record:
    """One replica: slow answers in a row, and seconds between its probes."""

    streak: int = 0
    probe_every_s: float = 0.0


class Outliers:
    """What is known of each replica and group from the answers that were judged."""

    def __init__(self, settings: OutlierParameters) -> None:
        self.settings = settings
        self.frozen = False
        self._peers: dict[ReplicaGroup, _Peers] = {}
        self._records: dict[ReplicaState, _Record] = {}

    def judge(self, replica: ReplicaState, ratio: float, pool: Iterable[ReplicaState]) -> Verdict:
        """The verdict on a replica that has answered. `ratio`: that answer's seconds over its
        group's prediction. `pool`: all replicas; it is compared with those of its group."""
        if self.frozen or replica.draining:
            return Verdict.AS_BEFORE
        record = self._record(replica)
        slow = self._is_slow(replica, ratio, pool)
        record.streak = record.streak + 1 if slow else 0
        if replica.ejected:
            return self._judge_probe(replica, record, slow, pool)
        if record.streak < _STREAK or not self._is_slow(replica, replica.slowdown, pool):
            return Verdict.AS_BEFORE
        group = [each for each in pool if each.group is replica.group]
        running = sum(not each.draining for each in group)
        ejected = sum(each.ejected for each in group)
        may_eject = ejected + 1 <= self.settings.max_ejected * running
        return Verdict.EJECT if may_eject else Verdict.AS_BEFORE

    def _judge_probe(
        self, replica: ReplicaState, record: _Record, slow: bool, pool: Iterable[ReplicaState]
    ) -> Verdict:
        settings = self.settings
        if not slow and not self._is_slow(replica, replica.slowdown, pool):
            return Verdict.READMIT
        doubled = min(settings.max_probe_s, 2.0 * record.probe_every_s)
        record.probe_every_s = doubled if slow else settings.probe_s
        return Verdict.PROBE

    def ejected(self, replica: ReplicaState) -> None:
        """The replica is ejected from now on, for this or another reason."""
        self._record(replica).probe_every_s = self.settings.probe_s

    def probe_every_s(self, replica: ReplicaState) -> float:
        """Seconds between two probes of a replica that is ejected."""
        return self._record(replica).probe_every_s

    def forget(self, replica: ReplicaState) -> None:
        """The replica is gone for good."""
        self._records.pop(replica, None)

    def _is_slow(self, replica: ReplicaState, ratio: float, pool: Iterable[ReplicaState]) -> bool:
        """Whether the ratio exceeds the median of the replica's group by `eject_ratio`. The median
        may be a few answers old."""
        group = replica.group
        peers = self._peers.get(group)
        if peers is None:
            peers = self._peers[group] = _Peers()
        peers.fresh -= 1
        if peers.fresh <= 0:
            running = [each for each in pool if each.group is group and not each.draining]
            ratios = sorted([each.slowdown for each in running])
            peers.median = ratios[(len(ratios) - 1) // 2] if ratios else 1.0
            peers.fresh = max(_MIN_REFRESH, len(ratios))
        return ratio > self.settings.eject_ratio * peers.median

    def _record(self, replica: ReplicaState) -> _Record:
        record = self._records.get(replica)
        if record is None:
            record = self._records[replica] = _Record()
        return record


def may_probe(replica: ReplicaState, now: float) -> bool:
    """Whether the replica can take a probe. A batch replica must hold nothing; a stream replica
    goes on with what it holds, and must have room."""
    if replica.draining or not replica.has_room() or replica.blocked_until > now:
        return False
    return replica.streams or not replica.leases
