"""Which replicas of the shared pool serve which model, as directories that models' queues follow.

The registry says who serves what, Serve which of the pool's replicas run: a member counts while
both do, so one that was killed is gone at once, and one that is told to hold something else as soon
as it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from deployments.contract.pool import PoolMember
from deployments.contract.replica_directory import ReplicaDirectory, RunningReplica

Held = Mapping[str, tuple[PoolMember, ...]]


class PoolMembers:
    """`running`: of the pool's deployment. `begin()` is called when members first appear, so that
    the running ones become known."""

    def __init__(self, running: ReplicaDirectory, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._begun = False
        self._held: Held = {}
        self._running: frozenset[str] = frozenset()
        self._directories: dict[str, ReplicaDirectory] = {}
        running.listen(self._running_changed)

    def directory(self, model: str) -> ReplicaDirectory:
        """Of the members that serve it, now and later."""
        found = self._directories.get(model)
        if found is None:
            found = self._directories[model] = ReplicaDirectory()
            self._update(model)
        return found

    def take(self, held: Held, *, complete: bool) -> None:
        """The registry's view; not `complete`: who is missing there may be there still."""
        self._held = dict(held) if complete else {**self._held, **held}
        if self._held and not self._begun:
            self._begun = True
            self._begin()
        self._update_all()

    def _running_changed(self, replicas: tuple[RunningReplica, ...]) -> None:
        self._running = frozenset(replica.replica_id for replica in replicas)
        self._update_all()

    def _update_all(self) -> None:
        for model in self._directories:
            self._update(model)

    def _update(self, model: str) -> None:
        directory = self._directories[model]
        members = self._held.get(model, ())
        running = [each.as_replica() for each in members if each.replica in self._running]
        if list(directory.replicas) != running:
            directory.update(running)
