"""How does a gateway see the models that replicas of the shared pool serve?

For a gateway, a model in a pool replica is one more replica of that model. It belongs to the group
`POOL_GROUP`, which is a reserve. Its id, address and key change each time the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from deployments.contract.description import GroupDescription, ModelDescription
from deployments.contract.registry import PoolMember
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica
from deployments.settings.groups import POOL_GROUP
from routers.api.settings import DispatcherSettings, GroupSettings


def as_replica(member: PoolMember) -> RunningReplica:
    """The member as a gateway's queue represents replicas."""
    said = {
        "group": POOL_GROUP, "replica": member.replica, "digest": member.digest,
        "version": member.version, "channel": member.channel,
        "channel_versions": member.channel_versions, "slots": str(member.slots),
        "after_s": repr(member.after_s),
    }  # fmt: skip
    return RunningReplica(member.member, tuple(sorted(said.items())))


def pool_replica_of(replica: RunningReplica) -> str:
    """The pool replica that this replica is in; "" if it is one of the model's own."""
    return dict(replica.metadata).get("replica", "")


def may_serve(replica: RunningReplica, d: ModelDescription) -> bool:
    """Whether the pool replica holds the live version.

    Of a model with groups, a pool replica runs one group's settings. The version of those settings
    differs from the whole model's version, so only digests are compared.
    """
    said = dict(replica.metadata)
    if replica.digest() not in d.group_digests().values():
        return False
    return bool(d.groups) or said.get("version") == d.version


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How a model's pool members are used. Fields are as in `PoolMember`."""

    digest: str
    slots: int
    after_s: float

    @classmethod
    def of(cls, replica: RunningReplica) -> PoolUse:
        said: Mapping[str, str] = dict(replica.metadata)
        return cls(replica.digest(), int(said["slots"]), float(said["after_s"]))


def with_pool(
    settings: DispatcherSettings, d: ModelDescription, pool: PoolUse
) -> DispatcherSettings:
    """The core's settings with the pool as one more group, a reserve. Its costs start as those of
    the group whose settings it runs; then it learns its own."""
    steps = () if settings.generation is None else settings.generation.profile
    own = settings.groups or (GroupSettings("", settings.profile, steps, settings.max_size),)
    like = group_of_digest(d, pool.digest)
    known = own[0] if like is None else next(each for each in own if each.name == like.name)
    reserve = replace(known, name=POOL_GROUP, after_s=pool.after_s)
    return replace(settings, groups=(*own, reserve))


def group_of_digest(d: ModelDescription, digest: str) -> GroupDescription | None:
    return next((group for group in d.groups if group.digest == digest), None)


Held = Mapping[str, tuple[PoolMember, ...]]


class PoolMembers:
    """The members of the shared pool, by model.

    Keeps one directory a model, which the model's queue follows. The registry tells which pool
    replica serves what, Serve which of the pool's replicas run. A member is listed while both say
    so: a pool replica that was killed disappears at once, one that is told to hold another model as
    soon as it reports that.
    """

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
