"""Which settings does the core take for one model: lengths, batches, bounds, controllers?

Plain frozen values. `deployments.settings` declares what users write, with its own defaults, and
translates it into these. Every shedding policy has a `Mode`. Every controller has a setting that
fixes the value that it would learn. `frozen` stops all learning at once: what was learnt stays in
force. Lengths are tokens, times seconds, costs predicted device seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from routers.api.errors import BadSettings


class Mode(Enum):
    """Does a shedding policy act?"""

    OFF = "off"  # it is not asked
    OBSERVE = "observe"  # what it would have shed is counted, and let in
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """How do bucket edges follow the lengths that arrive?"""

    adaptive: bool = False  # solve edges from a histogram of the lengths that arrive
    max_edges: int = 8
    solve_every_s: float = 60.0
    half_life_s: float = 600.0  # of the histogram: ten looks, so that one burst moves no edge
    # Switch to new edges when predicted waste falls by this share; less is noise of the lengths.
    min_gain: float = 0.1

    # The edges are the shapes that the model was compiled for: they never adapt, and every batch is
    # padded to its bucket's edge.
    fixed_shapes: bool = False
    switch_s: float = 0.0  # cost of running another shape than the last one


@dataclass(frozen=True, slots=True)
class CodelParameters:
    """CoDel: shed a request that waited over 2 x `target_s`, while no row of its flow waited less
    than `target_s` in the last `interval_s`."""

    mode: Mode = Mode.OBSERVE
    target_s: float = 0.02  # a fifth of the usual SLO; it only counts unless told to enforce
    interval_s: float = 0.5


@dataclass(frozen=True, slots=True)
class LimitParameters:
    """A bound on a flow's requests in the core (waiting and running) at one gateway, learnt from
    queueing delay."""

    mode: Mode = Mode.OBSERVE
    fixed: int | None = None  # this bound instead of a learnt one
    least: int = 16  # bounds of what is learnt: half a batch, and none
    most: int = 100_000


@dataclass(frozen=True, slots=True)
class AdmissionParameters:
    """Parameters of the admission controllers, and the bound on queued work."""

    # Call a request late on arrival when the work ahead of it cannot be served before its deadline,
    # and reject it where no idle moment is left for late requests.
    feasibility: Mode = Mode.ENFORCE
    margin_s: float | None = None  # fixed margin of its forecasts; None: learnt
    # Fixed seconds of late work that may wait; None: learnt.
    best_effort_capacity_s: float | None = None

    max_queue_s: float = float("inf")  # bound on waiting work, predicted seconds a replica
    codel: CodelParameters = field(default_factory=CodelParameters)
    limit: LimitParameters = field(default_factory=LimitParameters)
    # By name: modes of controllers without parameters here; those that are not named enforce.
    modes: tuple[tuple[str, Mode], ...] = ()


@dataclass(frozen=True, slots=True)
class HedgeParameters:
    """When is a batch, or a request that generates, copied to a second replica?

    mode "off": never. "hedge": once it has taken longer than the hedging policy allows. "tied":
    besides, a batch staged behind a running one gets a copy at once, where another replica has a
    free slot.
    """

    mode: str = "hedge"
    # Of its bucket's times, for the policy "quantile": about one copy for 20 first leases, which is
    # also the budget below (The Tail at Scale, CACM'13).
    quantile: float = 0.95
    fixed_delay_s: float | None = None  # hedge after this time instead of the quantile
    multiple: float = 2.0  # of its prediction, for the policy "multiple"
    # Device seconds of extra work a second of first leases. Hedges, ties, probes and retries are
    # paid from this one budget; probes and retries are sent even when it is empty.
    budget: float = 0.05
    # Above it there are neither hedges nor ties: they would take the place of first leases.
    max_utilisation: float = 0.8
    min_samples: int = 30  # of a bucket: fewer have no 95th percentile


@dataclass(frozen=True, slots=True)
class OutlierParameters:
    """When is a slow replica ejected, and how often is an ejected one probed?"""

    # A replica is ejected when its slowdown (measured over predicted time) exceeds the median of
    # its group by this factor; inf: never.
    eject_ratio: float = 2.0
    max_ejected: float = (
        0.5  # largest share of a group's replicas: the median must be of the others
    )
    probe_s: float = 1.0  # from one probe to the next; doubles while the replica stays slow
    max_probe_s: float = 30.0


@dataclass(frozen=True, slots=True)
class SilenceParameters:
    """When is a replica that owes an answer silent?

    mode "suspend": after twice the `quantile` of what its batches take. It then gets no new work
    until it speaks, and its rows that may run twice are moved. "off": never.
    """

    mode: str = "suspend"
    quantile: float = 0.99
    least_s: float = 0.25  # bounds of that time
    most_s: float = 10.0
    fixed_s: float | None = None  # this time instead


@dataclass(frozen=True, slots=True)
class GenerationParameters:
    """A model that generates, on stream replicas."""

    # Flows are compared by weighted tokens: prompt tokens that were not cached x `input_weight`
    # + output tokens x `output_weight`.
    input_weight: float = 1.0  # both as in VTC (OSDI'24)
    output_weight: float = 2.0

    # Fixed values of what is learnt; None: learnt.
    output_tokens: int | None = None  # of a request
    tokens_per_s: float | None = None  # weighted, of a full replica
    prompt_tokens_per_s: float | None = None  # that a replica reads

    reserve_quantile: float = 0.9  # of output lengths: room in the cache is kept for this one
    # A prompt with more tokens to be read is long: engines usually read it in several steps.
    long_tokens: int = 2048
    max_long_tokens: float = 4096.0  # of long prompts that a replica may be reading at once

    affinity: str = "prefix"  # or "session", or "off"
    block_tokens: int = 0  # the unit in which prompts share a replica's cache; 0: they do not
    max_blocks: int = 262_144  # remembered, for all replicas together
    adapters_resident: int = 0  # adapters that a replica may hold; 0: requests ask for none

    tpot_s: float = float("inf")  # promised time of each output token after the first; inf: none
    # Measured engine steps: (running sequences, tokens of the step, seconds).
    profile: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Replicas of one kind, and where they differ from the model's settings."""

    name: str
    profile: tuple[tuple[int, int, float], ...] = ()  # as `DispatcherSettings.profile`
    engine_profile: tuple[tuple[int, int, float], ...] = ()  # as `GenerationParameters.profile`
    max_size: int | None = None  # rows a batch, where fewer than the model's; None: the model's
    # A reserve is used only while rows would wait longer than this for the other groups; 0: the
    # group is no reserve.
    after_s: float = 0.0
    max_tokens: int | None = None  # tokens a batch; None: the model's
    # The longest row that the group takes: one of `bucket_edges`. None: as long as the model takes.
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyNames:
    """Which policy answers each question? By their names in `routers.policies.registry`."""

    order: str = "sfq"  # another order starts with new accounts
    batching: str = "ragged"
    placement: str = "finish_first"
    # The controllers that are asked, in this order. One that is no longer named forgets what it has
    # learnt.
    admission: tuple[str, ...] = ("limit", "feasibility", "best_effort_capacity", "codel")
    hedging: str = "quantile"
    edges: str = "seconds"
    preemption: str = "least_urgent"


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """All that the core needs to know of one model."""

    # Batches. `bucket_edges`: ascending upper bounds in tokens, inclusive; the last one is the
    # longest row. Adaptive edges start from them.
    bucket_edges: tuple[int, ...]
    max_size: int = 32  # rows a batch
    max_tokens: int = 16384  # tokens a batch: rows x the longest where it `pads`, else their sum
    pads: bool = True
    slo_s: float = 0.1
    max_slo_share: float = 0.45  # of the SLO: a batch of several rows is predicted to take no more
    fixed_size: int | None = None  # most rows a batch, whatever the SLO's share says
    # "auto": an idle replica waits for more rows while slack and arrival rate pay for it.
    hold: str = "never"

    # The queue.
    priorities: int = 3
    ageing_s: float = 1.0  # a priority passed over for so long leads one batch
    max_queue_rows: int = 2048  # bound on waiting rows, and on the rows of one request
    # What the replicas can serve within this time is the bound on waiting rows; None: the number
    # above is.
    queue_timeout_s: float | None = None
    max_late_rows: int = 1024  # bound on late rows that wait
    # A request that can no longer meet its deadline waits behind all that can: with "demote" until
    # it expires, with "refuse" until its deadline.
    late: str = "demote"

    # Costs.
    initial_cost_s: float = 0.0  # assumed seconds a batch until one was measured
    profile: tuple[tuple[int, int, float], ...] = ()  # (rows, width, seconds), measured beforehand

    # A stream lease of a less urgent priority, without a token yet, may be stopped and queued again
    # for the most urgent row.
    preempt_streams: bool = False
    frozen: bool = False
    buckets: BucketSettings = field(default_factory=BucketSettings)
    admission: AdmissionParameters = field(default_factory=AdmissionParameters)
    hedge: HedgeParameters = field(default_factory=HedgeParameters)
    outliers: OutlierParameters = field(default_factory=OutlierParameters)
    silence: SilenceParameters = field(default_factory=SilenceParameters)
    # Of a model that generates: deadlines are for the first token, the longest row is the longest
    # prompt. None: the model does not generate.
    generation: GenerationParameters | None = None
    # Where replicas are of several kinds. Work is counted in seconds of the first group; the
    # groups' profiles replace the model's.
    groups: tuple[GroupSettings, ...] = ()
    # How long a row of a lost lease waits for a second replica at most, before it may run on the
    # last one.
    suspect_hold_s: float = 0.0
    policies: PolicyNames = field(default_factory=PolicyNames)


