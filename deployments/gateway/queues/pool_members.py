"""Which replicas of the shared pool serve which model?

Keeps one directory a model, which the model's queue follows. The registry tells which pool replica
serves what, Serve which of the pool's replicas run. A member is listed while both say so: a pool
replica that was killed disappears at once, one that is told to hold another model as soon as it
reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from deployments.contract.pool import PoolMember
from deployments.gateway.queues.pool_replicas import as_replica
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica

Held = Mapping[str, tuple[PoolMember, ...]]


class PoolMembers:
    """The members of the shared pool, by model."""

    def __init__(
        self,
        running: ReplicaDirectory,  # of the pool's deployment
        begin: Callable[[], None],  # starts to fill `running`; called when a member first appears
    ) -> None:
        self._begin = begin
        self._begun = False
        self._held: Held = {}  # by model, as the registry last said
        self._running: frozenset[str] = frozenset()  # pool replicas that Serve lists
        self._directories: dict[str, ReplicaDirectory] = {}  # by model
        running.listen(self._running_changed)

    def directory(self, model: str) -> ReplicaDirectory:
        """The directory of the members that serve a model, now and later."""
        found = self._directories.get(model)
        if found is None:
            found = self._directories[model] = ReplicaDirectory()
            self._update(model)
        return found

    def take(self, held: Held, *, complete: bool) -> None:
        """Adopt the registry's view. Not `complete`: a member that is missing there may still
        exist."""
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
        running = [as_replica(each) for each in members if each.replica in self._running]
        if list(directory.replicas) != running:
            directory.update(running)
