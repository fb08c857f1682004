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
import contextvars
import logging
from collections.abc import Coroutine, Sequence, Set
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Protocol

import numpy as np

from deployments.contract import errors
from deployments.contract.batch_wire import BatchCall, BatchReply, Column, pack, rows_of
from deployments.gateway.queues.core_loop import Terms
from deployments.gateway.queues.pending_requests import BatchEnd, Ticket
from deployments.gateway.queues.transport import ReplicaDied, ReplicaFault, Transport, Unreached
from deployments.gateway.rows.types import RowAnswer, Rows
from routers.staging import REPORT_EVERY_S
from routers.types import Dispatch, FlowWork, LeaseEnd, Report
from runtimes.datatypes import DTYPES

_UNREACHED_RETRY_S = 0.01
_COUNTED = {
    LeaseEnd.DONE: BatchEnd.ANSWERED,
    LeaseEnd.BUSY: BatchEnd.RETURNED,
    LeaseEnd.ABORTED: BatchEnd.DROPPED,
    LeaseEnd.LOST: BatchEnd.LOST,
}
logger = logging.getLogger("headrace.queue")


@dataclass(slots=True)
class _Peer:
    told_at: float = -inf
    heard: tuple[FlowWork, ...] = ()


class PeerDemand:
    """By replica id; times are the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def tell(
        self, replica_id: str, waiting: tuple[FlowWork, ...], now: float
    ) -> tuple[FlowWork, ...] | None:
        """What a call to this replica says of what waits here; None: nothing new."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting and now - peer.told_at < REPORT_EVERY_S:
            return None
        peer.told_at = now
        return waiting

    def not_heard(self, replica_id: str) -> None:
        """A call may not have arrived."""
        peer = self._peers.get(replica_id)
        if peer is not None:
            peer.told_at = -inf

    def hear(self, replica_id: str, waiting: tuple[FlowWork, ...] | None) -> tuple[FlowWork, ...]:
        """What waits elsewhere, given what an answer says of it."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting is not None:
            peer.heard = waiting
        return peer.heard

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
    """`members[i]` holds the payload of `lease.rows[i]`. `waiting`: see `wire.BatchCall`."""
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
    return errors.RowFailed(
        "the model failed on this request, alone; it may be tried again", retry_after_s=1.0
    )


@dataclass(slots=True, eq=False)
class Sent:
    """A lease that is out. `members[i]` waits for `lease.rows[i]`; `at`: when it was dispatched, on
    the monotonic clock. `aborted`: nobody waits for it any more. `calling`: its call is out."""

    lease: Dispatch
    members: Sequence[Ticket]
    at: float
    aborted: bool = False
    calling: bool = False
    watch: asyncio.Task[None] | None = None


class LeaseOwner(Protocol):
    """The queue, as far as its leases' calls need it."""

    terms: Terms

    def may_send(self, sent: Sent) -> bool:
        """Whether the live version takes all members' rows."""

    def answered(self, sent: Sent, version: str, round_trip_s: float, reply: BatchReply) -> bool:
        """Whether anybody still waited for any of it."""

    def failed(self, sent: Sent) -> None:
        """A fault of ours: nobody may be left waiting."""

    def opened(self, sent: Sent) -> None: ...

    def closed(self, sent: Sent, end: LeaseEnd, report: Report) -> None: ...


class LeaseCalls:
    """The calls of one queue; `gateway` is its name at the replicas. `ends`: how many of them have
    ended how."""

    def __init__(self, owner: LeaseOwner, transport: Transport, gateway: str) -> None:
        self._owner = owner
        self._transport = transport
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, Sent] = {}
        self._hearsay = PeerDemand()
        self.tasks: set[asyncio.Task[None]] = set()
        self.ends = dict.fromkeys(BatchEnd, 0)

    def send(self, lease: Dispatch, members: Sequence[Ticket], now: float) -> None:
        sent = self._sent[lease.lease_id] = Sent(lease, members, now)
        self._begin(self._run(sent))
        if lease.tied:
            self._watch(sent)
            if lease.copy_of in self._sent:
                self._watch(self._sent[lease.copy_of])

    def members(self, lease_id: int) -> dict[tuple[int, int], Ticket]:
        """Who waits for which row of a lease that is out, also those who have left meanwhile."""
        sent = self._sent[lease_id]
        return dict(zip(sent.lease.rows, sent.members, strict=True))

    def forget(self, running: Set[str]) -> None:
        """Replicas that are gone."""
        self._hearsay.forget(running)

    def abort(self, lease_id: int) -> None:
        """Nobody waits for this one: it is dropped unless it has started."""
        sent = self._sent[lease_id]
        if sent.calling and not sent.aborted:
            self._begin(self._drop(sent.lease))
        sent.aborted = True

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, context=contextvars.Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    # ---- a lease's own call -------------------------------------------------------------------

    async def _run(self, sent: Sent) -> None:
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
            end, report = LeaseEnd.BUSY, Report(retry_in_s=_UNREACHED_RETRY_S)
        except (ReplicaDied, ReplicaFault) as died:
            logger.warning("replica %s lost a batch: %s", sent.lease.replica_id, died)
        except Exception:
            logger.exception("a batch could not be sent or taken in")
            self._owner.failed(sent)
            end = LeaseEnd.DONE if end is LeaseEnd.DONE else LeaseEnd.ABORTED
        finally:
            if sent.calling:
                self._hearsay.not_heard(sent.lease.replica_id)
            del self._sent[sent.lease.lease_id]
            if sent.watch is not None:
                sent.watch.cancel()
            self.ends[_COUNTED[end] if used else BatchEnd.UNUSED] += 1
            self._owner.closed(sent, end, report)

    async def _call(self, sent: Sent) -> BatchReply:
        now, lease = monotonic(), sent.lease
        budget_s = max(m.request.expires for m in sent.members) - now
        waiting = None  # of which a copy says nothing
        if not lease.copy_of:
            waiting = self._hearsay.tell(lease.replica_id, lease.waiting, now)
        payloads = [m.rows for m in sent.members]
        call = build_call(self._gateway, lease, payloads, budget_s, waiting)
        limit_s = self._owner.terms.call_limit_s
        return await self._transport.call(lease.replica_id, call, limit_s)

    def _report(self, sent: Sent, reply: BatchReply, round_trip_s: float) -> Report:
        transport_s = max(round_trip_s - reply.wait_s - reply.service_s, 0.0)
        waiting = self._hearsay.hear(sent.lease.replica_id, reply.waiting)
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

    def _watch(self, sent: Sent) -> None:
        if sent.watch is None:
            sent.watch = self._begin(self._hear_of_start(sent))

    async def _hear_of_start(self, sent: Sent) -> None:
        lease = sent.lease
        try:
            started = await self._transport.opened(
                lease.replica_id, self._gateway, lease.lease_id, self._owner.terms.call_limit_s
            )
        except (Unreached, ReplicaDied, ReplicaFault) as fault:
            logger.debug("nothing is known of lease %d's start: %s", lease.lease_id, fault)
            return
        if started and lease.lease_id in self._sent:
            self._owner.opened(sent)


def _end(reply: BatchReply, aborted: bool) -> LeaseEnd:
    if not reply.busy:
        return LeaseEnd.DONE
    return LeaseEnd.ABORTED if aborted else LeaseEnd.BUSY
