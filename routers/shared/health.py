"""Which replicas are silent or slow, when is each checked or probed, and what happens to its rows?

- A replica that owes work is *silent* once nothing was heard of it for about twice the 99th
  percentile of what such work takes, within bounds, since it began to owe or was last heard.
- A silent replica gets no new lease until it speaks; its rows are queued again, once. Rows with a
  copy on a replica that is not silent stay: the copy serves them.
- A replica that is so much slower than its peers is ejected and probed.
Two false alarms are excluded. If a look comes late, this gateway stood still, and first reads what
has come. While no other healthy replica runs, none is silent: the network or gateway is the
likelier fault. Source: phi accrual failure detector (SRDS'04).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Final, Generic, TypeVar

from routers.api.actions import Action
from routers.api.settings import OutlierParameters, SilenceParameters
from routers.estimates.groups import ReplicaGroup
from routers.shared.races import Races
from routers.shared.requests import RequestTable
from routers.state.leases import late_rows, withdraw
from routers.state.replica_state import EJECTED, SILENT, AnyLease, AnyReplica
from routers.state.replicas import ReplicaSet
from routers.state.rows import Row
from routers.state.timers import CheckTimes

FACTOR: Final = 2.0  # times the quantile
UNKNOWN_RATIO: Final = 4.0  # of a batch's seconds to its prediction, while too few were measured
_LONGEST: Final = 2.0  # times the prediction: the upper bound is never below this
_STALL_S: Final = 0.1  # a look that is this late was late because this process stood still
_STREAK: Final = 3  # slow answers in a row, before which no replica is ejected
_MIN_REFRESH: Final = 8  # answers for which a median is used, at least, before it is computed again

R = TypeVar("R", bound=AnyReplica)


class Silence(Generic[R]):
    """When each replica will have been silent for too long."""

    def __init__(self, settings: SilenceParameters, replicas: ReplicaSet[R]) -> None:
        self.settings = settings
        self._replicas = replicas

    @abstractmethod
    def is_worth_a_look(self, replica: R) -> bool:
        """Whether it is watched."""

    @abstractmethod
    def owed(self, replica: R) -> tuple[float, float, float] | None:
        """What it owes: (since when, predicted seconds, what it may take as a multiple of that);
        None: nothing whose time is known."""

    def first_look_at(self, replica: R, now: float) -> float:
        """The replica owes an answer from now on: when to look whether it is silent; inf: it is not
        watched."""
        at = self.silent_at(replica)
        return at if at == inf else max(at, now + _STALL_S)

    def look(self, replica: R, due_at: float, now: float) -> float:
        """When to look again; inf: not until it owes an answer again; `now`: it is silent.
        `due_at`: when this look was to be."""
        silent_at = inf if replica.reasons & SILENT else self.silent_at(replica)
        if silent_at > now:
            return silent_at
        has_stalled = now - due_at >= _STALL_S
        return now + _STALL_S if has_stalled or not self._others_are_well(replica) else now

    def silent_at(self, replica: R) -> float:
        """When it will have been silent for too long, as far as is known now; inf: it owes nothing
        whose time is known."""
        if self.settings.mode == "off":
            return inf
        owed = self.owed(replica)
        if owed is None:
            return inf
        since, predicted_s, ratio = owed
        settings = self.settings
        if settings.fixed_s is not None:
            patience_s = settings.fixed_s
        else:
            max_s = max(settings.most_s, _LONGEST * predicted_s)
            patience_s = min(max_s, max(settings.least_s, FACTOR * ratio * predicted_s))
        return max(since, replica.heard_at) + patience_s

    def _others_are_well(self, replica: R) -> bool:
        """Whether another healthy replica runs, which takes rows as long."""
        own = not (replica.unhealthy or replica.draining)
        groups, longest = self._replicas.groups.all(), replica.group.longest
        return sum([each.healthy for each in groups if each.longest >= longest]) > own


class SilenceWatch(Generic[R]):
    """The replicas that owe an answer, and when each is checked for silence. `Suspension` moves the
    work of a silent one."""

    def __init__(self, policy: Silence[R]) -> None:
        self.policy = policy
        self._check_times: CheckTimes[R] = CheckTimes()

    def watch(self, replica: R, now: float) -> None:
        """Plan a check of a replica that owes an answer, unless one is planned."""
        if self._check_times.at(replica) == inf:
            self._check_times.look_at(replica, self.policy.first_look_at(replica, now))

    def silent(self, now: float) -> R | None:
        """A replica that has fallen silent; None: no further one. Each is returned once, until it
        is watched again."""
        while (due := self._check_times.due(now)) is not None:
            replica, due_at = due
            at = self.policy.look(replica, due_at, now)
            if at <= now:
                return replica
            self._check_times.look_at(replica, at)
        return None

    def next_at(self) -> float:
        """When the next replica is checked; inf: none is. Drops checks that need not be made."""
        times = self._check_times
        while (replica := times.first()) is not None:
            if self.policy.is_worth_a_look(replica):
                return times.at(replica)
            times.drop(replica)
        return inf


class Verdict(Enum):
    """What follows from an answer. `PROBE`: the replica stays ejected and is to be probed again."""

    AS_BEFORE = "as before"
    EJECT = "eject"
    READMIT = "readmit"
    PROBE = "probe"


AS_BEFORE: Final = Verdict.AS_BEFORE


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
    """Which replicas are so much slower than their peers that they had better not be used?

    A replica whose ratio of measured to predicted seconds exceeds the median of its group by
    `eject_ratio` is ejected, but only up to a limited share of its group. It is probed with a copy
    of work that is served elsewhere, at intervals that double while it stays slow, and readmitted
    as soon as its ratio is good again. Two slow answers in a row do not eject. While learning is
    frozen, no replica is ejected, probed or readmitted. Source: outlier detection as in Envoy.
    """

    def __init__(self, settings: OutlierParameters) -> None:
        self.settings = settings
        self.frozen = False
        self._peers: dict[ReplicaGroup, _Peers] = {}
        self._records: dict[AnyReplica, _Record] = {}

    def judge(self, replica: AnyReplica, ratio: float, pool: Iterable[AnyReplica]) -> Verdict:
        """The verdict on a replica that has answered. `ratio`: that answer's seconds over its
        group's prediction. `pool`: all replicas; it is compared with those of its group."""
        if self.frozen or replica.draining:
            return AS_BEFORE
        record = self._record(replica)
        slow = self._is_slow(replica, ratio, pool)
        record.streak = record.streak + 1 if slow else 0
        if replica.reasons & EJECTED:
            return self._judge_probe(replica, record, slow, pool)
        if record.streak < _STREAK or not self._is_slow(replica, replica.slowdown, pool):
            return AS_BEFORE
        group = [each for each in pool if each.group is replica.group]
        running = sum(not each.draining for each in group)
        ejected = sum(each.reasons & EJECTED > 0 for each in group)
        may_eject = ejected + 1 <= self.settings.max_ejected * running
        return Verdict.EJECT if may_eject else AS_BEFORE

    def _judge_probe(
        self, replica: AnyReplica, record: _Record, slow: bool, pool: Iterable[AnyReplica]
    ) -> Verdict:
        settings = self.settings
        if not slow and not self._is_slow(replica, replica.slowdown, pool):
            return Verdict.READMIT
        doubled = min(settings.max_probe_s, 2.0 * record.probe_every_s)
        record.probe_every_s = doubled if slow else settings.probe_s
        return Verdict.PROBE

    def ejected(self, replica: AnyReplica) -> None:
        """The replica is ejected from now on, for this or another reason."""
        self._record(replica).probe_every_s = self.settings.probe_s

    def probe_every_s(self, replica: AnyReplica) -> float:
        """Seconds between two probes of a replica that is ejected."""
        return self._record(replica).probe_every_s

    def forget(self, replica: AnyReplica) -> None:
        """The replica is gone for good."""
        self._records.pop(replica, None)

    def _is_slow(self, replica: AnyReplica, ratio: float, pool: Iterable[AnyReplica]) -> bool:
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

    def _record(self, replica: AnyReplica) -> _Record:
        record = self._records.get(replica)
        if record is None:
            record = self._records[replica] = _Record()
        return record