def validate(settings: DispatcherSettings) -> None:
    """Raises `BadSettings`, which names the field. The core relies on what is checked here."""
    edges = settings.bucket_edges
    if not edges or edges[0] < 1 or any(a >= b for a, b in pairwise(edges)):
        raise BadSettings(f"bucket_edges must be ascending and at least 1, got {edges}")
    for name in ("max_size", "max_tokens", "max_queue_rows", "priorities"):
        if getattr(settings, name) < 1:
            raise BadSettings(f"{name} must be at least 1, got {getattr(settings, name)}")
    for name in ("max_late_rows", "ageing_s", "initial_cost_s", "slo_s", "max_slo_share"):
        if getattr(settings, name) < 0:
            raise BadSettings(f"{name} must not be negative, got {getattr(settings, name)}")
    _one_of("late", settings.late, ("demote", "refuse"))
    _one_of("hold", settings.hold, ("never", "auto"))
    _one_of("silence.mode", settings.silence.mode, ("off", "suspend"))
    _check_groups(settings.groups)
    for bound in length_bounds(settings):
        if bound not in edges:
            raise BadSettings(f"max_length of a group must be one of bucket_edges, got {bound}")


def length_bounds(settings: DispatcherSettings) -> tuple[int, ...]:
    """The lengths at which groups end that take shorter rows than the model, ascending. They are
    edges of buckets at all times, so a group takes all rows of a bucket or none."""
    longest = settings.bucket_edges[-1]
    bounds = {g.max_length for g in settings.groups if g.max_length is not None}
    return tuple(sorted(bound for bound in bounds if bound < longest))


def _check_groups(groups: tuple[GroupSettings, ...]) -> None:
    names = [each.name for each in groups]
    if len(set(names)) < len(names):
        raise BadSettings(f"groups must have different names, got {names}")
    if any(each.after_s < 0.0 for each in groups):
        raise BadSettings("after_s of a group must not be negative")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadSettings(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
