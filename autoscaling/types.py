"""The autoscaler's inputs (readings) and outputs (decisions). Plain values.

Times are seconds on the caller's monotonic clock; work is in reference seconds (`settings.py`).
Gateways report counters that only grow, so a lost message loses nothing; a gateway that restarts
has another name. Nothing here knows Ray, HTTP or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class DemandReading:
    """The demand for one model at one gateway."""

    # Counters since the gateway began. Offered work is the predicted work of first arrivals, before
    # feasibility, bounds and fallback may refuse them; it excludes requests above a tenant's own
    # limits and requests with cached answers.
    offered_s: float = 0.0
    offered_sq_s2: float = 0.0  # sum of the squares of each request's work
    requests: int = 0
    served_s: float = 0.0  # work that was answered
    refused: Mapping[str, int] = field(default_factory=dict)  # requests by reason
    by_length: Mapping[int, float] = field(default_factory=dict)  # offered work by bucket's edge

    # Now.
    backlog_s: float = 0.0  # work that waits
    oldest_wait_s: float = 0.0
    urgent: bool = False  # requests wait that no running replica can take
    running: int = 0  # rows, or requests to generate, that replicas work on

    # The parts of `offered_s` and `backlog_s` that are rows longer than each length at which a
    # group ends, by that length.
    longer_s: Mapping[int, float] = field(default_factory=dict)
    longer_backlog_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The replicas of one group now, and the speed of one of them."""

    name: str = ""

    # Numbers of replicas.
    target: int = 0  # that the cluster is asked for
    hot: int = 0  # that serve
    starting: int = 0
    draining: int = 0  # that were told to stop and are still there

    # Of one replica.
    speed: float = 1.0  # reference seconds of work that it does a second
    batch_s: float = 0.05  # predicted seconds of a typical batch at the planned size
    batch_p99_s: float = 0.1  # 99th percentile of batches' seconds
    batch_scv: float = 0.25  # squared coefficient of variation of batches' service time

    # Of replicas that wait for a node with room.
    unplaced_s: float = 0.0  # how long the oldest has waited; 0: none waits
    missing: str = ""  # what it waits for


class State(Enum):
    """How far a replica of a model is from serving. COLD: nothing is there. STAGED: the artifact is
    on the node, converted. WARM: a process is up with the runtime imported. HOT: it serves."""

    COLD = "cold"
    STAGED = "staged"
    WARM = "warm"
    HOT = "hot"


@dataclass(frozen=True, slots=True)
class StartReading:
    """One replica's start, after it has ended."""

    model: str
    group: str
    began_in: State
    seconds: float  # from the order until the replica was hot
    phases: tuple[tuple[str, float], ...] = ()  # (name, seconds), in order


@dataclass(frozen=True, slots=True)
class ResidentReading:
    """One model in a pool replica."""

    model: str
    serves: bool  # False: it is being loaded
    size_bytes: int
    load_s: float  # seconds that its last load took
    since: float  # when it was loaded
    busy: bool  # work of it runs or waits there
    wake_s: float = 0.0  # of an engine: until it is back after it has slept there; 0.0: unknown


@dataclass(frozen=True, slots=True)
class PoolReading:
    """One pool replica."""

    replica: str
    residents: tuple[ResidentReading, ...] = ()
    free_bytes: int = 0  # for further weights; below 0: holds more than there is
    # Models that are in its memory and serve nobody there (warm, or engines asleep): seconds until
    # each would serve.
    kept: Mapping[str, float] = field(default_factory=dict)


class Reason(Enum):
    """Why a target is what it is: the first reason that applies."""

    FIXED = "fixed"  # min = max, or mode off
    MANUAL = "manual"  # set by hand
    FROZEN = "frozen"
    FIRST = "first"  # the model is unknown until a first replica has described it
    UNKNOWN = "unknown"  # no fresh reading: the number holds
    AWAKE = "awake"  # a request waits and no replica runs
    SPIKE = "spike"
    BACKLOG = "backlog"
    FORECAST = "forecast"
    STEADY = "steady"  # as many as are wanted
    HELD = "held"  # fewer are wanted, but not for long enough yet
    DOWN = "down"
    ASLEEP = "asleep"
    BUDGET = "budget"  # more are wanted than the budget or the cluster allows
    UNPLACED = "unplaced"  # a replica waits for a node with room: no further ones are ordered


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """The number of replicas for one group."""

    name: str
    wanted: int  # before budget, hysteresis and numbers set by hand
    target: int  # that the cluster is asked for


@dataclass(frozen=True, slots=True)
class ModelDecision:
    """The targets of one model, and why."""

    model: str
    groups: tuple[GroupTarget, ...]
    reason: Reason
    text: str  # the reason as one sentence with the numbers

    # Work a second.
    offered_s: float = 0.0  # measured over the last 8 s
    planned_s: float = 0.0  # for which the replicas are sized
    forecast_s: float = 0.0  # 0.0: there is no forecast
    forecast_trusted: bool = False  # the forecast has been better than persistence

    time_to_capacity_s: float = 0.0  # from an order until the replica is hot, measured p90
    observed: bool = False  # mode OBSERVE: the targets are shown, not carried out


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """What the shared pool should be."""

    replicas: int = 0
    # By pool replica: the models that it should hold. A model that is not listed is unloaded once
    # it has no work there.
    residents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    text: str = ""  # why, in a sentence

    # The pool's account so far.
    cost_hours: float = 0.0  # replica hours
    saved_s: float = 0.0  # work that the pool could take and the models' own replicas could not


@dataclass(frozen=True, slots=True)
class Decisions:
    """One decision of the autoscaler, for all models and the pool."""

    models: Mapping[str, ModelDecision] = field(default_factory=dict)
    pool: PoolDecision = PoolDecision()
