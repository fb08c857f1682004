"""One model's batches: rows of its waiting callers become calls, replies become their answers.

The dispatcher decides, this queue obeys and feeds the ends of calls back as events. A future is
registered before its rows can be dispatched, and is resolved once: by the first answer to each of
its rows, of whichever lease, or by an error. A row that the runtime failed on is no answer: the
dispatcher is told, and leaves it to a copy that runs, has it run again, or gives it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set

from deployments.contract import errors
from deployments.contract.channel.messages import BatchReply
from deployments.contract.replica_directory import RunningReplica
from deployments.gateway.queues.batch_calls import BatchCalls, SentBatch, deliver_rows
from deployments.gateway.queues.core_loop import (
    INTERNAL_ERROR,
    CoreLoop,
    Demand,
    VersionTerms,
    changed,
    clock,
)
from deployments.gateway.queues.crash_records import CrashRecords, fingerprints, same_row
from deployments.gateway.queues.pending_requests import BatchRecord, PendingBatchRequest
from deployments.gateway.queues.replica_channel import ReplicaChannel
from deployments.gateway.rows.types import RowAnswer, Rows
from routers.api.actions import Abort, Dispatch
from routers.api.events import Cancel, Closed, Opened
from routers.api.requests import LeaseEnd, Replica, Report
from routers.api.settings import DispatcherSettings
from runtimes.types import EngineLoad

_IDLE_S = 20.0  # a replica that has not answered for so long is not busy


class BatchQueue(CoreLoop[PendingBatchRequest]):
    """`on_batch` hears of every batch that was answered. `crashes`: rows that replicas were lost
    with; newcomers are held against them by whoever submits."""

    output_tokens = 0

    def __init__(
        self,
        settings: DispatcherSettings,
        terms: VersionTerms,
        channel: ReplicaChannel,
        *,
        on_batch: Callable[[BatchRecord], None],
    ) -> None:
        super().__init__(settings, terms)
        self.calls = BatchCalls(self, channel)
        self.crashes = CrashRecords(terms.crashes)
        self._slots: Mapping[str, int] = {}
        self._groups: dict[str, str] = {}
        self._on_batch = on_batch
        self._duty: dict[str, tuple[float, float]] = {}

    # ---- what the gateway calls -----------------------------------------------------------

    def submit(self, rows: Rows, terms: VersionTerms, demand: Demand) -> PendingBatchRequest:
        """Queues a request whose rows were parsed under `terms`.

        Raises the error of an immediate rejection. The request's future gets the row answers, in
        order, or the error.
        """
        if not self.terms.take(terms):
            raise changed()
        now = clock()
        request = self._request(rows.lengths, terms, demand, now)
        count = len(rows.lengths)
        future: asyncio.Future[tuple[RowAnswer, ...]] = self._loop.create_future()
        pending = PendingBatchRequest(request, rows, terms, future, [None] * count, count)
        self._enter(pending, now)
        if pending.future.done():
            pending.future.result()
        return pending

    def cancel(self, pending: PendingBatchRequest) -> None:
        """The caller disconnected: its future raises `CallerLeft`; idempotent."""
        super().cancel(pending)
        if pending.future.done():
            pending.future.exception()  # seen: perhaps nobody awaits it any more

    def set_replicas(self, replicas: Sequence[RunningReplica], slots: Mapping[str, int]) -> None:
        """`slots`: of each of them, by group."""
        self._slots = slots
        self._groups = {replica.replica_id: replica.group() for replica in replicas}
        self._duty = {r.replica_id: self._duty.get(r.replica_id, (0.0, 0.0)) for r in replicas}
        self.calls.follow(replicas)
        self.links_changed()

    def adopt(self, settings: DispatcherSettings, terms: VersionTerms) -> None:
        super().adopt(settings, terms)
        self.crashes.terms = terms.crashes

    def close(self) -> None:
        """What waits is refused, what runs goes on to its end."""
        super().close()
        self.calls.follow(())

    @property
    def duty(self) -> dict[str, float]:
        """Busy share of wall time by replica, 0..1, as of its last answer; 0 when that is old."""
        now = clock()
        return {r: duty if now - at < _IDLE_S else 0.0 for r, (duty, at) in self._duty.items()}

    @property
    def loads(self) -> dict[str, EngineLoad]:
        """Engines' own accounts, which batch replicas have none of."""
        return {}

    # ---- performing ----------------------------------------------------------------------------

    def _open(self, lease: Dispatch, now: float) -> None:
        if lease.copy_of:
            known = self.calls.members(lease.copy_of)
            members = [known[row] for row in lease.rows]
        else:
            members = [self._pending[request_id] for request_id, _ in lease.rows]
        for pending in members:
            pending.sent = True
        self.calls.send(lease, members, now)

    def _abort(self, action: Abort) -> None:
        self.calls.abort(action.lease_id)

    # ---- what becomes of leases (`BatchCallsOwner`) -----------------------------------------

    def links_changed(self) -> None:
        known = [(uid, self._groups[uid]) for uid in self.calls.reached]
        self._list(tuple([Replica(uid, self._slots[group], group=group) for uid, group in known]))

    def opened(self, sent: SentBatch) -> None:
        self._step(Opened(sent.lease.lease_id), clock())

    def answered(self, sent: SentBatch, round_trip_s: float, reply: BatchReply) -> bool:
        lease = sent.lease
        self._duty[lease.replica_id] = reply.duty, clock()
        self._on_batch(_record(sent, round_trip_s, reply))
        answers = deliver_rows(lease, sent.at, sent.version, reply)
        if reply.errors:
            sent.failed = tuple([at for at, each in enumerate(answers) if each.failed])
        awaited = [
            (pending, index, answer)
            for pending, (_, index), answer in zip(sent.members, lease.rows, answers, strict=True)
            if _awaits(pending, index)
        ]
        if lease.alone:
            self.crashes.answered_alone(sent)
        else:
            self.crashes.answered_among_others(sent)
        for pending, index, answer in awaited:
            self._row_done(sent, pending, index, answer)
        return bool(awaited)

    def failed(self, sent: SentBatch) -> None:
        """Whoever has no answer yet gets an error, and no second try."""
        for pending in sent.members:
            self._finish(pending, errors.RowFailed(INTERNAL_ERROR))

    def closed(self, sent: SentBatch, end: LeaseEnd, report: Report) -> None:
        ended = end is LeaseEnd.LOST and not sent.unsent
        convicted = self._convict(sent) if ended else []
        self._take(Closed(sent.lease.lease_id, end, report, sent.failed), clock())
        for request_id in convicted:
            self._take(Cancel(request_id), clock())
        for pending, error in sent.refused:
            self._finish(pending, error)

    def _convict(self, sent: SentBatch) -> list[int]:
        """Ends all requests with a row that the loss of this lease convicts; the dispatcher is to
        be told by the caller of this."""
        convicted = []
        for rows, row in self.crashes.lost_with(sent, clock()):
            for pending in list(self._pending.values()):
                own = pending.rows
                if any(same_row(rows, row, own, each) for each in range(own.count)):
                    self._leave(pending)
                    pending.fail(self.crashes.conviction())
                    convicted.append(pending.request.request_id)
        return convicted

    def end_convicted(self, keys: Set[bytes]) -> None:
        """Ends all requests with a row that another gateway has convicted, of those that were sent
        once at least: the rest are as many as may wait, and are ended by the next loss."""
        for pending in [each for each in self._pending.values() if each.sent]:
            if not keys.isdisjoint(fingerprints(pending.rows, pending.terms.version)):
                self._finish(pending, self.crashes.conviction())

    # ---- what becomes of rows -----------------------------------------------------------------

    def _row_done(
        self, sent: SentBatch, pending: PendingBatchRequest, index: int, answer: RowAnswer
    ) -> None:
        """A row's answer or error; the last row resolves the caller's future. Errors are told when
        the dispatcher has heard of the lease's end, so that it sends none of that again."""
        if answer.error is not None:
            if not answer.failed:
                sent.refused.append((pending, answer.error))
            return
        pending.answers[index] = answer
        pending.missing -= 1
        if pending.missing == 0:
            self._resolve(pending)

    def _resolve(self, pending: PendingBatchRequest) -> None:
        self._leave(pending)
        pending.future.set_result(tuple([a for a in pending.answers if a is not None]))


def _awaits(pending: PendingBatchRequest, index: int) -> bool:
    """Whether an answer to this row is still wanted: not of one that another lease has answered."""
    return not pending.future.done() and pending.answers[index] is None


def _record(sent: SentBatch, round_trip_s: float, reply: BatchReply) -> BatchRecord:
    lease, members = sent.lease, sent.members
    tokens = sum([m.request.lengths[row] for m, (_, row) in zip(members, lease.rows, strict=True)])
    return BatchRecord(
        lease.replica_id, len(lease.rows), lease.bucket, lease.predicted_s, sent.at, round_trip_s,
        tokens, reply, tuple(dict.fromkeys([m.trace for m in members])),
    )  # fmt: skip
