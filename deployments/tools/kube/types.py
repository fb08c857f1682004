"""Types of `headrace cluster`: a release's Kubernetes objects, and the conclusions from them.

An `Object` is a dict as the Kubernetes API returns it. Times are UTC. Nothing here connects to a
server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

Object = Mapping[str, Any]

# Keys in a RayService's status: the cluster that serves, then the cluster that replaces it.
CLUSTER_STATUSES = ("activeServiceStatus", "pendingServiceStatus")


class Kind(StrEnum):
    """Why a pod or a service is not ready."""

    QUOTA = "quota"  # a ResourceQuota forbids the pod
    CREATION = "creation"  # the pod was not created for another reason
    UNSCHEDULABLE = "unschedulable"  # taints, affinity, or no node at all
    DEVICE = "device"  # no node has the GPU or MIG device free
    RESOURCES = "resources"  # no node has enough processors, memory or places for pods
    VOLUME = "volume"
    ADMISSION = "admission"  # the node's kubelet refused or evicted the pod
    IMAGE = "image"
    CONFIG = "config"  # a Secret, a ConfigMap or a program is missing
    INIT = "init"  # an init container still runs
    START = "start"
    CRASH = "crash"
    PROBE = "probe"
    DRAIN = "drain"
    SERVE = "serve"  # the RayService as a whole


@dataclass(frozen=True, slots=True)
class Cause:
    """Why one thing is not ready, and what would help."""

    kind: Kind
    what: str  # a few words, for a table
    evidence: str  # the text of an event, a condition or a state, as Kubernetes has it
    mend: str  # the command to run or the value to change
    since: datetime | None = None  # time of the evidence; for a pod that drains, when it is killed


@dataclass(frozen=True, slots=True)
class Application:
    """A Serve application of a RayService."""

    name: str
    model: str  # the model's name, or `gateway` or `pool`
    state: str  # from the RayService's status; "" while the status does not have it
    message: str
    min_replicas: int  # over all groups of the model
    max_replicas: int
    groups: tuple[str, ...]  # worker groups whose pods have room for a replica

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"


@dataclass(frozen=True, slots=True)
class Row:
    """One pod; or the pods that a group lacks: then `pod` is "" and `missing` is their number."""

    pod: str
    group: str  # `head`, `gateways`, or a worker group
    cluster: str
    node: str
    device: str
    phase: str
    ready: bool
    restarts: int
    created: datetime | None
    models: tuple[str, ...]  # those whose replicas fit in the group
    waits_for: Cause | None  # None: the pod is well
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The objects of one RayService, read from its namespace."""

    service: Object
    clusters: Mapping[str, Object] = field(default_factory=dict)  # its RayClusters, by name
    pods: Sequence[Object] = ()  # the release's
    events: Sequence[Object] = ()  # all warnings of the namespace
    claims: Sequence[Object] = ()  # all PersistentVolumeClaims of the namespace
    unread: tuple[str, ...] = ()  # a sentence for each list that the caller may not read


def name_of(each: Object) -> str:
    return str(each["metadata"]["name"])


def labels_of(each: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = each["metadata"].get("labels") or {}
    return found


def time_of(text: str | None) -> datetime | None:
    """Parses RFC 3339, with or without fractions of a second; None for no text."""
    return datetime.fromisoformat(text) if text else None


def condition(each: Object, kind: str) -> Object | None:
    """The condition of that type in the object's status, if there is one."""
    for found in each.get("status", {}).get("conditions") or ():
        if found["type"] == kind:
            return found  # type: ignore[no-any-return]
    return None
