"""Which replicas of a model run right now, as far as Serve has told this process's router?

There is one directory a deployment. The pin router is its only writer, the model's queue reads it.
Serve pickles the router's class with its module by value, so the directory must live in a module of
its own that is imported by name. The directory holds no load: the dispatcher keeps the leases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class ReplicaGone(Exception):
    """The pinned replica is not running any more; the call was not started."""


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """A replica that Serve reports as running."""

    replica_id: str
    # What the replica recorded when it became ready: its version, the digest of the settings that
    # it was started with, the address where it listens (`channel`), the versions of the channel
    # that it speaks, and its group if it has one.
    metadata: tuple[tuple[str, str], ...] = ()

    def digest(self) -> str:
        """The digest of the settings that it was started with."""
        return dict(self.metadata).get("digest", "")

    def group(self) -> str:
        """Its group; "" for a model without groups."""
        return dict(self.metadata).get("group", "")

    def spoken_versions(self) -> frozenset[int]:
        """The versions of the channel that it speaks. One that names none speaks 3."""
        named = dict(self.metadata).get("channel_versions", "3")
        return frozenset(int(version) for version in named.split(","))


Listener = Callable[[tuple[RunningReplica, ...]], None]


class ReplicaDirectory:
    """The replicas that run. A listener is called with the whole set when it joins and at every
    change."""

    def __init__(self) -> None:
        self._replicas: dict[str, RunningReplica] = {}
        self._listeners: list[Listener] = []

    @property
    def replicas(self) -> tuple[RunningReplica, ...]:
        return tuple(self._replicas.values())

    def update(self, replicas: list[RunningReplica]) -> None:
        self._replicas = {r.replica_id: r for r in replicas}
        self._notify()

    def drop(self, replica_id: str) -> None:
        if self._replicas.pop(replica_id, None) is not None:
            self._notify()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Add a listener. Returns the function that removes it."""
        self._listeners.append(listener)
        listener(self.replicas)
        return lambda: self._remove(listener)

    def _remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener(self.replicas)


class JoinedDirectories(ReplicaDirectory):
    """The replicas that run in several deployments: those of one model's groups. When the last
    listener is removed, so are the directories."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[ReplicaDirectory] = []
        self._stops: list[Callable[[], None]] = []

    @property
    def replicas(self) -> tuple[RunningReplica, ...]:
        return tuple(replica for part in self._parts for replica in part.replicas)

    def add(self, directory: ReplicaDirectory) -> None:
        """Add a directory; does nothing if it is there already."""
        if any(part is directory for part in self._parts):
            return
        self._parts.append(directory)
        self._stops.append(directory.listen(lambda _: self._notify()))

    def _remove(self, listener: Listener) -> None:
        super()._remove(listener)
        if not self._listeners:
            for stop in self._stops:
                stop()
            self._parts, self._stops = [], []


_DIRECTORIES: dict[str, ReplicaDirectory] = {}


def directory_for(key: str) -> ReplicaDirectory:
    """This process's directory of the deployment `key` ("application/deployment")."""
    return _DIRECTORIES.setdefault(key, ReplicaDirectory())
