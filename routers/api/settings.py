"""What the core is told of one model: lengths, batches, bounds, and how each controller behaves.

Plain frozen values without defaults of the shell's: `deployments.settings` declares what users
write and translates. Every shedding policy has a `Mode`; every controller has a fixed value beside
what it would learn, and `frozen` stops all learning at once: state stays as it is, decisions go on.
Lengths are tokens, times seconds, costs predicted device seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from routers.api.errors import BadSettings


class Mode(Enum):
    """Whether a shedding policy acts, only counts what it would have done, or is not asked."""

    OFF = "off"
    OBSERVE = "observe"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """How bucket edges follow the lengths that arrive.

    adaptive: solve edges anew from the live histogram, at most `max_edges` of them, every
    `solve_every_s`, and switch when predicted waste falls by `min_gain` (relative). minimise:
    "seconds" of device time or "padding". half_life_s: of the histogram. Fixed shapes (compiled
    profiles) are never adaptive: the edges are the shapes, every batch is padded to its bucket's
    edge, and running another shape than the last one costs `switch_s`.
    """

    adaptive: bool = False
    max_edges: int = 8
    minimise: str = "seconds"
    solve_every_s: float = 60.0
    half_life_s: float = 600.0
    min_gain: float = 0.1
    fixed_shapes: bool = False
    switch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CodelParameters:
    """Shed what waited over 2 x `target_s` while no row of the last `interval_s` waited less than
    `target_s`."""

    mode: Mode = Mode.OBSERVE
    target_s: float = 0.02
    interval_s: float = 0.5


@dataclass(frozen=True, slots=True)
class LimitParameters:
    """A bound on a flow's requests in the core (waiting and running) at one gateway, learnt from
    queueing delay; `fixed`: this many, nothing is learnt."""

    mode: Mode = Mode.OBSERVE
    fixed: int | None = None
    least: int = 16
    most: int = 100_000


@dataclass(frozen=True, slots=True)
class AdmissionParameters:
    """feasibility: call a request late on arrival when what is ahead of it cannot be served before
    its deadline, and refuse it where no idle moment is left for late ones. margin_s,
    best_effort_capacity_s: fixed values of what it learns, the margin of its forecasts and the
    seconds of late work that may wait. max_queue_s: bound on predicted seconds of waiting work a
    replica; inf: none. modes: of controllers that have no parameters here, by name; else they
    enforce."""

    feasibility: Mode = Mode.ENFORCE
    margin_s: float | None = None
    best_effort_capacity_s: float | None = None
    max_queue_s: float = float("inf")
    codel: CodelParameters = field(default_factory=CodelParameters)
    limit: LimitParameters = field(default_factory=LimitParameters)
    modes: tuple[tuple[str, Mode], ...] = ()


@dataclass(frozen=True, slots=True)
class HedgeParameters:
    """mode "off"; "hedge": a second copy of a batch on another replica once it has taken longer
    than the `quantile` of its bucket (`fixed_delay_s`: than that); "tied": besides, a batch staged
    behind a running one gets a copy at once where another replica has a free slot. One budget of
    `budget` x primary cost (seconds) pays for hedges, ties and retries. Off above
    `max_utilisation` and until `min_samples` batches of the bucket were measured."""

    mode: str = "hedge"
    quantile: float = 0.95
    fixed_delay_s: float | None = None
    budget: float = 0.05
    max_utilisation: float = 0.8
    min_samples: int = 30


@dataclass(frozen=True, slots=True)
class OutlierParameters:
    """A replica slower than `eject_ratio` x the pool's median (after the cost model) is ejected,
    at most `max_ejected` of them (share); it gets one batch every `probe_s`, doubling to
    `max_probe_s` while it stays slow. eject_ratio inf: never."""

    eject_ratio: float = 2.0
    max_ejected: float = 0.5
    probe_s: float = 1.0
    max_probe_s: float = 30.0


@dataclass(frozen=True, slots=True)
class SilenceParameters:
    """mode "suspend": a replica that owes an answer and has said nothing for twice the `quantile`
    of what its batches take gets no new work until it speaks, and what may run twice goes
    elsewhere; "off": never. least_s, most_s: bounds of that time; fixed_s: this time instead."""

    mode: str = "suspend"
    quantile: float = 0.99
    least_s: float = 0.25
    most_s: float = 10.0
    fixed_s: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationParameters:
    """A model that generates, on stream replicas. Weighted tokens, in which it is fair: input not
    cached x `input_weight` + output x `output_weight`.

    output_tokens, tokens_per_s, prompt_tokens_per_s: fixed values of what is learnt: the output of
    a request, the weighted tokens a second of a full replica, the prompt tokens a second that it
    reads. reserve_quantile: of the outputs, what room is kept for. long_tokens: of a prompt to be
    read, beyond which it is long; max_long_tokens: of long prompts that a replica may be reading at
    once. affinity: "off", "session" or "prefix"; block_tokens: the unit in which prompts share a
    replica's cache, 0: they do not; max_blocks: remembered for all replicas. tpot_s: promised time
    for each output token after the first, inf: none. profile: (running sequences, tokens of the
    step, seconds) of engine steps that were measured.
    """

    input_weight: float = 1.0
    output_weight: float = 2.0
    output_tokens: int | None = None
    tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    reserve_quantile: float = 0.9
    long_tokens: int = 2048
    max_long_tokens: float = 4096.0
    affinity: str = "prefix"
    block_tokens: int = 0
    max_blocks: int = 262_144
    tpot_s: float = float("inf")
    profile: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Replicas of one kind, and what of the model they do their own way. profile, engine_profile:
    see `DispatcherSettings` and `GenerationParameters`. max_size: rows a batch, None: the model's.
    after_s: of a reserve, used only while the other groups would let what waits wait longer; 0: it
    is none."""

    name: str
    profile: tuple[tuple[int, int, float], ...] = ()
    engine_profile: tuple[tuple[int, int, float], ...] = ()
    max_size: int | None = None
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyNames:
    """Which policy answers each question; the names are `routers.policies.registry`'s. With
    another order, who has had how much is forgotten. admission: those that are asked, in this
    order; what one has learnt that is named no more is forgotten."""

    order: str = "sfq"
    batching: str = "ragged"
    placement: str = "finish_first"
    admission: tuple[str, ...] = ("limit", "feasibility", "best_effort_capacity", "codel")


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """What the core needs to know of one model.

    bucket_edges: ascending upper bounds in tokens, inclusive; the last is the longest row; what
    adaptive edges start from. max_size rows and max_tokens a batch (padded tokens, rows x longest,
    when `pads`; else the sum). slo_s and max_slo_share: a batch of more than one row is predicted
    to take at most this share of the SLO. fixed_size: rows a batch at most instead of what these
    two say. hold: "never" waits for a batch to fill; "auto" waits on an idle replica while slack
    and arrival rate pay for it. max_queue_rows: bound on waiting rows and on a request's;
    queue_timeout_s: what replicas can serve within it is the bound on waiting rows instead, None:
    that number is. max_late_rows: how many may be late ones. ageing_s: a priority passed over for
    so long leads one batch. late: what happens to a request that can no longer be expected to meet
    its deadline: it goes behind all that still can. There "demote" keeps it until it expires,
    "refuse" until its deadline.
    profile: (rows, width, seconds) measured while warming up. preempt_streams: running work of the
    least urgent priority on a stream replica may be stopped and requeued for the most urgent.
    generation: of a model that generates; deadlines then are of the first token, and its longest
    row is the longest prompt. groups: where its replicas are of several kinds; work is counted in
    seconds of the first of them, and their profiles replace the model's. suspect_hold_s: how long a
    row that was on a lost replica waits for a second one, at most, before it is tried on the last.
    """

    bucket_edges: tuple[int, ...]
    max_size: int = 32
    max_tokens: int = 16384
    pads: bool = True
    slo_s: float = 0.1
    max_slo_share: float = 0.45
    fixed_size: int | None = None
    hold: str = "never"
    priorities: int = 3
    ageing_s: float = 1.0
    max_queue_rows: int = 2048
    queue_timeout_s: float | None = None
    max_late_rows: int = 1024
    late: str = "demote"
    initial_cost_s: float = 0.0  # assumed seconds a batch until one was measured
    profile: tuple[tuple[int, int, float], ...] = ()
    preempt_streams: bool = False
    frozen: bool = False
    buckets: BucketSettings = field(default_factory=BucketSettings)
    admission: AdmissionParameters = field(default_factory=AdmissionParameters)
    hedge: HedgeParameters = field(default_factory=HedgeParameters)
    outliers: OutlierParameters = field(default_factory=OutlierParameters)
    silence: SilenceParameters = field(default_factory=SilenceParameters)
    generation: GenerationParameters | None = None
    groups: tuple[GroupSettings, ...] = ()
    suspect_hold_s: float = 0.0
    policies: PolicyNames = field(default_factory=PolicyNames)


def validate(settings: DispatcherSettings) -> None:
    """Raises `BadSettings` naming the field; the core relies on what is checked here."""
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


def _check_groups(groups: tuple[GroupSettings, ...]) -> None:
    names = [each.name for each in groups]
    if len(set(names)) < len(names):
        raise BadSettings(f"groups must have different names, got {names}")
    if any(each.after_s < 0.0 for each in groups):
        raise BadSettings("after_s of a group must not be negative")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadSettings(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
