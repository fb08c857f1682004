"""How does a lease become a call, and what did the call's end mean?

One task a lease: it sends the batch, hands the reply to the queue and says how the lease ended,
whatever happens, exactly once. Tasks run in an empty context: inside a request's context one
caller's disconnect would cancel the whole batch (Serve cancels a request's children). An abort asks
the replica to drop the batch unstarted; the call itself then answers, so that nothing is guessed.
Where a lease is tied, a second call says when it starts.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine, Sequence, Set
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from deployments.contract.batch_wire import BatchReply
from deployments.gateway.queues.batch_calls import build_call
from deployments.gateway.queues.peer_demand import PeerDemand
from deployments.gateway.queues.tickets import BatchEnd, Terms, Ticket
from deployments.gateway.queues.transport import ReplicaDied, ReplicaFault, Transport, Unreached
from routers.types import Dispatch, LeaseEnd, Report

_UNREACHED_RETRY_S = 0.01
_COUNTED = {
    LeaseEnd.DONE: BatchEnd.ANSWERED,
    LeaseEnd.BUSY: BatchEnd.RETURNED,
    LeaseEnd.ABORTED: BatchEnd.DROPPED,
    LeaseEnd.LOST: BatchEnd.LOST,
}
logger = logging.getLogger("headrace.queue")


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
