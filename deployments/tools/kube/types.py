"""Types of `headrace cluster`: a release's Kubernetes objects, and what is concluded from them.

Objects are dicts as the API answers them. Times are UTC. Nothing here connects to a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

Object = Mapping[str, Any]

# Of a RayService's status: the cluster that serves, then the next one.
CLUSTER_STATUSES = ("activeServiceStatus", "pendingServiceStatus")


class Kind(StrEnum):
    """What a thing that is not well waits for, or suffers from."""

    QUOTA = "quota"
    IMAGE = "image"
    DEVICE = "device"
    RESOURCES = "resources"
    UNSCHEDULABLE = "unschedulable"
    VOLUME = "volume"
    CONFIG = "config"
    INIT = "init"
    CRASH = "crash"
    ADMISSION = "admission"
    PROBE = "probe"
    DRAIN = "drain"
    START = "start"
    CREATION = "creation"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class Cause:
    """what: a few words for a table. evidence: the text of an event, a condition or a state, as
    Kubernetes said it; since: when. mend: the command or the value that would help."""

    kind: Kind
    what: str
    evidence: str
    mend: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Application:
    """A Serve application. state: as RayService tells it, "" where it does not yet. groups: those
    of pods that its replicas fit in. least, most: replicas, over all of the model's groups."""

    name: str
    model: str
    state: str
    message: str
    least: int
    most: int
    groups: tuple[str, ...]

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"


@dataclass(frozen=True, slots=True)
class Row:
    """A pod, or pods of a group that are not there (`pod` is "", `missing` their number)."""

    pod: str
    group: str
    cluster: str
    node: str
    device: str
    phase: str
    ready: bool
    restarts: int
    created: datetime | None
    models: tuple[str, ...]
    waits_for: Cause | None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A namespace's objects that belong to one RayService, or may. unread: what could not be asked
    for, in sentences. `clusters`: RayClusters by name."""

    service: Object
    clusters: Mapping[str, Object] = field(default_factory=dict)
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    unread: tuple[str, ...] = ()


def name_of(each: Object) -> str:
    return str(each["metadata"]["name"])


def labels_of(each: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = each["metadata"].get("labels") or {}
    return found


def time_of(text: str | None) -> datetime | None:
    """Of RFC 3339, with or without fractions of a second."""
    return datetime.fromisoformat(text) if text else None


def condition(each: Object, kind: str) -> Object | None:
    for found in each.get("status", {}).get("conditions") or ():
        if found["type"] == kind:
            return found  # type: ignore[no-any-return]
    return None
