"""What the autoscaler is told and what it answers, as plain values that cross processes.

Gateways report demand and hear how things stand with each model; Serve's controller says what runs
and hears targets; pool replicas say what they hold and hear what to hold. Times are seconds; what
crosses is an age or what is left, never a moment on one process's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoscaling.types import DemandReading


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """What a gateway knows of one group of a model: replicas that it can reach, and what one does;
    see `autoscaling.types.GroupReading`."""

    hot: int
    speed: float
    batch_s: float
    batch_p99_s: float
    batch_scv: float


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model at one gateway; `groups` by name, "" of a model without, `pool` included."""

    demand: DemandReading
    groups: Mapping[str, GroupLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """All models at one gateway. `gateway`: its name, another one when it begins anew. frozen: the
    operator's switch, as it was last taken up."""

    gateway: str
    models: Mapping[str, ModelLoad]
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class ModelOutlook:
    """What gateways are told of a model. asleep_ok: it may have no replicas. wanted, target,
    starting: replicas of all groups. ready_in_s: until a replica that starts now, or has begun to,
    is expected to serve, p90; `wakes`: nothing runs and a request would start something. reason:
    `autoscaling.types.Reason`; the rest as in `ModelDecision`, for metrics."""

    asleep_ok: bool = False
    wakes: bool = False
    ready_in_s: float = 0.0
    targets: Mapping[str, int] = field(default_factory=dict)
    wanted: Mapping[str, int] = field(default_factory=dict)
    starting: int = 0
    reason: str = ""
    offered_s: float = 0.0
    planned_s: float = 0.0
    forecast_s: float = 0.0
    forecast_trusted: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """A deployment as Serve's controller has it."""

    running: int
    target: int


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in a pool replica, as the replica says: `serves`, else it is being loaded or goes.
    age_s: since it began to serve."""

    model: str
    key: str
    serves: bool
    size_bytes: int
    load_s: float
    age_s: float
    busy: bool


@dataclass(frozen=True, slots=True)
class PoolReport:
    """`failed`: models that it could not load, and why, while it was last told to hold them."""

    replica: str
    residents: tuple[Resident, ...] = ()
    free_bytes: int = 0
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PoolModel:
    """A model that a pool replica is to hold: `args` as of its own replicas (`serve_config`), `key`
    their settings' digest."""

    name: str
    key: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PoolOrder:
    """Everything that the pool replica should hold; `revision` changes with it."""

    revision: int
    models: tuple[PoolModel, ...] = ()
