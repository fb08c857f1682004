"""When is a replica checked for silence, and when is an ejected one probed?

The policies decide: `silence` whether a replica has stopped answering, `outliers` whether it is so
much slower than its peers that it is ejected or taken back. This module keeps the times, and tells
`ReplicaSet` of ejections. Times are seconds on the dispatcher's clock. Work: O(log n) for each far
overdue batch and each probe, none otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from routers.estimates.groups import ReplicaGroup
from routers.policies.outliers import Outliers, Verdict, may_probe
from routers.policies.silence import Silence
from routers.state.check_times import CheckTimes
from routers.state.replica_state import ReplicaState
from routers.state.replicas import ReplicaSet


@dataclass(slots=True)
class SilenceWatch:
    """The replicas that owe an answer, and when each is checked for silence. `suspension` moves the
    work of a silent one."""

    policy: Silence
    _check_times: CheckTimes[ReplicaState] = field(default_factory=CheckTimes)

    def watch(self, replica: ReplicaState, now: float) -> None:
        """Plan a check of a replica that owes an answer, unless one is planned."""
        if self._check_times.at(replica) == inf:
            self._check_times.look_at(replica, self.policy.first_look_at(replica, now))

    def silent(self, now: float) -> ReplicaState | None:
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


@dataclass(slots=True)
class Ejection:
    """The ejected replicas, and when each is probed. A replica that was silent to the end is also
    ejected, whatever its ratio was: only a probe can show that it answers again."""

    policy: Outliers
    replicas: ReplicaSet
    _probes: dict[ReplicaGroup, CheckTimes[ReplicaState]] = field(default_factory=dict)

    def judge(self, replica: ReplicaState, ratio: float, now: float) -> None:
        """Eject or readmit a replica that has answered, or plan its next probe, as the policy says.
        `ratio`: the answer's service seconds over its group's prediction."""
        verdict = self.policy.judge(replica, ratio, self.replicas.by_id.values())
        if verdict is Verdict.AS_BEFORE:
            return
        if verdict is Verdict.EJECT:
            self.eject(replica, now)
        elif verdict is Verdict.READMIT:
            self.replicas.readmit(replica)
            self._probe_times(replica.group).drop(replica)
        elif verdict is Verdict.PROBE:
            self._plan_probe(replica, now)

    def eject(self, replica: ReplicaState, now: float) -> None:
        """Eject the replica, unless it is ejected already or learning is frozen."""
        if not (replica.ejected or self.policy.frozen):
            self.replicas.eject(replica)
            self.policy.ejected(replica)
            self._plan_probe(replica, now)

    def to_probe(self, group: ReplicaGroup, now: float) -> ReplicaState | None:
        """An ejected replica of the group that is due for a probe and can take one; None: none."""
        times = self._probe_times(group)
        while times.next_at() <= now and not self.policy.frozen:
            replica = times.first()
            if replica is None or may_probe(replica, now):
                return replica
            self._plan_probe(replica, now)
        return None

    def probed(self, replica: ReplicaState) -> None:
        """A probe was sent; `judge` or `failed` plans the next one."""
        self._probe_times(replica.group).drop(replica)

    def failed(self, replica: ReplicaState, now: float) -> None:
        """A probe ended without an answer: plan the next one."""
        if replica.ejected:
            self._plan_probe(replica, now)

    def gone(self, replica: ReplicaState) -> None:
        """Forget a replica that has gone for good."""
        self._probe_times(replica.group).drop(replica)
        self.policy.forget(replica)

    def _plan_probe(self, replica: ReplicaState, now: float) -> None:
        self._probe_times(replica.group).look_at(replica, now + self.policy.probe_every_s(replica))

    def _probe_times(self, group: ReplicaGroup) -> CheckTimes[ReplicaState]:
        times = self._probes.get(group)
        if times is None:
            times = self._probes[group] = CheckTimes()
        return times
