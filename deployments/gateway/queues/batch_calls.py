"""What is sent to a replica for the lease of a batch, and what does its reply mean for each row?

- A batch holds every optional input that any of its rows has; rows without it get zeros.
- An abort asks the replica to drop the batch unless it has started. The reply says which of the two
  happened, so the gateway never guesses.
- A replica announces the start of a lease that is tied or alone.

`BatchQueue` calls `BatchCalls`, and hears through `BatchCallsOwner` what becomes of each lease.
`LeaseCalls` has what batches and streams share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

import numpy as np

from deployments.contract import errors
from deployments.contract.channel.frames import Buffer, Frame, Kind
from deployments.contract.channel.messages import (
    BatchCall,
    BatchReply,
    Column,
    MessageError,
    RowError,
    decode_reply,
    encode_call,
    pack,
    rows_of,
)
from deployments.gateway.queues.core_loop import MODEL_FAILED, VersionTerms
from deployments.gateway.queues.lease_calls import LeaseCalls, SentLease
from deployments.gateway.queues.peer_demand import PeerDemand
from deployments.gateway.queues.pending_requests import BatchEnd, PendingBatchRequest
from deployments.gateway.queues.replica_channel import ReplicaChannel
from deployments.gateway.rows.types import RowAnswer, Rows
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Dispatch
from routers.api.requests import FlowWork, LeaseEnd, Report
from runtimes.datatypes import DTYPES


def build_call(
    lease: Dispatch,
    members: Sequence[Rows],
    budget_s: float,
    waiting: tuple[FlowWork, ...] | None = None,
) -> BatchCall:
    """The message for a lease. `members[i]` holds the payload of `lease.rows[i]`; `budget_s`: how
    long anybody waits for the answer; `waiting`: see `BatchCall`."""
    rows = [(payload, row) for payload, (_, row) in zip(members, lease.rows, strict=True)]
    lengths = np.array([payload.lengths[row] for payload, row in rows], dtype=np.int32)
    names = dict.fromkeys([name for payload in members for name in payload.inputs])
    inputs = {name: _column(name, rows) for name in names}
    return BatchCall(
        budget_s, lengths.tobytes(), inputs, _wanted(members), lease.rank, lease.predicted_s,
        lease.charges, waiting, lease.tied or lease.alone,
    )  # fmt: skip


def _wanted(members: Sequence[Rows]) -> tuple[str, ...] | None:
    names: dict[str, None] = {}
    for payload in members:
        if payload.outputs is None:
            return None
        names.update(dict.fromkeys(payload.outputs))
    return tuple(names)


def _column(name: str, rows: Sequence[tuple[Rows, int]]) -> Column:
    datatype = next(payload.inputs[name] for payload, _ in rows if name in payload.inputs).datatype
    arrays: list[np.ndarray[Any, Any]] = []
    shapes: list[tuple[int, ...]] = []
    plain = True
    for payload, row in rows:
        column = payload.inputs.get(name)
        length = payload.lengths[row]
        if column is None:
            arrays.append(np.zeros(length, dtype=DTYPES[datatype]))
            shapes.append((length,))
            continue
        arrays.append(column.rows[row])
        shapes.append(column.shapes[row])
        plain = plain and column.shapes[row] == (length,)
    return pack(datatype, arrays, None if plain else tuple(shapes))


def deliver_rows(
    lease: Dispatch, dispatched: float, version: str, reply: BatchReply
) -> list[RowAnswer]:
    """The answer or error of every row of the lease, in order. `dispatched`: when the lease was, on
    the monotonic clock. Raises ValueError for a reply that does not account for every row."""
    failed = {e.row: e for e in reply.errors}
    columns = {name: (c.datatype, rows_of(c)) for name, c in reply.outputs.items()}
    size, at = len(lease.rows), 0
    counts = {len(rows) for _, rows in columns.values()} or {0}
    if counts != {size - len(failed)} or not failed.keys() <= set(range(size)):
        raise ValueError(f"the reply to {size} rows holds others")
    answers = []
    for position in range(size):
        fault = failed.get(position)
        answer = RowAnswer({}, None, dispatched, reply.service_s, size, lease.bucket, version)
        if fault is not None:
            answer.error = _row_error(fault)
        else:
            answer.outputs = {n: (datatype, rows[at]) for n, (datatype, rows) in columns.items()}
            at += 1
        answers.append(answer)
    return answers


def _row_error(fault: RowError) -> errors.HeadraceError:
    if fault.callers_fault:
        return errors.BadRequest(fault.message)
    if fault.not_finite:
        return errors.OutputNotFinite(
            "the model's answer to this input is not finite: it holds NaN or infinity "
            "(allow_non_finite)"
        )
    return errors.RowFailed(MODEL_FAILED, retry_after_s=1.0)


@dataclass(slots=True, eq=False, kw_only=True)
class SentBatch(SentLease):
    """The lease of a batch at its replica."""

    members: Sequence[PendingBatchRequest]  # `members[i]` waits for `lease.rows[i]`
    version: str  # of the model, to which the batch was sent
    begun: bool = False  # the replica has announced the start, which it is asked to do for some

    # From the reply.
    failed: tuple[int, ...] = ()  # positions of the rows that the runtime failed on
    # Requests with a row that had any other error, which they are told when the lease has closed.
    refused: list[tuple[PendingBatchRequest, errors.HeadraceError]] = field(default_factory=list)


class BatchCallsOwner(Protocol):
    """The queue, as far as its leases need it."""

    terms: VersionTerms  # the live version's

    def links_changed(self) -> None:
        """The set of reachable replicas has changed."""

    def heard(self, replica_id: str) -> None:
        """The replica has sent something."""

    def takes(self, pending: PendingBatchRequest) -> bool:
        """Whether the request's rows may be sent to the live version."""

    def outdated(self, pending: PendingBatchRequest) -> None:
        """End a request whose rows may not be sent to the live version."""

    def answered(self, sent: SentBatch, round_trip_s: float, reply: BatchReply) -> bool:
        """Hand the reply's answers to their requests; whether any request still waited for one.
        `closed` follows."""

    def failed(self, sent: SentBatch) -> None:
        """The gateway itself failed on this lease: end its requests, so that no caller is left
        waiting."""

    def opened(self, sent: SentBatch) -> None:
        """The replica has started the batch."""

    def closed(self, sent: SentBatch, end: LeaseEnd, report: Report) -> None:
        """The lease has ended; called once for each."""


