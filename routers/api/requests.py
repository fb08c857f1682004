"""How does the scheduling core describe requests, replicas, and a replica's reports?

Events (`api.events`) go into `Scheduler.step(event, now)`, actions (`api.actions`) come out. Times
are seconds on the caller's monotonic clock. Lengths are tokens, or whatever a model's length is.
Costs are predicted service seconds. Nothing here knows a row's contents: the caller keeps payloads
by `request_id`. Source: h11 and Dask's worker state machine (sans-IO).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple


class Reason(Enum):
    """Why a request was rejected (never queued) or evicted (queued, then removed)."""

    QUEUE_FULL = "queue_full"  # the queue is full, and the tenant has its share of it or more
    TOO_LONG = "too_long"  # a row is longer than the last bucket or than a replica can hold
    TOO_LARGE = "too_large"  # a request has more rows than the queue holds (rejected)
    EXPIRED = "expired"  # the timeout passed before it was answered, queued or in a running batch
    LATE = "late"  # it can no longer meet its deadline, and may not wait late
    TENANT_FULL = "tenant_full"  # its tenant's own bound on waiting rows is reached (rejected)
    SHED = "shed"  # an admission controller of queueing delay refused it
    LOST = "lost"  # its replica died or hung twice, or it may not be retried
    INTERRUPTED = "replica_lost"  # its replica was lost after its caller had a part of the answer
    FAILED = "inference_failed"  # the model failed on a row of it, twice, or it may not be retried
    CLOSED = "closed"  # the model was withdrawn


class LeaseEnd(Enum):
    """How a lease ended. Only DONE is a latency and cost sample."""

    DONE = "done"  # the replica answered (single rows may still carry errors of their own)
    BUSY = "busy"  # the replica returned it unstarted; its rows take their old places
    LOST = "lost"  # the replica died, hung or became unreachable; each row is retried once, alone
    ABORTED = "aborted"  # the dispatcher asked for it (`Abort`)


DONE: Final = LeaseEnd.DONE  # these as `SHARES` in `api.policies`: cheaper than through the class
BUSY: Final = LeaseEnd.BUSY
LOST: Final = LeaseEnd.LOST
ABORTED: Final = LeaseEnd.ABORTED


class ReplicaKind(Enum):
    """What a lease at the replica is, and in what its capacity is counted."""

    BATCH = "batch"  # a lease is one batch, which its answer ends; capacity is in slots
    STREAM = "stream"  # a lease is one request, answered piece by piece; capacity is in tokens


FlowWork = tuple[int, str, float]
"""(priority, tenant, predicted or measured device seconds) of one flow."""

FlowKey = tuple[int, str]
"""(priority, tenant)."""


@dataclass(slots=True, unsafe_hash=True)
class Tokens:
    """Tokens of a request that generates, so far."""

    input: int = 0  # of the prompt
    cached: int = 0  # of `input`: those that its replica still held in its cache
    output: int = 0


NO_TOKENS: Final = Tokens()


@dataclass(slots=True, unsafe_hash=True)
class Generation:
    """What a request that generates may take. Its one row's length is its prompt, in tokens."""

    max_tokens: int  # most output tokens, of all its sequences together; 0: it has none
    sequences: int = 1
    # Chained hashes of the prompt's whole blocks of tokens, in order: two prompts have in common as
    # many leading blocks as their hashes have equal leading elements.
    blocks: tuple[int, ...] = ()
    # What its replica must have loaded besides the model; "": nothing.
    adapter: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """One caller's request: one or more rows that share a fate (all answered or none)."""

    request_id: int
    lengths: tuple[int, ...]  # of its rows, in tokens
    arrival: float
    deadline: float  # when it should be answered (its SLO); at most `expires`
    expires: float  # when its caller stops waiting (its timeout)

    tenant: str = "default"
    priority: int = 0  # 0 is the most urgent
    retryable: bool = True  # its rows may run twice (a retry, a copy)
    weight: float = 1.0  # its tenant's share, relative to the others' at its priority
    tenant_rows: int = 0  # most rows that its tenant may have waiting; 0: no bound
    session: str = ""  # prefers the replica that served this session last; "": none
    # For a stream replica: the request has one row and its deadline is for the first token.
    generation: Generation | None = None
    is_first: bool = True  # no other model was asked for it before, so it counts as offered work
    suspect: bool = False  # an identical row was on a replica that was lost: it travels alone
    # Its caller gets each piece of the answer as soon as it comes, so that it never runs again once
    # one has come; else the caller gets nothing before the answer is whole.
    streams: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Replica:
    """A running replica, and how much it may hold."""

    replica_id: str
    capacity: float  # slots (batch) or tokens (stream)
    kind: ReplicaKind = ReplicaKind.BATCH
    max_leases: int = 0  # a further bound, on the number of its leases; 0: none
    group: str = ""  # name of its group; costs are learnt by group


@dataclass(slots=True)
class Report:
    """What a replica's answer says about the lease and about the replica."""

    service_s: float = 0.0  # device seconds of the lease
    inflight: int = 0  # leases of all gateways that the replica holds after this one
    # Of *this* gateway: leases that the replica holds after this one, and the highest lease id that
    # it has ever accepted (0: it says nothing of both). Together they make the drift exact.
    held: int = 0
    seen: int = 0

    retry_in_s: float = 0.0  # of a BUSY end: predicted seconds until the replica has room
    transport_s: float = 0.0  # round trip less service and waiting at the replica
    free_in_s: float = 0.0  # predicted seconds until other gateways' started batches are finished

    virtual_time: tuple[float, ...] = ()  # by priority: highest start tag that it has ever started
    served: tuple[FlowWork, ...] = ()  # served for other gateways since its last answer to this one
    waiting: tuple[FlowWork, ...] = ()  # waits at other gateways, as they last said

    tokens: Tokens = NO_TOKENS  # of a stream lease, in all


class Shares(NamedTuple):
    """What a stream replica tells a gateway of other gateways' requests; the fields mean what those
    of `Report` mean."""

    virtual_time: tuple[float, ...] = ()
    served: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = None  # None: as the replica last said
