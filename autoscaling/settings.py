"""What the autoscaler is told: each model's terms and policy, the budget they share, the pool.

Plain values, checked by whoever reads the user's file (`deployments/settings/`). Costs of work are
seconds of a model's *reference* group, the first that its settings list, as in
`routers/estimates/groups.py`: a replica of a group of `speed` 1 does one such second in a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Mode(Enum):
    """OFF: replicas stay as many as `min`, nothing is decided. OBSERVE: decided and shown, not
    done. ENFORCE: done."""

    OFF = "off"
    OBSERVE = "observe"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How one model is scaled: the fields of `autoscaling/policies/*.yaml`.

    knee: busiest share of its time, 0 to 1, that a replica is planned for. survive: replicas that
    may be lost while the rest still holds the SLO. spare: hot replicas beyond what is wanted.
    forecast: whether demand is forecast; season_s: the period that it is expected to repeat in, 0:
    none; quantile: of the forecast's error that is planned for. instant: whether spikes are
    answered at once; windows_s: of the traffic envelope; spike_sigmas: how far above the plan a
    window must be; hold_s: over which the largest number that a spike wanted holds, and how long
    after one nothing else goes. down_window_s: over which the largest want holds before replicas
    go, None: max(600, 4 x the measured time to capacity); down_step: largest share of the replicas
    that goes at once. idle_s: without a request before the last replica goes, where `min` is 0.
    pending_limit_s: how long a replica may wait for a place before no further one is asked for.
    """

    mode: Mode = Mode.ENFORCE
    knee: float = 0.85
    survive: int = 0
    spare: int = 0
    forecast: bool = True
    season_s: float = 86_400.0
    quantile: float = 0.95
    instant: bool = True
    windows_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    spike_sigmas: float = 5.0
    hold_s: float = 10.0
    down_window_s: float | None = None
    down_step: float = 0.1
    idle_s: float = 300.0
    pending_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What one replica takes of the cluster. resources: by name, as Ray counts them (`CPU`, `GPU`,
    `memory` in bytes, custom ones). cost_per_hour: in the budget's currency."""

    resources: tuple[tuple[str, float], ...] = ()
    cost_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """Replicas of one group of a model, `name` "" where it has none. reserve: used and scaled only
    when the other groups are at their most."""

    name: str = ""
    min: int = 1
    max: int = 1
    reserve: bool = False
    needs: Needs = Needs()


@dataclass(frozen=True, slots=True)
class ModelTerms:
    """slo_s: from arrival to answer, or to the first token; percentile: share of requests, 0 to 1,
    that is to keep it. priority: 0 is the most urgent. in_pool: the shared pool may run it;
    `pool_key`: digest of the settings that it would run with. asleep_ok: the last replica may go.
    """

    name: str
    slo_s: float
    groups: tuple[GroupTerms, ...] = (GroupTerms(),)
    percentile: float = 0.99
    priority: int = 0
    policy: PolicySettings = PolicySettings()
    in_pool: bool = False
    pool_key: str = ""

    @property
    def asleep_ok(self) -> bool:
        return all(group.min == 0 for group in self.groups)


@dataclass(frozen=True, slots=True)
class Budget:
    """What all models together may take; None or absent: no bound but the cluster's own."""

    resources: tuple[tuple[str, float], ...] = ()
    cost_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """The shared pool: replicas that belong to no model and can become several.

    memory_bytes: for the weights that one of them holds at once. residency_s: how long a model
    stays at least once it was loaded, or `residency_loads` times its load time if that is longer.
    auto: whether the number between min and max follows what recorded spikes were worth.
    """

    min: int = 0
    max: int = 0
    memory_bytes: int = 1 << 30
    residency_s: float = 10.0
    residency_loads: float = 10.0
    needs: Needs = Needs()
    auto: bool = True


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Of one cluster. pool: None: there is none."""

    models: dict[str, ModelTerms] = field(default_factory=dict)
    budget: Budget = Budget()
    pool: PoolTerms | None = None
