"""Which replicas of a model run right now, as this process's router was last told.

One directory a deployment, shared by the pin router (its only writer) and the model's queue (its
reader). The router's class is pickled with its module by value, so the directory must live in a
module of its own, imported by name. It holds no load: leases are the dispatcher's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class ReplicaGone(Exception):
    """The pinned replica is not running any more; the call was not started."""


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """`metadata` is what the replica recorded when it became ready: its version, the digest of the
    settings it was started with, the address where it listens (`channel`), and its group where
    there are any."""

    replica_id: str
    metadata: tuple[tuple[str, str], ...] = ()

    def digest(self) -> str:
        return dict(self.metadata).get("digest", "")

    def group(self) -> str:
        """ "": of a model without groups."""
        return dict(self.metadata).get("group", "")


Listener = Callable[[tuple[RunningReplica, ...]], None]


class ReplicaDirectory:
    """The running set; listeners hear every change, and the current set when they join."""

    def __init__(self) -> None:
        self._replicas: dict[str, RunningReplica] = {}
        self._listeners: list[Listener] = []

    @property
    def replicas(self) -> tuple[RunningReplica, ...]:
        return tuple(self._replicas.values())

    def update(self, replicas: list[RunningReplica]) -> None:
        self._replicas = {r.replica_id: r for r in replicas}
        self._tell()

    def drop(self, replica_id: str) -> None:
        if self._replicas.pop(replica_id, None) is not None:
            self._tell()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Returns the function that stops listening."""
        self._listeners.append(listener)
        listener(self.replicas)
        return lambda: self._listeners.remove(listener)

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener(self.replicas)


class JoinedDirectories:
    """The running set of several deployments, those of one model's groups. More may be added."""

    def __init__(self) -> None:
        self._parts: list[ReplicaDirectory] = []
        self._listeners: list[Listener] = []
        self._stops: list[Callable[[], None]] = []

    @property
    def replicas(self) -> tuple[RunningReplica, ...]:
        return tuple(replica for part in self._parts for replica in part.replicas)

    def add(self, directory: ReplicaDirectory) -> None:
        """Nothing changes where it is there already."""
        if any(part is directory for part in self._parts):
            return
        self._parts.append(directory)
        self._stops.append(directory.listen(lambda replicas: self._tell()))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """As of a `ReplicaDirectory`; with the last listener the parts are left too."""
        self._listeners.append(listener)
        listener(self.replicas)
        return lambda: self._leave(listener)

    def _leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        if not self._listeners:
            for stop in self._stops:
                stop()
            self._parts, self._stops = [], []

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener(self.replicas)


_DIRECTORIES: dict[str, ReplicaDirectory] = {}


def directory_for(key: str) -> ReplicaDirectory:
    """This process's directory of the deployment `key` ("application/deployment")."""
    return _DIRECTORIES.setdefault(key, ReplicaDirectory())