def may_probe(replica: AnyReplica, now: float) -> bool:
    """Whether the replica can take a probe."""
    if replica.draining or not replica.has_room() or replica.blocked_until > now:
        return False
    return replica.may_probe()


class Ejection(Generic[R]):
    """The ejected replicas, and when each is probed. A replica that was silent to the end is also
    ejected, whatever its ratio was: only a probe can show that it answers again."""

    def __init__(self, policy: Outliers, replicas: ReplicaSet[R]) -> None:
        self.policy, self.replicas = policy, replicas
        self._probes: dict[ReplicaGroup, CheckTimes[R]] = {}

    def judge(self, replica: R, ratio: float, now: float) -> None:
        """Eject or readmit a replica that has answered, or plan its next probe, as the policy says.
        `ratio`: the answer's service seconds over its group's prediction."""
        verdict = self.policy.judge(replica, ratio, self.replicas.by_id.values())
        if verdict is AS_BEFORE:
            return
        if verdict is Verdict.EJECT:
            self.eject(replica, now)
        elif verdict is Verdict.READMIT:
            self.replicas.readmit(replica)
            self._probe_times(replica.group).drop(replica)
        elif verdict is Verdict.PROBE:
            self._plan_probe(replica, now)

    def eject(self, replica: R, now: float) -> None:
        """Eject the replica, unless it is ejected already or learning is frozen."""
        if not (replica.reasons & EJECTED or self.policy.frozen):
            self.replicas.eject(replica)
            self.policy.ejected(replica)
            self._plan_probe(replica, now)

    def to_probe(self, group: ReplicaGroup, now: float) -> R | None:
        """An ejected replica of the group that is due for a probe and can take one; None: none."""
        times = self._probe_times(group)
        while times.next_at() <= now and not self.policy.frozen:
            replica = times.first()
            if replica is None or may_probe(replica, now):
                return replica
            self._plan_probe(replica, now)
        return None

    def probed(self, replica: R) -> None:
        """A probe was sent; `judge` or `failed` plans the next one."""
        self._probe_times(replica.group).drop(replica)

    def failed(self, replica: R, now: float) -> None:
        """A probe ended without an answer: plan the next one."""
        if replica.reasons & EJECTED:
            self._plan_probe(replica, now)

    def gone(self, replica: R) -> None:
        """Forget a replica that has gone for good."""
        self._probe_times(replica.group).drop(replica)
        self.policy.forget(replica)

    def _plan_probe(self, replica: R, now: float) -> None:
        self._probe_times(replica.group).look_at(replica, now + self.policy.probe_every_s(replica))

    def _probe_times(self, group: ReplicaGroup) -> CheckTimes[R]:
        times = self._probes.get(group)
        if times is None:
            times = self._probes[group] = CheckTimes()
        return times