class BatchCalls(LeaseCalls[SentBatch]):
    """One queue's batches at its replicas."""

    def __init__(self, owner: BatchCallsOwner, channel: ReplicaChannel) -> None:
        super().__init__(channel)
        self._owner = owner
        self._peer_demand = PeerDemand()

    def send(self, lease: Dispatch, members: Sequence[PendingBatchRequest], now: float) -> None:
        """Send the lease's batch; `members[i]` waits for `lease.rows[i]`. The lease that a tied one
        races must announce its start as well."""
        terms = self._owner.terms
        self._send(
            SentBatch(lease, now, terms.call_limit_s, members=members, version=terms.version)
        )
        raced = self._sent.get(lease.copy_of) if lease.tied else None
        if raced is not None:
            self._notify(raced, Kind.WATCH)

    def members(self, lease_id: int) -> dict[tuple[int, int], PendingBatchRequest]:
        """The requests of a lease that has not ended, by row; also those whose callers have
        left."""
        sent = self._sent[lease_id]
        return dict(zip(sent.lease.rows, sent.members, strict=True))

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        super().follow(listed)
        self._peer_demand.forget({replica.replica_id for replica in listed})

    def abort(self, lease_id: int) -> None:
        """Ask the replica to drop the lease, unless it has started."""
        sent = self._sent[lease_id]
        if sent.at_replica and not sent.aborted:
            self._notify(sent, Kind.DROP)
        sent.aborted = True

    # ---- `LeaseCalls` -------------------------------------------------------------------------

    def links_changed(self) -> None:
        self._owner.links_changed()

    def _message(self, sent: SentBatch) -> tuple[Kind, Sequence[Buffer]] | None:
        if not all(map(self._owner.takes, sent.members)):
            return None
        lease = sent.lease
        budget_s = max([m.request.expires for m in sent.members]) - sent.at
        waiting = None  # a copy reports nothing of what waits here
        if not lease.copy_of:
            waiting = self._peer_demand.to_report(lease.replica_id, lease.waiting, sent.at)
        call = build_call(lease, [m.rows for m in sent.members], budget_s, waiting)
        return Kind.BATCH, encode_call(call, self._channel.version(lease.replica_id))

    def _refuse_outdated(self, sent: SentBatch) -> None:
        for pending in sent.members:
            if not self._owner.takes(pending):
                self._owner.outdated(pending)

    def _handle(self, replica_id: str, frame: Frame, sent: SentBatch | None) -> None:
        if frame.kind is not Kind.REPLY:
            raise MessageError(f"{frame.kind.name} of a replica that takes batches")
        if sent is None:
            return  # the lease has ended as lost before
        reply = decode_reply(frame.body)
        round_trip_s = monotonic() - sent.at
        report = self._report(sent, reply, round_trip_s)
        if reply.busy:
            self._end(sent, LeaseEnd.BUSY, report)
            return
        sent.at_replica = False
        used = self._owner.answered(sent, round_trip_s, reply)
        self._remove(sent)
        self._count(BatchEnd.ANSWERED if used else BatchEnd.UNUSED)
        self._owner.closed(sent, LeaseEnd.DONE, report)

    def _heard(self, replica_id: str) -> None:
        self._owner.heard(replica_id)

    def _started(self, sent: SentBatch) -> None:
        sent.begun = True
        self._owner.opened(sent)

    def _failed(self, sent: SentBatch) -> None:
        self._owner.failed(sent)

    def _closed(self, sent: SentBatch, end: LeaseEnd, report: Report) -> None:
        if end is LeaseEnd.LOST or not sent.at_replica:
            self._peer_demand.report_lost(sent.lease.replica_id)
        self._owner.closed(sent, end, report)

    def _report(self, sent: SentBatch, reply: BatchReply, round_trip_s: float) -> Report:
        waiting = self._peer_demand.update(sent.lease.replica_id, reply.waiting)
        return Report(
            reply.service_s, reply.padded_tokens, reply.inflight, reply.held, reply.seen,
            reply.retry_in_s, reply.transport_s(round_trip_s), reply.free_in_s, reply.virtual_time,
            reply.served, waiting,
        )  # fmt: skip
