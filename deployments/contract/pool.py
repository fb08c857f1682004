"""What a replica of the shared pool tells gateways of the models that it serves.

To a gateway each of them is one more replica of that model, of the group `POOL_GROUP`: a reserve.
It has an id of its own for each time that the model is loaded, since its address and its key are
others then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deployments.contract.description import GroupDescription, ModelDescription
from deployments.contract.replica_directory import RunningReplica
from deployments.settings.groups import POOL_GROUP
from routers.api.settings import DispatcherSettings, GroupSettings


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A model that a pool replica serves. `member`: this very residency; `replica`: the pool
    replica's id in Serve. `digest`: of the settings that it was loaded with; `version`: of what was
    loaded. `channel`: where it listens. `slots`: batches that each gateway may have there.
    `after_s`: the predicted wait on the model's own replicas beyond which it is used."""

    model: str
    member: str
    replica: str
    digest: str
    version: str
    channel: str
    slots: int
    after_s: float

    def as_replica(self) -> RunningReplica:
        """As a gateway's queue knows replicas."""
        said = {
            "group": POOL_GROUP, "replica": self.replica, "digest": self.digest,
            "version": self.version, "channel": self.channel, "slots": str(self.slots),
            "after_s": repr(self.after_s),
        }  # fmt: skip
        return RunningReplica(self.member, tuple(sorted(said.items())))


def pool_replica_of(replica: RunningReplica) -> str:
    """The pool replica in which that one is; "": it is one of the model's own."""
    return dict(replica.metadata).get("replica", "")


def may_serve(replica: RunningReplica, d: ModelDescription) -> bool:
    """Whether what a pool replica holds is the live version. Of a model with groups it runs one
    group's settings, whose version alone is another than the whole's."""
    said = dict(replica.metadata)
    if replica.digest() not in d.group_digests().values():
        return False
    return bool(d.groups) or said.get("version") == d.version


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How a model's pool members are used: see `PoolMember`."""

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
    """The core's settings with the pool as one more group, a reserve. It starts from the costs of
    the group whose settings it runs, and learns its own."""
    own = settings.groups or (GroupSettings("", settings.profile, max_size=settings.max_size),)
    like = _like(d, pool.digest)
    known = own[0] if like is None else next(each for each in own if each.name == like.name)
    reserve = replace(known, name=POOL_GROUP, after_s=pool.after_s)
    return replace(settings, groups=(*own, reserve))


def _like(d: ModelDescription, digest: str) -> GroupDescription | None:
    return next((group for group in d.groups if group.digest == digest), None)