class Suspension:
    """Takes work away from replicas that are silent, and gives them work again."""

    def __init__(
        self,
        requests: RequestTable,
        replicas: ReplicaSet[Any],
        races: Races[Any],
        silence: SilenceWatch[Any],
        ejection: Ejection[Any],
    ) -> None:
        self._requests, self._replicas, self._races = requests, replicas, races
        self._silence, self.ejection = silence, ejection

    def move(self, lease: AnyLease, now: float, actions: list[Action], *, ran: bool) -> None:
        """Queue those rows of a silent replica's lease once more that may be moved. `ran`: the
        lease may have silenced it, so that they travel alone, like rows of a lost lease, and the
        retry budget pays for them; else they take their old places. The lease stays open, so that
        a late answer is used if it is the first."""
        requests = self._requests
        stays = requests.is_closed or lease.begun
        rows = [] if stays else [row for row in lease.members() if _may_move(row)]
        if not rows:
            return
        self._races.counts.moved_rows += len(rows)
        other = lease.other
        withdraw(lease, rows, actions)
        for each in (lease, other):
            if each is not None and not each.live and (owed := each.take_unsettled()) is not None:
                requests.served.settle(owed, None, now)
        self._races.schedule.remove(lease)
        if ran:
            requests.retry(rows, lease, now, actions)
            return
        for row in rows:
            row.move(lease.replica_id)
        requests.put_back(rows, now, actions)

    def take_late_answer(
        self, lease: AnyLease, failed: Sequence[int], actions: list[Action]
    ) -> None:
        """A lease whose rows had been moved was answered after all: its answers count for rows that
        have no other yet. `failed`: positions of rows without an answer."""
        rows = late_rows(lease, failed)
        self._races.counts.late_rows_used += len(rows)
        self._requests.answered_late(rows, actions)

    def heard(self, replica: AnyReplica, now: float) -> None:
        """The replica has said something: if it was silent, it is so no longer. Its open leases
        serve as its probe."""
        replica.heard_at = now
        if replica.reasons & SILENT:
            replica.set_reason(SILENT, False)
            self._replicas.refresh(replica, now)
            if replica.leases:
                self._silence.watch(replica, now)

    def probe_instead(self, replica: AnyReplica, now: float) -> None:
        """If the silent replica's last lease was lost, no answer can end its silence any more:
        eject the replica instead, so that it is probed."""
        if replica.reasons & SILENT and not replica.leases:
            replica.set_reason(SILENT, False)
            self.ejection.eject(replica, now)


def _may_move(row: Row) -> bool:
    """Whether the row may run again elsewhere, and stands only at silent replicas."""
    if row.isolated or row.moved_from or not row.tracked.request.retryable:
        return False
    return all(each is None or each.is_suspended for each in (row.lease, row.copy))
