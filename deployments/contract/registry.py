"""What the registry and those who ask it tell each other: the view, outlines, progress.

Gateways route by a `View`, which they long-poll. Anchors say what is known of a model before it is
ready, replicas how far their start has come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deployments.contract.codec import MessageCodec
from deployments.contract.description import ModelDescription
from deployments.contract.rollout.observations import Fit, Observations
from deployments.contract.rollout.terms import RolloutRoute
from runtimes.types import DeviceMemory

ANSWER_S = 5.0
"""Seconds that a caller waits for the registry at most: it may hang without being dead."""
LEASE_S = 5.0
SILENT_S = 3.0  # a gateway that has not pushed for so long may have ended
SNAPSHOT_KEEPS_S = 10.0  # a gateway's snapshot is dropped after that
RATES_KEEP_S = 3.0
"""Seconds for which a gateway's rates count. It says them once a second, and one that died asks for
no share of a rate; the inputs that it lost replicas with stay the same."""

RateReport = dict[str, list[float]]
"""By tenant, or by key that has rates of its own: [requests asked for a second, requests passed,
tokens asked for a second, tokens passed]."""


@dataclass(frozen=True, slots=True)
class CrashedInput:
    """One input that was on a replica when that was lost."""

    key: bytes  # the input's fingerprint, which includes the model's version
    replicas: tuple[str, ...]  # that were lost with it
    left_s: float  # for how long it still counts
    convicted: bool  # quarantined, rather than only suspected (the wire's word)


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What one gateway reports of one model: inputs that have ended replicas. Each gateway repeats
    its whole report with every push, so a gateway that joins later, or a registry that has
    restarted, knows all of it one push later. Times are seconds left, never readings of a clock."""

    inputs: tuple[CrashedInput, ...] = ()
    # By tenant: the replicas that the tenant's inputs have ended, and for how many
    # seconds each still counts. By replica, because two gateways may report the same one.
    spent: dict[str, dict[str, float]] = field(default_factory=dict)


CrashReports = dict[str, CrashReport]
"""By model; a canary has an entry under the name that it is served under. `OF_GATEWAYS`: of
requests that have ended gateways, which are named like replicas."""
OF_GATEWAYS = ""


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A model that a replica of the shared pool serves."""

    model: str
    member: str  # id of this residency: from one loading of the model to its unloading
    replica: str  # the pool replica's id in Serve
    digest: str  # of the settings that the model was loaded with
    version: str  # of the model that was loaded
    channel: str  # address where it listens
    slots: int  # batches that each gateway may have there
    after_s: float  # predicted wait on the model's own replicas beyond which this one is used
    channel_versions: str = "3"  # that it speaks, with commas between them


MEMBERS = MessageCodec[tuple[PoolMember, ...]](tuple[PoolMember, ...])


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """What is known of a model before any of its replicas is ready."""

    fallback: str = ""  # the model that stands in until then; "": none
    runtime: str = ""  # as in its settings
    optional: bool = False  # readiness does not wait for it
    aliases: tuple[str, ...] = ()  # as in its settings
    task: str = ""  # as in its settings


STARTED = ("ready", "failed")  # the phases in which a start is over


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """How far one replica of a model has come with its start."""

    model: str
    replica: str
    phase: str  # staging … ready | failed
    fraction: float  # 0..1
    detail: str = ""
    passed: tuple[str, ...] = ()  # phases before this one, so that a look misses no short phase
    # Seconds of each phase in `passed`, in that order. The first phase is the process, from its
    # beginning until the replica's own code runs.
    spent: tuple[tuple[str, float], ...] = ()
    digest: str = ""  # of the settings that it was started with


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One model, or canary, at one gateway, for `headrace status`."""

    replicas: int = 0  # that the gateway knows
    waiting_rows: int = 0
    late_rows: int = 0
    oldest_wait_s: float = 0.0
    leases: int = 0
    backlog_s: float = 0.0
    drift: int = 0
    rows_by_bucket: dict[str, int] = field(default_factory=dict)  # by upper edge; no empty ones
    rows_by_tenant: dict[str, int] = field(default_factory=dict)  # no empty ones
    tokens_per_s: float = 0.0
    # Of a model that generates, by replica: running and waiting sequences, and the share of the
    # cache in use.
    engines: dict[str, list[float]] = field(default_factory=dict)
    ejected: list[str] = field(default_factory=list)  # replicas that are left out as slow
    asleep: bool = False  # it answers without a replica
    cost_fit: Fit | None = None  # seconds of a batch by now, of the first of several groups
    device_memory: dict[str, DeviceMemory] = field(default_factory=dict)  # by replica on a GPU
    # By replica that has lately said that it ends: seconds ago, and why.
    ended: dict[str, tuple[float, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewaySnapshot:
    """What a gateway pushes to the registry once a second, and at once after a loss."""

    models: dict[str, ModelSnapshot] = field(default_factory=dict)
    inflight: int = 0
    draining: bool = False
    frozen: bool = False
    problem: str | None = None  # for an operator
    rates: RateReport = field(default_factory=dict)
    crashes: CrashReports = field(default_factory=dict)
    rollouts: list[Observations] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GatewayExchange:
    """What a gateway gets for its snapshot: the last word of each other gateway, by gateway."""

    rates: dict[str, RateReport] = field(default_factory=dict)
    crashes: dict[str, CrashReports] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """What gateways route by. Everything in a view that is not `complete` is true, but models may
    be missing from it."""

    revision: int
    models: dict[str, ModelDescription]  # live versions; canaries under names of their own
    declared: frozenset[str]  # includes models that are not ready
    draining: bool
    complete: bool = True
    fallbacks: dict[str, str] = field(default_factory=dict)  # by model, see `ModelOutline`
    pool: dict[str, tuple[PoolMember, ...]] = field(default_factory=dict)  # by model
    optional: frozenset[str] = frozenset()  # models that readiness does not wait for
    rollouts: dict[str, RolloutRoute] = field(default_factory=dict)  # what goes to canaries
    controller_ends: int = 0  # how often this registry has killed Serve's controller
    failures: dict[str, str] = field(default_factory=dict)  # why a model's latest start failed
    aliases: dict[str, str] = field(default_factory=dict)  # other names of models, to their own
    tasks: dict[str, str] = field(default_factory=dict)  # by model, of those that were begun


@dataclass(frozen=True, slots=True)
class RegistryStatus:
    """All that the registry knows."""

    view: View
    outlines: dict[str, ModelOutline]  # by model
    progress: list[ReplicaProgress]  # the newest last
    gateways: dict[str, GatewaySnapshot]  # by gateway


OUTLINE = MessageCodec[ModelOutline](ModelOutline)
PROGRESS = MessageCodec[ReplicaProgress](ReplicaProgress)
ALL_PROGRESS = MessageCodec[list[ReplicaProgress]](list[ReplicaProgress])
SNAPSHOT = MessageCodec[GatewaySnapshot](GatewaySnapshot)
EXCHANGE = MessageCodec[GatewayExchange](GatewayExchange)
VIEW = MessageCodec[View](View)
STATUS = MessageCodec[RegistryStatus](RegistryStatus)
