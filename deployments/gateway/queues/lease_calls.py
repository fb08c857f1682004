"""How does a lease become a message to its replica, and how does it end, exactly once?

`LeaseCalls` has what batches and streams share; `BatchCalls` and `StreamCalls` know the messages of
their kind. A lease is *out* from `_send` until its replica's last message about it; until its
connection is lost or `limit_s` pass without an end (it is lost); until there is no connection to
its replica (it is placed again); or until the live version does not take its requests, or the
gateway itself fails (these requests are told). The queue hears of every end in a turn of the event
loop of its own: never while its dispatcher is at work, and outside any request's context, whose end
would cancel the work.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Generic, TypeVar

from deployments.contract import errors
from deployments.contract.channel.frames import Buffer, Frame, FrameError, Kind, MessageError
from deployments.gateway.queues.connections import ReplicaChannel
from deployments.gateway.queues.pending_requests import LEASE_COUNTS, BatchEnd, PendingBatchRequest
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Dispatch
from routers.api.requests import FlowWork, LeaseEnd, Report
from routers.shared.staging import REPORT_EVERY_S


@dataclass(slots=True)
class _Peer:
    """A replica, as a messenger between gateways."""

    last_reported: float = -inf  # when it was last told what waits here
    known: tuple[FlowWork, ...] = ()  # what it last said of the other gateways' queues


class PeerQueueDepth:
    """What each replica was told of this gateway's queue, and has said of the others'. Times are
    seconds on the caller's clock.

    A call to a replica reports what waits at its gateway; a reply reports what waits at the others.
    The unit is predicted seconds, by flow. With hundreds of tenants the report is longer than the
    rest of a call, and sending it may cost more than a short batch takes. So a gateway reports
    again only when its last report is older than `REPORT_EVERY_S`, or when nothing waits any more;
    a reply without a report means that the last one still holds. Decides nothing: the dispatcher is
    told what was known last.
    """

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}  # by replica

    def to_report(
        self, replica_id: str, waiting: tuple[FlowWork, ...], now: float
    ) -> tuple[FlowWork, ...] | None:
        """What a call to this replica reports of the work that waits here; None: nothing, the last
        report still holds."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting and now - peer.last_reported < REPORT_EVERY_S:
            return None
        peer.last_reported = now
        return waiting

    def report_lost(self, replica_id: str) -> None:
        """A call with a report may not have arrived: the next call reports again."""
        peer = self._peers.get(replica_id)
        if peer is not None:
            peer.last_reported = -inf

    def update(self, replica_id: str, waiting: tuple[FlowWork, ...] | None) -> tuple[FlowWork, ...]:
        """What waits at other gateways, after a reply that reports `waiting` (None: as before)."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting is not None:
            peer.known = waiting
        return peer.known

    def forget(self, running: Set[str]) -> None:
        """Forget all replicas but those that run."""
        self._peers = {uid: peer for uid, peer in self._peers.items() if uid in running}


UNREACHED_RETRY_S = 0.01  # after which a replica without a connection may get a lease again
_MAX_REASON = 1000  # bytes
_KEEPS_LOST, _KEEPS_LOST_S = 8, 600.0  # replicas that have said why they end; for status
_LATE_EVERY_S = 1.0  # how often leases are checked against their `limit_s`
_HEARD_EVERY_S = 0.2  # how often a replica's messages count as a sign of life; below any wait
logger = logging.getLogger("headrace.queue")


@dataclass(slots=True, eq=False)
class SentLease:
    """A lease that is out."""

    lease: Dispatch
    at: float  # when it was dispatched, on the monotonic clock
    limit_s: float  # after which it counts as lost

    at_replica: bool = False  # its message was sent, and its replica's last one has not come
    aborted: bool = False  # the replica was asked to drop it, or need not be
    unsent: bool = False  # it was lost, but its replica is well: the answer could not be sent


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


def _reason(frame: Frame) -> str:
    """What a replica says went wrong, as a line for logs and terminals: a library's words are in
    it, which may have lines, and quote what a caller sent."""
    said = bytes(frame.body[:_MAX_REASON]).decode("utf-8", "replace")
    return " ".join("".join([c if c.isprintable() else " " for c in said]).split())


S = TypeVar("S", bound=SentLease)


class LeaseCalls(Generic[S]):
    """The leases of one queue that are out."""

    def __init__(self, channel: ReplicaChannel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, S] = {}  # by lease id
        self._by_replica: dict[str, dict[int, S]] = {}  # the same, by replica and lease id
        self._listed: set[str] = set()  # replicas that Serve lists
        self._heard_at: dict[str, float] = {}  # by replica: its last sign of life passed on
        self._timer: asyncio.TimerHandle | None = None  # runs while a lease is out
        self.ends = dict.fromkeys(BatchEnd, 0)  # leases that have ended, ever, by how
        self._ended: dict[str, tuple[float, str]] = {}  # by replica: when it said so, and why
        channel.listener = self

    @property
    def reached(self) -> list[str]:
        """Replicas that Serve lists and that can be reached."""
        return self._channel.reached

    @property
    def count(self) -> int:
        """How many leases are out."""
        return len(self._sent)

    @property
    def ended(self) -> dict[str, tuple[float, str]]:
        """Replicas that have lately said that they end: seconds ago, and why."""
        now = monotonic()
        aged = {uid: (now - at, why) for uid, (at, why) in self._ended.items()}
        return {uid: said for uid, said in aged.items() if said[0] < _KEEPS_LOST_S}

    def find(self, lease_id: int) -> S | None:
        """The lease, or None: it has ended."""
        return self._sent.get(lease_id)

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        """Take in which replicas Serve lists. Leases at other replicas go on to their end."""
        self._channel.follow(listed)
        known = {replica.replica_id for replica in listed}
        for replica_id in self._listed - known - self._by_replica.keys():
            self._channel.release(replica_id)
        self._listed = known
        self._heard_at = {uid: at for uid, at in self._heard_at.items() if uid in known}

    def close(self) -> None:
        """End every connection; leases that are out are lost."""
        self._channel.close()
        if self._timer is not None:
            self._timer.cancel()

    # ---- what each kind of lease defines --------------------------------------------------

    def _message(self, sent: S) -> tuple[Kind, Sequence[Buffer]] | None:
        """The message that begins the lease; None where the live version does not take it."""
        raise NotImplementedError

    def _refuse_outdated(self, sent: S) -> None:
        """End the lease's requests that the live version does not take."""
        raise NotImplementedError

    def _handle(self, replica_id: str, frame: Frame, sent: S | None) -> None:
        """Handle a frame of a kind that only batches or only streams have. Raises MessageError, or
        FrameError as `received` does."""
        raise NotImplementedError

    def _started(self, sent: S) -> None:
        """The replica has started the lease."""
        raise NotImplementedError

    def _returns(self, sent: S) -> bool:
        """Whether a replica that says that it ends has never begun the lease."""
        return False

    def _failed(self, sent: S) -> None:
        """The gateway itself failed on the lease: end its requests, so that no caller is left
        waiting."""
        raise NotImplementedError

    def _closed(self, sent: S, end: LeaseEnd, report: Report) -> None:
        """The lease has ended without an answer."""
        raise NotImplementedError

    def _heard(self, replica_id: str) -> None:
        """The replica has sent something, whatever it was."""
        raise NotImplementedError

    # ---- on the way out -----------------------------------------------------------------------

    def _send(self, sent: S) -> None:
        """Send the lease to its replica. What goes wrong ends it, in the loop's next turn."""
        lease = sent.lease
        self._sent[lease.lease_id] = sent
        self._by_replica.setdefault(lease.replica_id, {})[lease.lease_id] = sent
        if self._timer is None:
            self._schedule_late_check()
        try:
            message = self._message(sent)
            if message is None:
                self._in_next_turn(lambda: self._end_outdated(sent))
            elif self._channel.send(lease.replica_id, message[0], lease.lease_id, message[1]):
                sent.at_replica = True
            else:
                report = Report(retry_in_s=UNREACHED_RETRY_S)
                self._in_next_turn(lambda: self._end(sent, LeaseEnd.BUSY, report))
        except Exception as fault:
            known = isinstance(fault, FrameError)
            logger.error("a lease could not be sent: %s", fault, exc_info=None if known else fault)
            self._in_next_turn(lambda: self._fail_lease(sent))

    def _notify(self, sent: S, kind: Kind) -> None:
        """Send the lease's replica a message without a body, if it can be reached."""
        self._channel.send(sent.lease.replica_id, kind, sent.lease.lease_id)

    def _in_next_turn(self, act: Callable[[], None]) -> None:
        self._loop.call_soon(act, context=contextvars.Context())

    # ---- what comes back (`ChannelListener`) --------------------------------------------------

    def links_changed(self) -> None:
        raise NotImplementedError

    def link_lost(self, replica_id: str, reason: str) -> None:
        self._lose(replica_id, reason)

    def _lose(self, replica_id: str, reason: str) -> None:
        """What is out there will not be answered."""
        lost = self._by_replica.get(replica_id)
        if lost:
            logger.warning("replica %s lost %d leases: %s", replica_id, len(lost), reason)
            for sent in list(lost.values()):
                self._end(sent, LeaseEnd.LOST)

    def _take_end(self, replica_id: str, reason: str) -> None:
        """The replica ends by itself. What it has not begun is placed again free of charge: frames
        come in order, so it has not."""
        logger.error("replica %s ends: %s", replica_id, reason)
        self._ended.pop(replica_id, None)
        self._ended[replica_id] = monotonic(), reason
        while len(self._ended) > _KEEPS_LOST:
            del self._ended[next(iter(self._ended))]
        for sent in list(self._by_replica.get(replica_id, {}).values()):
            if self._returns(sent):
                sent.at_replica = False
                self._end(sent, LeaseEnd.BUSY, Report(retry_in_s=UNREACHED_RETRY_S))
        self._lose(replica_id, reason)
        raise FrameError(reason)

    def received(self, replica_id: str, frame: Frame) -> None:
        """Take in a message of a replica. One that makes no sense fails its own lease and no
        other. Raises FrameError where nobody can tell which leases it was about: the connection
        must then be closed."""
        now = monotonic()
        if now - self._heard_at.get(replica_id, -inf) >= _HEARD_EVERY_S:
            self._heard_at[replica_id] = now
            self._heard(replica_id)
        sent = self._sent.get(frame.lease_id) if frame.lease_id else None
        if sent is not None and sent.lease.replica_id != replica_id:
            sent = None
        try:
            if frame.kind is Kind.STARTED:
                if sent is not None:
                    self._started(sent)
            elif frame.kind is Kind.ENDED:
                self._take_end(replica_id, _reason(frame))
            elif frame.kind in (Kind.FAULT, Kind.UNSENT):
                self._lost_at_replica(replica_id, frame, sent)
            else:
                self._handle(replica_id, frame, sent)
        except FrameError:
            raise
        except Exception as fault:
            known = isinstance(fault, MessageError | ValueError)
            logger.error("what replica %s sent cannot be used: %s", replica_id, fault,
                         exc_info=None if known else fault)  # fmt: skip
            if sent is not None:
                self._fail_lease(sent)

    def _lost_at_replica(self, replica_id: str, frame: Frame, sent: S | None) -> None:
        logger.warning("replica %s lost a lease: %s", replica_id, _reason(frame))
        if sent is not None:
            sent.unsent = frame.kind is Kind.UNSENT
            self._end(sent, LeaseEnd.LOST)

    # ---- how leases end -----------------------------------------------------------------------

    def _remove(self, sent: S) -> bool:
        """Take the lease out of the books; whether it was out until now."""
        lease_id, replica_id = sent.lease.lease_id, sent.lease.replica_id
        if self._sent.pop(lease_id, None) is None:
            return False
        there = self._by_replica[replica_id]
        del there[lease_id]
        if not there:
            del self._by_replica[replica_id]
            self._channel.release(replica_id)
        return True

    def _count(self, end: BatchEnd) -> None:
        self.ends[end] += 1

    def _end(self, sent: S, end: LeaseEnd, report: Report | None = None) -> None:
        """End the lease without an answer, once: a second call has no effect."""
        if self._remove(sent):
            end = LeaseEnd.ABORTED if sent.aborted and end is LeaseEnd.BUSY else end
            self._count(LEASE_COUNTS[end])
            self._closed(sent, end, report or Report())

    def _end_outdated(self, sent: S) -> None:
        self._refuse_outdated(sent)
        self._end(sent, LeaseEnd.BUSY)

    def _fail_lease(self, sent: S) -> None:
        """End the lease and its requests after a fault of the gateway itself."""
        if sent.lease.lease_id in self._sent:
            self._failed(sent)
            self._end(sent, LeaseEnd.ABORTED)

    def _schedule_late_check(self) -> None:
        self._timer = self._loop.call_later(
            _LATE_EVERY_S, self._end_late_leases, context=contextvars.Context()
        )

    def _end_late_leases(self) -> None:
        self._timer = None
        now = monotonic()
        for sent in [s for s in self._sent.values() if now - s.at > s.limit_s]:
            logger.warning(
                "replica %s: no answer within %.1f s", sent.lease.replica_id, sent.limit_s
            )
            self._notify(sent, Kind.DROP)  # one that has not started need not start any more
            self._end(sent, LeaseEnd.LOST)
        if self._sent:
            self._schedule_late_check()
