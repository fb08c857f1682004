"""Does a replica still answer, and as fast as its peers? Here it is looked at and probed.

What a look finds `silence` says, what an answer makes of a replica `outliers`. Work: O(log n) a
batch that is far overdue and a probe, none otherwise.
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
    """The replicas that owe an answer, and when to look at each whether it has fallen silent. What
    becomes of one that has is `suspension`'s matter."""

    policy: Silence
    _times: CheckTimes[ReplicaState] = field(default_factory=CheckTimes)

    def watch(self, replica: ReplicaState, now: float) -> None:
        """It owes an answer, unless it is watched already."""
        if self._times.at(replica) == inf:
            self._times.look_at(replica, self.policy.first_look_at(replica, now))

    def silent(self, now: float) -> ReplicaState | None:
        """The next one that is; each once, until it is watched again."""
        while (due := self._times.due(now)) is not None:
            replica, due_at = due
            at = self.policy.look(replica, due_at, now)
            if at <= now:
                return replica
            self._times.look_at(replica, at)
        return None

    def next_at(self) -> float:
        """When to look next; inf: at nobody."""
        times = self._times
        while (replica := times.first()) is not None:
            if self.policy.is_worth_a_look(replica):
                return times.at(replica)
            times.drop(replica)
        return inf


@dataclass(slots=True)
class Ejection:
    """The replicas that are left out, and when each is probed. One that has stopped answering is
    ejected whatever its ratio was: a probe brings it back."""

    policy: Outliers
    replicas: ReplicaSet
    _probes: dict[ReplicaGroup, CheckTimes[ReplicaState]] = field(default_factory=dict)

    def judge(self, replica: ReplicaState, ratio: float, now: float) -> None:
        """It has answered; `ratio`: that answer's seconds over its group's prediction."""
        verdict = self.policy.judge(replica, ratio, self.replicas.by_id.values())
        if verdict is Verdict.AS_BEFORE:
            return
        if verdict is Verdict.EJECT:
            self.eject(replica, now)
        elif verdict is Verdict.READMIT:
            self.replicas.readmit(replica)
            self._times(replica.group).drop(replica)
        elif verdict is Verdict.PROBE:
            self._probe_later(replica, now)

    def eject(self, replica: ReplicaState, now: float) -> None:
        """Not while frozen."""
        if not (replica.ejected or self.policy.frozen):
            self.replicas.eject(replica)
            self.policy.ejected(replica)
            self._probe_later(replica, now)

    def to_probe(self, group: ReplicaGroup, now: float) -> ReplicaState | None:
        """An ejected replica of the group whose probe is due and that can take it."""
        times = self._times(group)
        while times.next_at() <= now and not self.policy.frozen:
            replica = times.first()
            if replica is None or may_probe(replica, now):
                return replica
            self._probe_later(replica, now)
        return None

    def probed(self, replica: ReplicaState) -> None:
        """A probe is under way: `judge` or `failed` says when the next one is due."""
        self._times(replica.group).drop(replica)

    def failed(self, replica: ReplicaState, now: float) -> None:
        """A probe brought no answer."""
        if replica.ejected:
            self._probe_later(replica, now)

    def gone(self, replica: ReplicaState) -> None:
        """For good."""
        self._times(replica.group).drop(replica)
        self.policy.forget(replica)

    def _probe_later(self, replica: ReplicaState, now: float) -> None:
        self._times(replica.group).look_at(replica, now + self.policy.probe_every_s(replica))

    def _times(self, group: ReplicaGroup) -> CheckTimes[ReplicaState]:
        times = self._probes.get(group)
        if times is None:
            times = self._probes[group] = CheckTimes()
        return times
