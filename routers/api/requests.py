"""The vocabulary of the scheduling core: requests, replicas, and what a replica reports.

Events (`api.events`) go into `Dispatcher.step(event, now)`, actions (`api.actions`) come out. Times
are seconds on the caller's monotonic clock; lengths are tokens (or whatever a model's length is);
costs are predicted service seconds. Nothing here knows a row's contents: the caller keeps payloads
under `request_id`. Source: h11 and Dask's worker state machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    FAILED = "inference_failed"  # the model failed on a row of it, twice, or it may not be retried
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


NO_TOKENS = Tokens()


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
    tokens: Tokens = NO_TOKENS
