"""Which replicas are so much slower than their peers that they had better not be used?

One whose ratio (the cost model's ratio, so neither batch sizes nor lengths matter) exceeds the
median of its group by `eject_ratio` is ejected, a limited share of the group at most. It is probed:
it gets a copy of a batch that is served elsewhere, so that nobody waits for it, at intervals that
double while it stays slow, and is back as soon as its ratio is good again. Two slow answers in a
row do not eject. While frozen nobody is ejected, probed or taken back. Who is ejected, and when
each is probed, `replica_watch` keeps. Source: outlier detection as in Envoy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from routers.api.settings import OutlierParameters
from routers.estimates.groups import ReplicaGroup
from routers.state.replica_state import ReplicaState

_STREAK = 3  # slow answers in a row, before which nobody is ejected
_LEAST_REFRESH = 8  # answers for which the median is used again, at least


class Verdict(Enum):
    """What follows from an answer. `PROBE`: it stays ejected and is to be probed again."""

    AS_BEFORE = "as before"
    EJECT = "eject"
    READMIT = "readmit"
    PROBE = "probe"


@dataclass(slots=True)
class _Peers:
    """A group's median ratio, and for how many more answers it is used."""

    median: float = 1.0
    fresh: int = 0


@dataclass(slots=True)
class _Record:
    """Of a replica: slow answers in a row, and seconds between its probes."""

    streak: int = 0
    probe_every_s: float = 0.0


class Outliers:
    """What is known of each replica and group, from the answers that it was told."""

    def __init__(self, settings: OutlierParameters) -> None:
        self.settings = settings
        self.frozen = False
        self._peers: dict[ReplicaGroup, _Peers] = {}
        self._records: dict[ReplicaState, _Record] = {}

    def judge(self, replica: ReplicaState, ratio: float, pool: Iterable[ReplicaState]) -> Verdict:
        """It has answered; `ratio`: that answer's seconds over its group's prediction. `pool`: all
        replicas; compared with are those of its group."""
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
        """It is from now on, for this or another reason."""
        self._record(replica).probe_every_s = self.settings.probe_s

    def probe_every_s(self, replica: ReplicaState) -> float:
        """Of one that is ejected."""
        return self._record(replica).probe_every_s

    def forget(self, replica: ReplicaState) -> None:
        """It is gone for good."""
        self._records.pop(replica, None)

    def _is_slow(self, replica: ReplicaState, ratio: float, pool: Iterable[ReplicaState]) -> bool:
        """Slower than its group's median by the ratio; the median is a little old at times."""
        group = replica.group
        peers = self._peers.get(group)
        if peers is None:
            peers = self._peers[group] = _Peers()
        peers.fresh -= 1
        if peers.fresh <= 0:
            running = [each for each in pool if each.group is group and not each.draining]
            ratios = sorted([each.slowdown for each in running])
            peers.median = ratios[(len(ratios) - 1) // 2] if ratios else 1.0
            peers.fresh = max(_LEAST_REFRESH, len(ratios))
        return ratio > self.settings.eject_ratio * peers.median

    def _record(self, replica: ReplicaState) -> _Record:
        record = self._records.get(replica)
        if record is None:
            record = self._records[replica] = _Record()
        return record


def may_probe(replica: ReplicaState, now: float) -> bool:
    """Whether it can take a probe: it holds nothing, or streams, goes on with what it had begun,
    and has room."""
    if replica.draining or not replica.has_room() or replica.blocked_until > now:
        return False
    return replica.streams or not replica.leases
