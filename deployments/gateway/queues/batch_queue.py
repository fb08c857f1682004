"""How do one model's waiting rows become batches at its replicas, and replies become answers?

The dispatcher decides what is sent where. `BatchQueue` carries its decisions out and reports the
ends of leases back as events; it owns the pending requests and their futures. A future is
registered before its rows can be dispatched, and resolved once: with the first answer to each row,
or with an error. `BatchCalls` sends leases and reads replies: a batch holds every optional input
that any of its rows has; an abort drops a batch that has not started, and the reply says which of
the two happened; a replica announces the start of a lease that is tied or alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from time import monotonic
from typing import Any

import numpy as np

from deployments.contract import errors
from deployments.contract.channel.frames import (
    BatchCall,
    BatchReply,
    Buffer,
    Frame,
    Kind,
    MessageError,
    RowError,
    Scattered,
    decode_reply,
    encode_call,
    rows_of,
)
from deployments.gateway.queues.connections import ReplicaChannel
from deployments.gateway.queues.dispatcher_driver import (
    INTERNAL_ERROR,
    MODEL_FAILED,
    DispatcherDriver,
    QueueRequest,
    VersionTerms,
    changed,
    clock,
)
from deployments.gateway.queues.lease_calls import LeaseCalls, PeerQueueDepth, SentBatch
from deployments.gateway.queues.lost_replicas import PoisonTracker, fingerprints, same_row
from deployments.gateway.queues.pending_requests import BatchEnd, BatchRecord, PendingBatchRequest
from deployments.gateway.rows import RowAnswer, Rows
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Abort, Dispatch, Evict, Reject
from routers.api.events import Cancel, Closed, Opened
from routers.api.requests import FlowWork, LeaseEnd, Reason, Replica, Report
from routers.api.settings import DispatcherSettings
from routers.batch.scheduler import BatchScheduler
from runtimes.types import DTYPES, DeviceMemory, EngineLoad, Ragged

_LARGE_ROW_BYTES = 65_536


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
    inputs = {name: _joined(name, rows) for name in names}
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


def _joined(name: str, rows: Sequence[tuple[Rows, int]]) -> Any:
    """A `Ragged`, or `Scattered` where copying the rows would take long."""
    datatype = next(payload.inputs[name] for payload, _ in rows if name in payload.inputs).datatype
    arrays: list[np.ndarray[Any, Any]] = []
    shapes: list[tuple[int, ...]] = []
    for payload, row in rows:
        column = payload.inputs.get(name)
        length = payload.lengths[row]
        if column is None:
            arrays.append(np.zeros(length, dtype=DTYPES[datatype]))
            shapes.append((length,))
            continue
        arrays.append(column.rows[row])
        shapes.append(column.shapes[row])
    if len(arrays) == 1:
        return Ragged(datatype, arrays[0], tuple(shapes))
    if arrays[0].nbytes > _LARGE_ROW_BYTES and datatype != "BYTES":
        return Scattered(datatype, arrays, tuple(shapes))
    return Ragged(datatype, np.concatenate(arrays), tuple(shapes))


def deliver_rows(
    lease: Dispatch, dispatched: float, version: str, reply: BatchReply
) -> list[RowAnswer]:
    """The answer or error of every row of the lease, in order. `dispatched`: when the lease was, on
    the monotonic clock. Raises ValueError for a reply that does not account for every row."""
    failed = {e.row: e for e in reply.errors}
    columns = {name: (r.datatype, rows_of(r)) for name, r in reply.outputs.items()}
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
    if fault.out_of_memory:
        return errors.OutOfDeviceMemory(
            "the model's device has too little memory for this input now; a shorter one may fit"
        )
    return errors.RowFailed(MODEL_FAILED, retry_after_s=errors.SOON_S)


class BatchCalls(LeaseCalls[SentBatch]):
    """One queue's batches at its replicas."""

    def __init__(self, owner: BatchQueue, channel: ReplicaChannel) -> None:
        super().__init__(channel)
        self._owner = owner
        self._peer_demand = PeerQueueDepth()

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
            reply.service_s, reply.inflight, reply.held, reply.seen,
            reply.retry_in_s, reply.transport_s(round_trip_s), reply.free_in_s, reply.virtual_time,
            reply.served, waiting,
        )  # fmt: skip


_IDLE_S = 20.0  # the duty cycle of a replica that has not answered for so long counts as 0


