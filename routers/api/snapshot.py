"""Which numbers describe the core at one moment, for metrics, `status` and tests?

Frozen values, made by `shared/snapshots.py`. Work is counted in seconds on one replica of the
reference group; counters count since the start of the dispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.requests import FlowWork


@dataclass(frozen=True, slots=True)
class OfferedSnapshot:
    """Offered work: counters that only grow."""

    work_s: float = 0.0
    sq_s2: float = 0.0  # sum of the squares of each request's work
    requests: int = 0
    # Work of answered requests, priced as it was offered. A model that is another's fallback also
    # serves requests that were offered to the other one.
    served_s: float = 0.0
    refused: tuple[tuple[str, int], ...] = ()  # rejected and evicted requests, by `Reason` value
    # Offered work of requests whose lengths are known, by the first row's length: (upper bound of
    # its interval, a power of two; seconds).
    by_length: tuple[tuple[int, float], ...] = ()
    # Offered work of rows longer than each length at which a group of replicas ends: (length,
    # seconds).
    longer: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """One replica, running or draining."""

    replica_id: str
    capacity: float
    held: float
    leases: int
    draining: bool
    drift: int  # leases accounted for less leases actually held, as of its last answer
    unhealthy: bool = False  # suspect, overdue, suspended or ejected: used when no other runs
    ejected: bool = False
    suspended: bool = False  # silent: gets nothing until it speaks
    slowdown: float = 1.0  # measured seconds over its group's prediction
    group: str = ""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group of replicas."""

    name: str
    running: int
    healthy: int
    speed: float  # work that one replica does in a second, seconds of the reference group
    batch_s: float  # predicted seconds of a typical batch
    is_open: bool  # it may be used now; a reserve only while the others are too slow

    # As in `estimates.groups.PlannedService`.
    planned_s: float = 0.0
    planned_p99_s: float = 0.0
    planned_scv: float = 0.0


@dataclass(frozen=True, slots=True)
class ControllerSnapshot:
    """An admission controller."""

    name: str  # in the registry of policies
    mode: str
    frozen: bool
    value: float  # what it has learnt: see its `value`
    shed: int  # requests that it refused or evicted
    would_shed: int  # requests that it would have refused or evicted, in mode "observe"
    by_flow: tuple[FlowWork, ...] = ()  # (priority, tenant, value), if it learns by flow


@dataclass(frozen=True, slots=True)
class FlowSnapshot:
    """A flow that was active lately."""

    tenant: str
    priority: int
    weight: float
    rows: int  # that wait on time
    late_rows: int
    waiting_s: float  # predicted device seconds that wait on time
    served_s: float  # measured device seconds that this gateway ever gave it
    start: float  # its tag less its credit, virtual seconds


@dataclass(slots=True)
class CachedTokens:
    """Prompt tokens that were cached where they were sent, of all requests so far."""

    predicted: int = 0
    found: int = 0  # as replicas said


@dataclass(frozen=True, slots=True)
class GenerationSnapshot:
    """What was learnt of a model that generates."""

    tokens_per_s: float  # weighted tokens, of a full replica
    prompt_tokens_per_s: float  # that a replica reads
    max_leases: float  # at one replica that keep the promised time a token; inf: no bound
    blocks: int  # of prompts, remembered for all replicas
    trust: float  # of the tokens estimated to be cached, the share that is
    told_replicas: int  # that tell themselves which blocks they hold
    told: CachedTokens  # at these
    estimated: CachedTokens  # at the others
    histories: int  # of output lengths


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All counters and levels of one dispatcher."""

    # What waits and what runs.
    waiting_rows: int
    late_rows: int  # of `waiting_rows`
    waiting_requests: int
    oldest_wait_s: float
    leases: int
    leased_rows: int
    drift: int  # sum of the replicas'
    rows_by_bucket: tuple[tuple[int, int], ...]  # (edge, waiting rows)
    backlog_s: float  # predicted seconds of work that waits, as if on one replica
    replicas: tuple[ReplicaSnapshot, ...]
    unknown_closes: int = 0  # `Closed` events without an open lease, ever
    flows: tuple[FlowSnapshot, ...] = ()
    controllers: tuple[ControllerSnapshot, ...] = ()

    # Buckets.
    edges: tuple[int, ...] = ()  # of new requests' buckets
    batch_targets: tuple[tuple[int, int], ...] = ()  # rows in a full batch, by edge
    edge_switches: int = 0

    # Copies, retries and preemptions, ever.
    hedges: int = 0  # copies of leases that were slow
    hedges_won: int = 0  # of those, the copies that answered first
    ties: int = 0  # copies sent at once, of staged batches
    probes: int = 0  # copies sent to ejected replicas
    retries: int = 0  # leases of rows that run again, alone
    suspensions: int = 0  # of replicas that were silent
    moved_rows: int = 0  # rows moved from suspended replicas
    late_rows_used: int = 0  # of those, rows that the suspended replica answered first after all
    evictions: int = 0  # staged batches that gave way to more urgent ones
    preempted: int = 0  # stream leases stopped for more urgent ones

    budget_s: float = 0.0  # device seconds that may be spent on copies now
    utilisation: float = 0.0  # lately busy share of the replicas
    pressure: int = 0  # 0 to 3, see `estimates.pressure`
    # EWMAs, see `state.leases.DispatchCounts`.
    idle_gap_s: float = 0.0
    early_binding_s: float = 0.0
    generation: GenerationSnapshot | None = None
    groups: tuple[GroupSnapshot, ...] = ()
    # The part of `backlog_s` that is longer than each length at which a group ends.
    longer_backlog: tuple[tuple[int, float], ...] = ()
    stranded: bool = False  # rows wait that no running replica may take
    offered: OfferedSnapshot = field(default_factory=OfferedSnapshot)
