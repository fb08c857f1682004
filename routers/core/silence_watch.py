"""The replicas that owe an answer, and when to look at each whether it has fallen silent.

What a look finds `silence` says, what becomes of a silent replica `suspension`. Work: O(log n) a
batch that is far overdue, none otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from routers.policies.silence import Silence
from routers.state.check_times import CheckTimes
from routers.state.replica_state import ReplicaState


@dataclass(slots=True)
class SilenceWatch:
    policy: Silence
    _times: CheckTimes[ReplicaState] = field(default_factory=CheckTimes)
    _asked: int = 0

    def watch(self, replica: ReplicaState, now: float) -> None:
        """It owes an answer, unless it is watched already."""
        if self._times.at(replica) == inf:
            self._look_at(replica, self.policy.first_look_at(replica, now))

    def silent(self, now: float) -> Iterator[ReplicaState]:
        """Those that are; each once, until it is watched again."""
        for replica, due_at in self._times.due(now):
            at = self.policy.look(replica, due_at, now)
            if at > now:
                self._look_at(replica, at)
            else:
                yield replica

    def next_at(self) -> float:
        """When to look next; inf: at nobody."""
        times = self._times
        while (replica := times.first()) is not None and not self.policy.is_worth_a_look(replica):
            times.drop(replica)
        return times.next_at()

    def _look_at(self, replica: ReplicaState, at: float) -> None:
        self._asked += 1
        self._times.look_at(replica, at, self._asked)
