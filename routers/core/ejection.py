"""The replicas that are left out, and when each is probed.

Whether an answer makes one an outlier, or none any more, `outliers` says; it is done here. One that
has stopped answering is ejected whatever its ratio was: a probe brings it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.estimates.groups import ReplicaGroup
from routers.policies.outliers import Outliers, Verdict, may_probe
from routers.state.check_times import CheckTimes
from routers.state.replica_state import ReplicaState
from routers.state.replicas import ReplicaSet


@dataclass(slots=True)
class Ejection:
    policy: Outliers
    replicas: ReplicaSet
    _probes: dict[ReplicaGroup, CheckTimes[ReplicaState]] = field(default_factory=dict)
    _asked: int = 0

    def judge(self, replica: ReplicaState, ratio: float, now: float) -> None:
        """It has answered; `ratio`: that answer's seconds over its group's prediction."""
        verdict = self.policy.judge(replica, ratio, self.replicas.by_id.values())
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
        self._asked += 1
        at = now + self.policy.probe_every_s(replica)
        self._times(replica.group).look_at(replica, at, self._asked)

    def _times(self, group: ReplicaGroup) -> CheckTimes[ReplicaState]:
        times = self._probes.get(group)
        if times is None:
            times = self._probes[group] = CheckTimes()
        return times
