"""The vocabulary of the scheduling core: what enters, what is decided, what is exposed.

Events go into `Dispatcher.step(event, now)`, actions come out. Times are seconds on the caller's
monotonic clock; lengths are tokens (or whatever a model's length is); costs are predicted service
seconds. Nothing here knows a row's contents: the caller keeps payloads under `request_id`.
Source: h11 and Dask's worker state machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from routers.offered import OfferedSnapshot


class Reason(Enum):
    """Why a request was rejected (never queued) or evicted (queued, then removed)."""

    QUEUE_FULL = "queue_full"  # bound on what waits reached, by who has its share or more of it
    TOO_LONG = "too_long"  # a row is longer than the last bucket (rejected)
    TOO_LARGE = "too_large"  # a request has more rows than the queue holds (rejected)
    EXPIRED = "expired"  # its timeout passed before it was answered, queued or in a running batch
    LATE = "late"  # past its deadline and `late="refuse"`, or the queue of late ones is full
    TENANT_FULL = "tenant_full"  # its tenant's own bound on waiting rows reached (rejected)
    SHED = "shed"  # a controller of queueing delay refused it
    LOST = "lost"  # its replica died or hung twice, or it may not be retried
    CLOSED = "closed"  # the model was withdrawn


class LeaseEnd(Enum):
    """How a lease ended. Only DONE is a latency and cost sample."""

    DONE = "done"  # the replica answered (single rows may still carry errors of their own)
    BUSY = "busy"  # the replica had no room: nothing started, rows go back to the head
    LOST = "lost"  # the replica died, hung or became unreachable: retried singly, once
    ABORTED = "aborted"  # the caller asked for it (every member had left)


class ReplicaKind(Enum):
    BATCH = "batch"  # a lease is a batch; its answer ends it; capacity counts slots
    STREAM = "stream"  # a lease is one request; its answers flow; capacity counts tokens


FlowWork = tuple[int, str, float]
"""(priority, tenant, predicted or measured device seconds) of one flow."""

FlowKey = tuple[int, str]
"""(priority, tenant)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a generating request has had so far. `cached`: of `input`, those whose state its replica
    still held from an earlier prompt."""

    input: int = 0
    cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """What a request that generates may take, besides its prompt (its one row's length, tokens).
    `max_tokens`: the most output tokens, of all its `sequences` together. `blocks`: chained hashes
    of the prompt's whole blocks of tokens, the first one first: two prompts share as many blocks as
    their hashes are alike from the start.
    """

    max_tokens: int
    sequences: int = 1
    blocks: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Request:
    """One caller's request: one or more rows that share a fate (all answered or none).
    `deadline` is when it should be answered (its SLO), `expires` when nobody waits any longer
    (its timeout); `deadline <= expires`, both absolute. `priority` 0 is the most urgent. `weight`:
    its tenant's share relative to the others' in its priority; `tenant_rows`: rows its tenant may
    have waiting, 0: no bound. `session`: prefers the replica that served it last, "": none.
    `retryable`: it may run twice (a retry, a hedge). `avoid`: a replica that failed on it once;
    it goes to another where one runs, travels alone and is not retried again. `suspect`: its like
    was on a replica that was lost, so it travels alone. `is_first`: nobody was asked for it before,
    so it is demand. `generation`: it is for a stream replica, has one row, and is due at its first
    token; who has passed on a part of its answer cancels it before saying that its lease was lost.
    """

    request_id: int
    lengths: tuple[int, ...]
    arrival: float
    deadline: float
    expires: float
    tenant: str = "default"
    priority: int = 0
    retryable: bool = True
    avoid: str = ""
    weight: float = 1.0
    tenant_rows: int = 0
    session: str = ""
    generation: Generation | None = None
    is_first: bool = True
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Replica:
    """A running replica and how much it may hold: slots (batch) or tokens (stream).
    `most_leases`: a bound on their number besides, 0: none. `group`: replicas of one kind, whose
    costs are learnt together, by a name that says nothing here."""

    replica_id: str
    capacity: float
    kind: ReplicaKind = ReplicaKind.BATCH
    most_leases: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica's answer says of the replica itself.

    service_s: seconds the device worked on the lease. padded_tokens: after padding.
    inflight: leases the replica holds from all gateways after this one.
    held / seen: leases of *this* gateway still held after this one, and the highest lease id of
    this gateway it has ever accepted; together they make `accounted - actual` exact.
    retry_in_s: for BUSY, predicted seconds until it has room. transport_s: round trip less service
    and waiting at the replica. free_in_s: predicted seconds until it has finished the batches of
    other gateways that it has started. virtual_time: by priority, the highest start tag it has
    started, of any gateway. served: seconds that flows were served here for other gateways, since
    its last answer to this one. waiting: seconds of work that wait at other gateways, by flow, as
    they last said. tokens: what a stream lease has had in all.
    """

    service_s: float = 0.0
    padded_tokens: int = 0
    inflight: int = 0
    held: int = 0
    seen: int = 0
    retry_in_s: float = 0.0
    transport_s: float = 0.0
    free_in_s: float = 0.0
    virtual_time: tuple[float, ...] = ()
    served: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] = ()
    tokens: Tokens = Tokens()