class BatchQueue(DispatcherDriver[PendingBatchRequest]):
    """One model's queue of requests that are answered in batches."""

    output_tokens = 0  # as of `StreamQueue`
    memory_faults = 0  # runs that devices had no memory for, as replicas said, ever

    def __init__(
        self,
        settings: DispatcherSettings,
        terms: VersionTerms,
        channel: ReplicaChannel,
        *,
        on_batch: Callable[[BatchRecord], None],  # called with every answered batch
    ) -> None:
        super().__init__(BatchScheduler(settings), settings, terms)
        self.calls = BatchCalls(self, channel)
        # Rows that replicas were lost with. Whoever submits must check new requests against them.
        self.crashes = PoisonTracker(terms.crashes)
        self._slots: Mapping[str, int] = {}  # of a replica, by group
        self._groups: dict[str, str] = {}  # by replica
        self._on_batch = on_batch
        self._memory: dict[str, DeviceMemory] = {}  # of the replicas that told it
        self._duty: dict[str, tuple[float, float]] = {}  # by replica: duty cycle, when it was told

    # ---- what the gateway calls -----------------------------------------------------------

    def submit(self, rows: Rows, terms: VersionTerms, demand: QueueRequest) -> PendingBatchRequest:
        """Queue a request whose rows were parsed under `terms`.

        The request's future gets the row answers, in order, or the error. Raises the error of an
        immediate rejection, and NotReady where the live version does not take these rows, or no
        replica that runs has for some time.
        """
        if not self.terms.take(terms):
            raise changed()
        now = clock()
        self._check_taken(rows.lengths, demand, now)
        request = self._request(rows.lengths, terms, demand, now)
        count = len(rows.lengths)
        future: asyncio.Future[tuple[RowAnswer, ...]] = self._loop.create_future()
        pending = PendingBatchRequest(request, rows, terms, future, [None] * count, count)
        self._enter(pending, now)
        if pending.future.done():
            pending.future.result()
        return pending

    def cancel(self, pending: PendingBatchRequest) -> None:
        """The caller has disconnected: the request's future raises `CallerLeft`. Idempotent."""
        super().cancel(pending)
        if pending.future.done():
            pending.future.exception()  # else asyncio logs it, where nobody awaits it any more

    def set_replicas(self, replicas: Sequence[RunningReplica], slots: Mapping[str, int]) -> None:
        """The replicas that Serve lists. `slots`: how many a replica has, by its group."""
        self._slots = slots
        self._groups = {replica.replica_id: replica.group() for replica in replicas}
        self._duty = {r.replica_id: self._duty.get(r.replica_id, (0.0, 0.0)) for r in replicas}
        self._memory = {uid: said for uid, said in self._memory.items() if uid in self._duty}
        self.calls.follow(replicas)
        self.links_changed()

    def adopt(self, settings: DispatcherSettings, terms: VersionTerms) -> None:
        super().adopt(settings, terms)
        self.crashes.terms = terms.crashes

    def close(self) -> None:
        """Refuse what waits; what runs is still answered."""
        super().close()
        self.calls.follow(())

    @property
    def duty(self) -> dict[str, float]:
        """Each replica's duty cycle, 0..1, as of its last answer; 0 where that is older than
        `_IDLE_S`."""
        now = clock()
        return {r: duty if now - at < _IDLE_S else 0.0 for r, (duty, at) in self._duty.items()}

    @property
    def device_memory(self) -> Mapping[str, DeviceMemory]:
        """Of each replica on a GPU, as of its last answer."""
        return self._memory

    @property
    def loads(self) -> dict[str, EngineLoad]:
        """Empty: batch replicas have no engine that reports its load."""
        return {}

    # ---- performing ----------------------------------------------------------------------------

    def _open(self, lease: Dispatch, now: float) -> None:
        if lease.copy_of:
            known = self.calls.members(lease.copy_of)
            members = [known[row] for row in lease.rows]
        else:
            members = [self._pending[request_id] for request_id, _ in lease.rows]
        for pending in members:
            pending.sent_again, pending.sent = pending.sent, True
        self.calls.send(lease, members, now)

    def _abort(self, action: Abort) -> None:
        self.calls.abort(action.lease_id)

    def _refuse(self, action: Reject | Evict) -> None:
        """Of a row that failed for good, the cause is told if it is a known one."""
        pending = self._pending.get(action.request_id)
        fault = None if pending is None else pending.last_fault
        failed = action.reason is Reason.FAILED
        if pending is not None and failed and isinstance(fault, errors.OutOfDeviceMemory):
            self._leave(pending)
            pending.fail(fault)
        else:
            super()._refuse(action)

    # ---- what becomes of leases (for `BatchCalls`) ------------------------------------------

    def links_changed(self) -> None:
        known = [(uid, self._groups[uid]) for uid in self.calls.reached]
        self._list(tuple([Replica(uid, self._slots[group], group=group) for uid, group in known]))

    def opened(self, sent: SentBatch) -> None:
        """The replica has started the batch."""
        self._step(Opened(sent.lease.lease_id), clock())

    def answered(self, sent: SentBatch, round_trip_s: float, reply: BatchReply) -> bool:
        """Hand the reply's answers to their requests; whether any request still waited for one.
        `closed` follows."""
        lease = sent.lease
        self._duty[lease.replica_id] = reply.duty, clock()
        self.memory_faults += reply.memory_faults
        if reply.device_memory is not None:
            self._memory[lease.replica_id] = reply.device_memory
        else:
            self._memory.pop(lease.replica_id, None)
        self._on_batch(_record(sent, round_trip_s, reply))
        answers = deliver_rows(lease, sent.at, sent.version, reply)
        if reply.errors:
            sent.failed = tuple([at for at, each in enumerate(answers) if each.failed])
        awaited = [
            (pending, index, answer)
            for pending, (_, index), answer in zip(sent.members, lease.rows, answers, strict=True)
            if _awaits_row(pending, index)
        ]
        if lease.alone:
            self.crashes.answered_alone(sent)
        else:
            self.crashes.answered_among_others(sent)
        for pending, index, answer in awaited:
            self._row_done(sent, pending, index, answer)
        return bool(awaited)

    def failed(self, sent: SentBatch) -> None:
        """The gateway itself failed on this lease: fail every member that has no answer yet, so
        that no caller is left waiting; none is retried."""
        for pending in sent.members:
            self._finish(pending, errors.RowFailed(INTERNAL_ERROR))

    def closed(self, sent: SentBatch, end: LeaseEnd, report: Report) -> None:
        """The lease has ended; called once for each."""
        replica_lost = end is LeaseEnd.LOST and not sent.unsent
        quarantined = self._fail_quarantined(sent) if replica_lost else []
        self._take(Closed(sent.lease.lease_id, end, report, sent.failed), clock())
        for request_id in quarantined:
            self._take(Cancel(request_id), clock())
        for pending, error in sent.refused:
            self._finish(pending, error)

    def _fail_quarantined(self, sent: SentBatch) -> list[int]:
        """Record that a replica was lost with this lease, and fail all requests that have a row
        which is quarantined by that. Returns their ids, which the caller must cancel at the
        dispatcher."""
        quarantined = []
        for rows, row in self.crashes.lost_with(sent, clock()):
            for pending in list(self._pending.values()):
                own = pending.rows
                if any(same_row(rows, row, own, each) for each in range(own.count)):
                    self._leave(pending)
                    pending.fail(self.crashes.quarantine_error())
                    quarantined.append(pending.request.request_id)
        return quarantined

    def end_quarantined(self, keys: Set[bytes]) -> None:
        """Fail the requests that have a row which another gateway has quarantined. Only requests
        that were sent at least once are looked at: the others may be as many as the queue holds,
        and the next loss ends them."""
        for pending in [each for each in self._pending.values() if each.sent]:
            if not keys.isdisjoint(fingerprints(pending.rows, pending.terms.version)):
                self._finish(pending, self.crashes.quarantine_error())

    # ---- what becomes of rows -----------------------------------------------------------------

    def _row_done(
        self, sent: SentBatch, pending: PendingBatchRequest, index: int, answer: RowAnswer
    ) -> None:
        """Take in one row's answer or error; a request's last answer resolves its future. Errors
        are told later, when the dispatcher knows that the lease has closed, so that it sends none
        of the rows again."""
        if answer.error is not None:
            if not answer.failed:
                sent.refused.append((pending, answer.error))
            pending.last_fault = answer.error
            return
        pending.answers[index] = answer
        pending.missing -= 1
        if pending.missing == 0:
            self._resolve(pending)

    def _resolve(self, pending: PendingBatchRequest) -> None:
        self._leave(pending)
        pending.future.set_result(tuple([a for a in pending.answers if a is not None]))


def _awaits_row(pending: PendingBatchRequest, index: int) -> bool:
    """Whether the request still waits for an answer to this row: it has not ended, and no other
    lease has answered the row."""
    return not pending.future.done() and pending.answers[index] is None


def _record(sent: SentBatch, round_trip_s: float, reply: BatchReply) -> BatchRecord:
    lease, members = sent.lease, sent.members
    tokens = sum([m.request.lengths[row] for m, (_, row) in zip(members, lease.rows, strict=True)])
    return BatchRecord(
        lease.replica_id, len(lease.rows), lease.bucket, lease.predicted_s, sent.at, round_trip_s,
        tokens, reply, tuple(dict.fromkeys([m.trace for m in members])),
    )  # fmt: skip
