"""How do one model's waiting rows become batches at its replicas, and replies become answers?

The dispatcher decides what is sent where. This queue carries its decisions out and reports the ends
of leases back as events. It owns the pending requests and their futures.

- A future is registered before its rows can be dispatched.
- It is resolved once: with the first answer to each row, from whichever lease, or with an error.
- A row that the runtime failed on has no answer. The dispatcher then waits for a copy of it that
  runs, has the row run again, or gives it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set

from deployments.contract import errors
from deployments.contract.channel.messages import BatchReply
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
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Abort, Dispatch
from routers.api.events import Cancel, Closed, Opened
from routers.api.requests import LeaseEnd, Replica, Report
from routers.api.settings import DispatcherSettings
from runtimes.types import EngineLoad

_IDLE_S = 20.0  # the duty cycle of a replica that has not answered for so long counts as 0


class BatchQueue(CoreLoop[PendingBatchRequest]):
    """One model's queue of requests that are answered in batches."""

    output_tokens = 0  # as of `StreamQueue`

    def __init__(
        self,
        settings: DispatcherSettings,
        terms: VersionTerms,
        channel: ReplicaChannel,
        *,
        on_batch: Callable[[BatchRecord], None],  # called with every answered batch
    ) -> None:
        super().__init__(settings, terms)
        self.calls = BatchCalls(self, channel)
        # Rows that replicas were lost with. Whoever submits must check new requests against them.
        self.crashes = CrashRecords(terms.crashes)
        self._slots: Mapping[str, int] = {}  # of a replica, by group
        self._groups: dict[str, str] = {}  # by replica
        self._on_batch = on_batch
        self._duty: dict[str, tuple[float, float]] = {}  # by replica: duty cycle, when it was told

    # ---- what the gateway calls -----------------------------------------------------------

    def submit(self, rows: Rows, terms: VersionTerms, demand: Demand) -> PendingBatchRequest:
        """Queue a request whose rows were parsed under `terms`.

        The request's future gets the row answers, in order, or the error. Raises the error of an
        immediate rejection, and NotReady where the live version does not take these rows.
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
        """The caller has disconnected: the request's future raises `CallerLeft`. Idempotent."""
        super().cancel(pending)
        if pending.future.done():
            pending.future.exception()  # else asyncio logs it, where nobody awaits it any more

    def set_replicas(self, replicas: Sequence[RunningReplica], slots: Mapping[str, int]) -> None:
        """The replicas that Serve lists. `slots`: how many a replica has, by its group."""
        self._slots = slots
        self._groups = {replica.replica_id: replica.group() for replica in replicas}
        self._duty = {r.replica_id: self._duty.get(r.replica_id, (0.0, 0.0)) for r in replicas}
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
        """Fail every member that has no answer yet; none is retried."""
        for pending in sent.members:
            self._finish(pending, errors.RowFailed(INTERNAL_ERROR))

    def closed(self, sent: SentBatch, end: LeaseEnd, report: Report) -> None:
        replica_lost = end is LeaseEnd.LOST and not sent.unsent
        convicted = self._fail_convicted(sent) if replica_lost else []
        self._take(Closed(sent.lease.lease_id, end, report, sent.failed), clock())
        for request_id in convicted:
            self._take(Cancel(request_id), clock())
        for pending, error in sent.refused:
            self._finish(pending, error)

    def _fail_convicted(self, sent: SentBatch) -> list[int]:
        """Record that a replica was lost with this lease, and fail all requests that have a row
        which is convicted by that. Returns their ids, which the caller must cancel at the
        dispatcher."""
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
        """Fail the requests that have a row which another gateway has convicted. Only requests that
        were sent at least once are looked at: the others may be as many as the queue holds, and the
        next loss ends them."""
        for pending in [each for each in self._pending.values() if each.sent]:
            if not keys.isdisjoint(fingerprints(pending.rows, pending.terms.version)):
                self._finish(pending, self.crashes.conviction())

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
