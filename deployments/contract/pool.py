"""How does a gateway see the models that replicas of the shared pool serve?

For a gateway, a model in a pool replica is one more replica of that model. It belongs to the group
`POOL_GROUP`, which is a reserve. Its id, address and key change each time the model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deployments.contract.description import GroupDescription, ModelDescription
from deployments.process.replica_directory import RunningReplica
from deployments.settings.groups import POOL_GROUP
from routers.api.settings import DispatcherSettings, GroupSettings


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A model that a pool replica serves."""

    model: str
    member: str  # id of this residency: from one loading of the model to its unloading
    replica: str  # the pool replica's id in Serve
    digest: str  # of the settings that the model was loaded with
    version: str  # of the model that was loaded
    channel: str  # address where it listens
    slots: int  # batches that each gateway may have there
    after_s: float  # predicted wait on the model's own replicas beyond which this one is used

    def as_replica(self) -> RunningReplica:
        """The member as a gateway's queue represents replicas."""
        said = {
            "group": POOL_GROUP, "replica": self.replica, "digest": self.digest,
            "version": self.version, "channel": self.channel, "slots": str(self.slots),
            "after_s": repr(self.after_s),
        }  # fmt: skip
        return RunningReplica(self.member, tuple(sorted(said.items())))


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
    own = settings.groups or (GroupSettings("", settings.profile, max_size=settings.max_size),)
    like = _group_of_digest(d, pool.digest)
    known = own[0] if like is None else next(each for each in own if each.name == like.name)
    reserve = replace(known, name=POOL_GROUP, after_s=pool.after_s)
    return replace(settings, groups=(*own, reserve))


def _group_of_digest(d: ModelDescription, digest: str) -> GroupDescription | None:
    return next((group for group in d.groups if group.digest == digest), None)