# ---- events -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrive:
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller left. Queued rows leave at once; rows of a running batch are ignored."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Replicas:
    """The whole running set. One that is missing gets no new lease; its open leases go on."""

    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """The replica has started on the lease (its predicted finish counts from here)."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A stream lease moved: `served` cost units so far, `held` capacity it now occupies, `tokens`
    it has had so far."""

    lease_id: int
    served: float
    held: float
    tokens: Tokens = Tokens()


@dataclass(frozen=True, slots=True)
class Closed:
    lease_id: int
    end: LeaseEnd
    report: Report = field(default_factory=Report)


@dataclass(frozen=True, slots=True)
class Heard:
    """The replica has said something, whatever it was: it is not silent. Not needed beside events
    that tell of its leases."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer asked for by `WakeAt` fired."""


@dataclass(frozen=True, slots=True)
class Close:
    """The model is gone: everything that waits is evicted with `Reason.CLOSED`."""


Event = Arrive | Cancel | Replicas | Opened | Progress | Closed | Heard | Tick | Close


# ---- actions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send these rows, as one lease, to this replica. `rows` are (request_id, row index).

    rank: (late, priority, start tag) of the row that leads; of the batches staged at a replica the
    lowest starts next, and the others are returned unstarted. charges: what each flow in it is
    charged, seconds of the reference group; of one group their sum is `predicted_s`. waiting: what
    waits here, by flow. copy_of: the lease of the same rows that this one races, 0: none; tied: the
    first of the two to start cancels the other, so the replica reports `Opened`."""

    alone: ClassVar[bool] = False
    lease_id: int
    replica_id: str
    rows: tuple[tuple[int, int], ...]
    bucket: int  # upper edge of the bucket that led the batch, tokens
    predicted_s: float
    rank: tuple[int, int, float] = (0, 0, 0.0)
    charges: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] = ()
    copy_of: int = 0
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """Nobody waits for this lease (its members left, or its copy won), or its rows are wanted back
    (preempted): a replica drops it unstarted where it can, a stream replica stops working on it.
    Best effort: whatever happens, `Closed` follows."""

    lease_id: int
    replica_id: str


@dataclass(frozen=True, slots=True)
class Reject:
    request_id: int
    reason: Reason
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Evict:
    request_id: int
    reason: Reason
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `step(Tick(), now)` at this time: the one timer is set anew, whatever it was set to.

    At most one a step, and none while the timer stands at an earlier or the same time; it counts as
    gone after any `Tick` and after any step at or past its time. A needless `Tick` does no harm.
    """

    at: float


Action = Dispatch | Abort | Reject | Evict | WakeAt


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
    """A controller of admission. shed: what it refused or evicted; would_shed: what it would have,
    in "observe". value: "feasibility": the largest margin, seconds; "best_effort_capacity": the
    share of the replicas' time that late work may have; "codel": how many flows' queues stand;
    "limit": the lowest. by_flow: (priority, tenant, value), where it has one a flow.
    """

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
