"""Leases of batches as calls to replicas: what is sent, what a reply means for each row.

One task a lease: it sends the batch, hands the reply to the queue and says how the lease ended,
whatever happens, exactly once. Tasks run in an empty context: inside a request's context one
caller's disconnect would cancel the whole batch (Serve cancels a request's children). An abort asks
the replica to drop the batch unstarted; the call itself then answers, so that nothing is guessed.
Where a lease is tied, a second call says when it starts. Rows of different callers may name
different optional inputs: a batch has them all, zeros where a caller left one out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Protocol

import numpy as np

from deployments.contract import errors
from deployments.contract.wire import BatchCall, BatchReply, Column, pack, rows_of
from deployments.gateway.queues.core_loop import VersionTerms
from deployments.gateway.queues.pending_requests import LEASE_COUNTS, BatchEnd, PendingBatchRequest
from deployments.gateway.queues.transport import (
    UNREACHED_RETRY_S,
    LeaseTasks,
    ReplicaDied,
    ReplicaFault,
    Transport,
    Unreached,
)
from deployments.gateway.rows.types import RowAnswer, Rows
from routers.staging import REPORT_EVERY_S
from routers.types import Dispatch, FlowWork, LeaseEnd, Report
from runtimes.datatypes import DTYPES

logger = logging.getLogger("headrace.queue")


@dataclass(slots=True)
class _Peer:
    last_reported: float = -inf
    known: tuple[FlowWork, ...] = ()


class PeerDemand:
    """What other gateways have waiting at each replica, and when it was last told what waits here.

    With hundreds of tenants the list of what waits is longer than the rest of a call, and batches
    may be shorter than what it costs to send. So it is sent again only when it is old, or when
    nothing waits any more; an answer without one means the last known. By replica id; times are
    the caller's clock, in seconds.
    """

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def to_report(
        self, replica_id: str, waiting: tuple[FlowWork, ...], now: float
    ) -> tuple[FlowWork, ...] | None:
        """What a call to this replica reports of what waits here; None: nothing new."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting and now - peer.last_reported < REPORT_EVERY_S:
            return None
        peer.last_reported = now
        return waiting

    def report_lost(self, replica_id: str) -> None:
        """A call may not have arrived: the next one reports again."""
        peer = self._peers.get(replica_id)
        if peer is not None:
            peer.last_reported = -inf

    def update(self, replica_id: str, waiting: tuple[FlowWork, ...] | None) -> tuple[FlowWork, ...]:
        """What waits elsewhere, given what an answer reports of it."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting is not None:
            peer.known = waiting
        return peer.known

    def forget(self, running: Set[str]) -> None:
        """Replicas that are gone."""
        self._peers = {uid: peer for uid, peer in self._peers.items() if uid in running}


def build_call(
    gateway: str,
    lease: Dispatch,
    members: Sequence[Rows],
    budget_s: float,
    waiting: tuple[FlowWork, ...] | None = None,
) -> BatchCall:
    """`members[i]` holds the payload of `lease.rows[i]`. `waiting`: see `BatchCall`."""
    rows = [(payload, row) for payload, (_, row) in zip(members, lease.rows, strict=True)]
    lengths = np.array([payload.lengths[row] for payload, row in rows], dtype=np.int32)
    names = dict.fromkeys(name for payload in members for name in payload.inputs)
    inputs = {name: _column(name, rows) for name in names}
    return BatchCall(
        gateway, lease.lease_id, budget_s, lengths.tobytes(), inputs, _wanted(members),
        lease.rank, lease.predicted_s, lease.charges, waiting,
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
    """The answer of every row of the lease, in order. Raises ValueError for a reply that does not
    account for all of them."""
    failed = {e.row: e for e in reply.errors}
    columns = {name: (c.datatype, rows_of(c)) for name, c in reply.outputs.items()}
    size, at = len(lease.rows), 0
    if any(len(rows) != size - len(failed) for _, rows in columns.values()):
        raise ValueError(f"the reply to {size} rows holds others")
    answers = []
    for position in range(size):
        fault = failed.get(position)
        answer = RowAnswer({}, None, dispatched, reply.service_s, size, lease.bucket, version)
        if fault is not None:
            answer.error = _row_error(fault.callers_fault, fault.message)
        else:
            answer.outputs = {n: (datatype, rows[at]) for n, (datatype, rows) in columns.items()}
            at += 1
        answers.append(answer)
    return answers


def _row_error(callers_fault: bool, message: str) -> errors.HeadraceError:
    if callers_fault:
        return errors.BadRequest(message)
    return errors.RowFailed("the model failed on this request; send it again", retry_after_s=1.0)


@dataclass(slots=True, eq=False)
class SentBatch:
    """A lease that is out. `members[i]` waits for `lease.rows[i]`; `at`: when it was dispatched, on
    the monotonic clock. `aborted`: nobody waits for it any more. `calling`: its call is out."""

    lease: Dispatch
    members: Sequence[PendingBatchRequest]
    at: float
    aborted: bool = False
    calling: bool = False
    watch: asyncio.Task[None] | None = None


class BatchCallsOwner(Protocol):
    """The queue, as far as its leases' calls need it."""

    terms: VersionTerms

    def may_send(self, sent: SentBatch) -> bool:
        """Whether the live version takes all members' rows."""

    def answered(
        self, sent: SentBatch, version: str, round_trip_s: float, reply: BatchReply
    ) -> bool:
        """Whether anybody still waited for any of it."""

    def failed(self, sent: SentBatch) -> None:
        """A fault of ours: nobody may be left waiting."""

    def opened(self, sent: SentBatch) -> None: ...

    def closed(self, sent: SentBatch, end: LeaseEnd, report: Report) -> None: ...


