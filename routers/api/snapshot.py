"""The core in numbers at one moment, for metrics, `status` and the tests' invariants."""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.requests import FlowWork


@dataclass(frozen=True, slots=True)
class OfferedSnapshot:
    """work_s: offered, in all; sq_s2: sum of the squares of each request's; requests: their
    number. served_s: of what was answered, priced as it was offered; a cheaper model also serves
    what was offered to another. refused: rejected and evicted requests by `Reason`'s value.
    by_length: offered work of requests that were read, by the longest length of its interval, a
    power of two; the first row's length counts."""

    work_s: float = 0.0
    sq_s2: float = 0.0
    requests: int = 0
    served_s: float = 0.0
    refused: tuple[tuple[str, int], ...] = ()
    by_length: tuple[tuple[int, float], ...] = ()


# ---- snapshot ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    replica_id: str
    capacity: float
    held: float
    leases: int
    draining: bool
    drift: int  # accounted - actual, leases, as of its last answer
    unhealthy: bool = False  # lost something, overdue, silent or ejected: used when no other runs
    ejected: bool = False
    suspended: bool = False  # it is silent: it gets nothing until it speaks
    slowdown: float = 1.0  # measured seconds over its group's prediction
    group: str = ""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group of replicas. speed: work that one of them does in a second, seconds of the reference
    group. batch_s: predicted seconds of a typical batch; planned_*: `groups.PlannedService`.
    is_open: it may be used now, which a reserve may not always."""

    name: str
    running: int
    healthy: int
    speed: float
    batch_s: float
    is_open: bool
    planned_s: float = 0.0
    planned_p99_s: float = 0.0
    planned_scv: float = 0.0


@dataclass(frozen=True, slots=True)
class ControllerSnapshot:
    """A controller of admission, by its name in the registry of policies. shed: what it refused or
    evicted; would_shed: what it would have, in "observe". value: what it has learnt, see its
    `value`; by_flow: (priority, tenant, value), where it has one a flow."""

    name: str
    mode: str
    frozen: bool
    value: float
    shed: int
    would_shed: int
    by_flow: tuple[FlowWork, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowSnapshot:
    """A flow of late. waiting_s: predicted device seconds that wait on time; served_s:
    measured ones it was ever given by this gateway; start: its tag, virtual seconds."""

    tenant: str
    priority: int
    weight: float
    rows: int
    late_rows: int
    waiting_s: float
    served_s: float
    start: float


@dataclass(frozen=True, slots=True)
class GenerationSnapshot:
    """Of a model that generates. tokens_per_s: weighted ones, of a full replica;
    prompt_tokens_per_s: that a replica reads; most_leases: that keep the promised time a token at
    one replica, inf: no bound; blocks: of prompts remembered, of all replicas; trust: of the tokens
    predicted to be cached, the share that is; histories: of output lengths."""

    tokens_per_s: float
    prompt_tokens_per_s: float
    most_leases: float
    blocks: int
    trust: float
    histories: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters and levels for metrics, `status` and the tests' invariants."""

    waiting_rows: int
    late_rows: int
    waiting_requests: int
    oldest_wait_s: float
    leases: int
    leased_rows: int
    drift: int
    rows_by_bucket: tuple[tuple[int, int], ...]
    backlog_s: float  # predicted seconds of work that waits, as if on one replica
    replicas: tuple[ReplicaSnapshot, ...]
    unknown_closes: int = 0  # `Closed` events without an open lease, ever
    flows: tuple[FlowSnapshot, ...] = ()
    controllers: tuple[ControllerSnapshot, ...] = ()
    edges: tuple[int, ...] = ()  # of new requests' buckets
    batch_targets: tuple[tuple[int, int], ...] = ()  # rows in a full batch, by edge
    edge_switches: int = 0
    hedges: int = 0  # counters, ever: copies sent late, of those the ones that answered first
    hedges_won: int = 0
    ties: int = 0  # copies sent at once
    probes: int = 0
    retries: int = 0  # leases of rows that had been lost
    suspensions: int = 0  # of replicas that were silent
    moved_rows: int = 0  # that went elsewhere because of that
    late_rows_used: int = 0  # of those, that the silent replica answered first after all
    evictions: int = 0  # staged batches that gave way to more urgent ones
    preempted: int = 0  # stream leases stopped for more urgent ones
    budget_s: float = 0.0  # device seconds that may be spent on copies now
    utilisation: float = 0.0
    idle_gap_s: float = 0.0  # EWMAs, see `counts`
    early_binding_s: float = 0.0
    generation: GenerationSnapshot | None = None
    groups: tuple[GroupSnapshot, ...] = ()
    offered: OfferedSnapshot = field(default_factory=OfferedSnapshot)
