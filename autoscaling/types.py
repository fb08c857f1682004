"""What the autoscaler hears and says: readings in, decisions out. Plain values.

Times are seconds on the caller's monotonic clock; work is in reference seconds (`settings`). What
gateways say are counters that only grow, by source, so that a lost message loses nothing; a source
that begins anew has another name. Nothing here knows Ray, HTTP or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class DemandReading:
    """What one gateway has seen of one model since it began.

    offered_s: predicted work of all first arrivals, before feasibility, bounds and fallback;
    without refusals for a tenant's own limits and without kept answers. offered_sq_s2: sum of the
    squares of each request's work. requests: their number. served_s: work that was answered.
    refused: requests by reason. by_length: offered work by upper edge of the length interval,
    tokens. Now: backlog_s, work that waits; oldest_wait_s; urgent: something waits that no running
    replica can take.
    """

    offered_s: float = 0.0
    offered_sq_s2: float = 0.0
    requests: int = 0
    served_s: float = 0.0
    refused: Mapping[str, int] = field(default_factory=dict)
    by_length: Mapping[int, float] = field(default_factory=dict)
    backlog_s: float = 0.0
    oldest_wait_s: float = 0.0
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class GroupReading:
    """Replicas of one group as they are now, and what one can do.

    target: what the cluster is asked for; hot: can be sent work; starting; draining: told to go and
    still there. speed: reference seconds of work that one does a second. batch_s: predicted seconds
    of its typical batch at the planned size, batch_p99_s: their 99th percentile, batch_scv: squared
    coefficient of variation of batches' service time. unplaced_s: how long the oldest that starts
    has waited for a place, 0: none waits; missing: what it waits for.
    """

    name: str = ""
    target: int = 0
    hot: int = 0
    starting: int = 0
    draining: int = 0
    speed: float = 1.0
    batch_s: float = 0.05
    batch_p99_s: float = 0.1
    batch_scv: float = 0.25
    unplaced_s: float = 0.0
    missing: str = ""


class State(Enum):
    """How far a replica of a model is from serving. COLD: nothing is there. STAGED: the artifact is
    on the node, converted. WARM: a process is up with the runtime imported. HOT: it serves."""

    COLD = "cold"
    STAGED = "staged"
    WARM = "warm"
    HOT = "hot"


@dataclass(frozen=True, slots=True)
class StartReading:
    """One start that was seen to its end: seconds from the order to hot, from which state, and the
    seconds of each phase in order."""

    model: str
    group: str
    began_in: State
    seconds: float
    phases: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ResidentReading:
    """A model in a pool replica: whether it serves (else it is being loaded), its bytes, the
    seconds its last load took, when it was loaded, and whether work runs or waits there."""

    model: str
    serves: bool
    size_bytes: int
    load_s: float
    since: float
    busy: bool


@dataclass(frozen=True, slots=True)
class PoolReading:
    """One pool replica. free_bytes: for further weights."""

    replica: str
    residents: tuple[ResidentReading, ...] = ()
    free_bytes: int = 0


class Reason(Enum):
    """Why a target is what it is; the first that applies."""

    FIXED = "fixed"  # min = max, or mode off
    MANUAL = "manual"  # somebody said so
    FROZEN = "frozen"
    FIRST = "first"  # a first replica must say what the model is
    UNKNOWN = "unknown"  # no fresh reading: hold
    AWAKE = "awake"  # a request waits and nothing runs
    SPIKE = "spike"
    BACKLOG = "backlog"
    FORECAST = "forecast"
    STEADY = "steady"  # as many as are wanted
    HELD = "held"  # fewer are wanted, not yet
    DOWN = "down"
    ASLEEP = "asleep"
    BUDGET = "budget"  # more are wanted than the budget or the cluster has
    UNPLACED = "unplaced"  # one waits for a place: no further ones are asked for


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """wanted: before budget, bounds in time and the manual switch; target: what to ask for."""

    name: str
    wanted: int
    target: int


@dataclass(frozen=True, slots=True)
class ModelDecision:
    """reason and `text`, one sentence with the numbers, say why. Work a second: offered_s, measured
    over the last 8 s; planned_s, what the sizes are for; forecast_s, 0.0: none; forecast_trusted:
    it has been better than persistence. time_to_capacity_s: of a replica from the order to hot, p90
    as measured. observed: in mode OBSERVE, the targets are what would have been asked for."""

    model: str
    groups: tuple[GroupTarget, ...]
    reason: Reason
    text: str
    offered_s: float = 0.0
    planned_s: float = 0.0
    forecast_s: float = 0.0
    forecast_trusted: bool = False
    time_to_capacity_s: float = 0.0
    observed: bool = False


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """replicas: how many the pool should have. residents: by pool replica, the models that it
    should hold, those to keep included; what is not listed goes once it has no work. text: why.
    cost_hours: replica hours of the pool so far; saved_s: work that it could take in them and the
    models' own replicas could not."""

    replicas: int = 0
    residents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    text: str = ""
    cost_hours: float = 0.0
    saved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Decisions:
    models: Mapping[str, ModelDecision] = field(default_factory=dict)
    pool: PoolDecision = PoolDecision()
