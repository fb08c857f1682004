"""The autoscaler's settings: each model's terms and policy, the shared budget, the pool.

Plain values; `deployments/settings/` checks the user's file. Work is counted in *reference
seconds*: seconds of the first group in a model's settings, as in `routers/estimates/groups.py`. A
replica of a group with `speed` 1 does one reference second of work in a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Mode(Enum):
    """What becomes of decisions."""

    OFF = "off"  # nothing is decided; there are `min` replicas
    OBSERVE = "observe"  # decisions are shown, not carried out
    ENFORCE = "enforce"  # decisions are carried out


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How one model is scaled: the fields of `autoscaling/policies/*.yaml`."""

    mode: Mode = Mode.ENFORCE
    knee: float = 0.85  # largest share of its time that a replica is planned to be busy, 0..1
    survive: int = 0  # replicas that may be lost while the rest still keeps the SLO
    spare: int = 0  # hot replicas beyond the wanted number

    # The forecast.
    forecast: bool = True
    season_s: float = 86_400.0  # period in which demand is expected to repeat; 0: it is not
    quantile: float = 0.95  # of the forecast's error that the plan covers

    # Spikes.
    instant: bool = True  # whether replicas are added for a spike at once
    windows_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # of the envelope
    spike_sigmas: float = 5.0  # how far above the plan a window's demand is a spike
    # The largest number that a spike wanted holds for this time; no other replica is removed for
    # this time after a spike.
    hold_s: float = 10.0

    # Removing replicas.
    # The largest number wanted within this time holds. None: max(600, 4 x time to capacity).
    down_window_s: float | None = None
    down_step: float = 0.1  # largest share of the replicas that is removed at once
    idle_s: float = 300.0  # with `min` 0: time without a request before the last one is removed

    pending_limit_s: float = 60.0  # a replica unplaced for longer stops further orders


@dataclass(frozen=True, slots=True)
class Needs:
    """What one replica takes of the cluster."""

    # (name, amount) as Ray counts them: `CPU`, `GPU`, `memory` in bytes, custom resources.
    resources: tuple[tuple[str, float], ...] = ()
    cost_per_hour: float = 0.0  # in the budget's currency


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """The bounds of one group of a model's replicas."""

    name: str = ""  # "": the model has no groups
    min: int = 1
    max: int = 1
    reserve: bool = False  # used and scaled only when the other groups are at their maximum
    needs: Needs = Needs()
    max_length: int | None = None  # the longest row that it takes; None: all rows

    def takes_above(self, length: int) -> bool:
        """Whether it takes rows longer than this."""
        return self.max_length is None or self.max_length > length


@dataclass(frozen=True, slots=True)
class ModelTerms:
    """What one model promises, and how it may be scaled."""

    name: str
    slo_s: float  # from arrival to the answer, or to the first token
    groups: tuple[GroupTerms, ...] = (GroupTerms(),)
    percentile: float = 0.99  # share of requests that should keep the SLO, 0..1
    priority: int = 0  # 0 is the most urgent
    policy: PolicySettings = PolicySettings()
    in_pool: bool = False  # the shared pool may run it
    pool_key: str = ""  # digest of the settings with which the pool would run it

    @property
    def bounds(self) -> tuple[int, ...]:
        """The lengths at which groups end, ascending. Rows above one are not for all groups."""
        return tuple(sorted({g.max_length for g in self.groups if g.max_length is not None}))

    @property
    def may_sleep(self) -> bool:
        """Whether the last replica may be removed."""
        return all(group.min == 0 for group in self.groups)


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that all models together may take. None or absent: only the cluster bounds it."""

    resources: tuple[tuple[str, float], ...] = ()
    cost_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """The shared pool: replicas that belong to no model and can hold several."""

    min: int = 0
    max: int = 0
    memory_bytes: int = 1 << 30  # for the weights that one replica holds at once
    # A loaded model stays at least `residency_s`, and at least this many times its load time, so
    # that loading takes no more than a tenth of its stay.
    residency_s: float = 10.0
    residency_loads: float = 10.0
    needs: Needs = Needs()
    auto: bool = True  # the number follows what the pool would have been worth in recorded spikes


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """The autoscaler's settings for one cluster."""

    models: dict[str, ModelTerms] = field(default_factory=dict)
    budget: Budget = Budget()
    pool: PoolTerms | None = None  # None: there is no pool