class BatchCalls(LeaseTasks):
    """The calls of one queue; `gateway` is its name at the replicas. `ends`: how many of them have
    ended how."""

    def __init__(self, owner: BatchCallsOwner, transport: Transport, gateway: str) -> None:
        super().__init__()
        self._owner = owner
        self._transport = transport
        self._gateway = gateway
        self._sent: dict[int, SentBatch] = {}
        self._peer_demand = PeerDemand()
        self.ends = dict.fromkeys(BatchEnd, 0)

    def send(self, lease: Dispatch, members: Sequence[PendingBatchRequest], now: float) -> None:
        sent = self._sent[lease.lease_id] = SentBatch(lease, members, now)
        self._start(self._run(sent))
        if lease.tied:
            self._watch(sent)
            if lease.copy_of in self._sent:
                self._watch(self._sent[lease.copy_of])

    def members(self, lease_id: int) -> dict[tuple[int, int], PendingBatchRequest]:
        """Who waits for which row of a lease that is out, also those who have left meanwhile."""
        sent = self._sent[lease_id]
        return dict(zip(sent.lease.rows, sent.members, strict=True))

    def forget(self, running: Set[str]) -> None:
        """Replicas that are gone."""
        self._peer_demand.forget(running)

    def abort(self, lease_id: int) -> None:
        """Nobody waits for this one: it is dropped unless it has started."""
        sent = self._sent[lease_id]
        if sent.calling and not sent.aborted:
            self._start(self._drop(sent.lease))
        sent.aborted = True

    # ---- a lease's own call -------------------------------------------------------------------

    async def _run(self, sent: SentBatch) -> None:
        end, report, used = LeaseEnd.LOST, Report(), True
        try:
            if sent.aborted or not self._owner.may_send(sent):
                end = LeaseEnd.ABORTED if sent.aborted else LeaseEnd.BUSY
                return
            version = self._owner.terms.version
            sent.calling = True
            reply = await self._call(sent)
            sent.calling = False
            round_trip_s = monotonic() - sent.at
            end, report = _end(reply, sent.aborted), self._report(sent, reply, round_trip_s)
            if end is LeaseEnd.DONE:
                used = self._owner.answered(sent, version, round_trip_s, reply)
        except Unreached:
            end, report = LeaseEnd.BUSY, Report(retry_in_s=UNREACHED_RETRY_S)
        except (ReplicaDied, ReplicaFault) as died:
            logger.warning("replica %s lost a batch: %s", sent.lease.replica_id, died)
        except Exception:
            logger.exception("a batch could not be sent, or its reply not read")
            self._owner.failed(sent)
            end = LeaseEnd.DONE if end is LeaseEnd.DONE else LeaseEnd.ABORTED
        finally:
            if sent.calling:
                self._peer_demand.report_lost(sent.lease.replica_id)
            del self._sent[sent.lease.lease_id]
            if sent.watch is not None:
                sent.watch.cancel()
            self.ends[LEASE_COUNTS[end] if used else BatchEnd.UNUSED] += 1
            self._owner.closed(sent, end, report)

    async def _call(self, sent: SentBatch) -> BatchReply:
        now, lease = monotonic(), sent.lease
        budget_s = max(m.request.expires for m in sent.members) - now
        waiting = None  # of which a copy says nothing
        if not lease.copy_of:
            waiting = self._peer_demand.to_report(lease.replica_id, lease.waiting, now)
        payloads = [m.rows for m in sent.members]
        call = build_call(self._gateway, lease, payloads, budget_s, waiting)
        limit_s = self._owner.terms.call_limit_s
        return await self._transport.call(lease.replica_id, call, limit_s)

    def _report(self, sent: SentBatch, reply: BatchReply, round_trip_s: float) -> Report:
        transport_s = max(round_trip_s - reply.wait_s - reply.service_s, 0.0)
        waiting = self._peer_demand.update(sent.lease.replica_id, reply.waiting)
        return Report(
            reply.service_s, reply.padded_tokens, reply.inflight, reply.held, reply.seen,
            reply.retry_in_s, transport_s, reply.free_in_s, reply.virtual_time, reply.served,
            waiting,
        )  # fmt: skip

    # ---- beside it ----------------------------------------------------------------------------

    async def _drop(self, lease: Dispatch) -> None:
        try:
            await self._transport.drop(lease.replica_id, self._gateway, lease.lease_id)
        except (Unreached, ReplicaDied, ReplicaFault) as fault:
            logger.debug("lease %d was not dropped: %s", lease.lease_id, fault)

    def _watch(self, sent: SentBatch) -> None:
        if sent.watch is None:
            sent.watch = self._start(self._until_opened(sent))

    async def _until_opened(self, sent: SentBatch) -> None:
        lease = sent.lease
        try:
            started = await self._transport.opened(
                lease.replica_id, self._gateway, lease.lease_id, self._owner.terms.call_limit_s
            )
        except (Unreached, ReplicaDied, ReplicaFault) as fault:
            logger.debug("whether lease %d has started is unknown: %s", lease.lease_id, fault)
            return
        if started and lease.lease_id in self._sent:
            self._owner.opened(sent)


def _end(reply: BatchReply, aborted: bool) -> LeaseEnd:
    if not reply.busy:
        return LeaseEnd.DONE
    return LeaseEnd.ABORTED if aborted else LeaseEnd.BUSY
