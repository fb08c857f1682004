"""What the autoscaler is told and what it answers, as plain values that cross processes.

Gateways report demand and get each model's outlook. Serve's controller reports what runs and gets
targets. Pool replicas report what they hold and get orders. Times are seconds, either an age or
what is left; a moment on one process's clock never crosses to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoscaling.types import DemandReading, StartReading
from deployments.contract.codec import MessageCodec


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """What a gateway knows of one group of a model. Fields without a comment are as in
    `autoscaling.types.GroupReading`."""

    hot: int  # replicas that the gateway can reach
    speed: float
    batch_s: float
    batch_p99_s: float
    batch_scv: float


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model at one gateway."""

    demand: DemandReading
    # By group; "" for a model without groups. Pool replicas are the group `pool`.
    groups: Mapping[str, GroupLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """All models at one gateway."""

    gateway: str  # its name, which changes when it restarts
    models: Mapping[str, ModelLoad]
    frozen: bool = False  # the operator's switch, as the gateway last read it


@dataclass(frozen=True, slots=True)
class ModelOutlook:
    """What gateways are told of a model. Fields without a comment are as in `ModelDecision`, for
    metrics."""

    may_sleep: bool = False  # it may have no replicas; then a request wakes it
    wakes: bool = False  # nothing runs, and a request would start a replica
    # The longest row that a group takes which may have no replicas, and which such rows wake; 0:
    # there is no such group.
    wakes_up_to: int = 0
    ready_in_s: float = 0.0  # p90, until a replica that starts now or has begun to will serve
    targets: Mapping[str, int] = field(default_factory=dict)  # replicas, by group
    wanted: Mapping[str, int] = field(default_factory=dict)  # replicas, by group
    starting: int = 0  # replicas of all groups
    reason: str = ""  # `autoscaling.types.Reason`
    offered_s: float = 0.0
    planned_s: float = 0.0
    forecast_s: float = 0.0
    forecast_trusted: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """A deployment's numbers of replicas, as Serve's controller has them."""

    running: int
    target: int


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in a pool replica, as the replica reports it."""

    model: str
    key: str
    serves: bool  # else it is being loaded or unloaded
    size_bytes: int
    load_s: float
    age_s: float  # since it began to serve
    busy: bool
    wake_s: float = 0.0  # of an engine, see `KeptModel`


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model in a pool replica's memory that serves nobody there: warm, or an engine asleep."""

    model: str
    key: str
    # That an engine took to wake the last time, before that to fall asleep; 0.0: it is warm.
    wake_s: float
    size_bytes: int  # of what `scaling.pool.memory_mib` bounds
    host_bytes: int = 0  # of the host's memory, besides


@dataclass(frozen=True, slots=True)
class PoolReport:
    """What a pool replica holds."""

    replica: str
    residents: tuple[Resident, ...] = ()
    free_bytes: int = 0
    # Models of its present order that it could not load, and why.
    failed: tuple[tuple[str, str], ...] = ()
    kept: tuple[KeptModel, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolModel:
    """A model that a pool replica is to hold."""

    name: str
    key: str  # digest of its settings
    args: Mapping[str, Any]  # as of the model's own replicas, see `serve_config`


@dataclass(frozen=True, slots=True)
class PoolOrder:
    """Every model that a pool replica should hold."""

    revision: int  # changes whenever `models` does
    models: tuple[PoolModel, ...] = ()


GATEWAY_REPORT = MessageCodec[GatewayReport](GatewayReport)
OUTLOOKS = MessageCodec[Mapping[str, ModelOutlook]](dict[str, ModelOutlook])
OBSERVED = MessageCodec[Mapping[str, Observed]](dict[str, Observed])
START = MessageCodec[StartReading](StartReading)
POOL_REPORT = MessageCodec[PoolReport](PoolReport)
POOL_ORDER = MessageCodec[PoolOrder](PoolOrder)
