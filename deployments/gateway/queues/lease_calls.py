"""Leases that are out: each becomes one message to its replica, and ends exactly once.

What a lease is asked and what is said of it, batches and streams know (`BatchCalls`,
`StreamCalls`); what they share is here. A lease ends by its last message, or is lost: with the
connection it went out on, or after `limit_s` without an end. One whose replica cannot be reached
was not started. All of that is told to the queue from turns of the loop of its own, never while its
dispatcher is at work, and outside any request's context.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Generic, TypeVar

from deployments.contract.channel.frames import Buffer, Frame, FrameError, Kind
from deployments.contract.channel.messages import MessageError
from deployments.contract.replica_directory import RunningReplica
from deployments.gateway.queues.pending_requests import LEASE_COUNTS, BatchEnd
from deployments.gateway.queues.replica_channel import ReplicaChannel
from routers.api.actions import Dispatch
from routers.api.requests import LeaseEnd, Report

UNREACHED_RETRY_S = 0.01  # an unstarted lease is placed again, elsewhere, after so long
_LATE_EVERY_S = 1.0
_HEARD_EVERY_S = 0.2  # how often a replica's words are passed on as a sign of life; below any wait
logger = logging.getLogger("headrace.queue")


@dataclass(slots=True, eq=False)
class SentLease:
    """A lease that is out. `at`: when it was dispatched, on the monotonic clock; `limit_s`: when it
    counts as lost after that. `at_replica`: its message went out, and no last one has come.
    `aborted`: nobody waits for it. `unsent`: its replica is well, and had no answer that
    could be sent."""

    lease: Dispatch
    at: float
    limit_s: float
    at_replica: bool = False
    aborted: bool = False
    unsent: bool = False


S = TypeVar("S", bound=SentLease)


class LeaseCalls(Generic[S]):
    """`ends`: how many leases have ended how."""

    def __init__(self, channel: ReplicaChannel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, S] = {}
        self._at: dict[str, dict[int, S]] = {}  # by replica
        self._listed: set[str] = set()
        self._heard_at: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.ends = dict.fromkeys(BatchEnd, 0)
        channel.listener = self

    @property
    def reached(self) -> list[str]:
        """Listed replicas that can be given work."""
        return self._channel.reached

    @property
    def count(self) -> int:
        """Leases that are out."""
        return len(self._sent)

    def find(self, lease_id: int) -> S | None:
        """None once it has ended."""
        return self._sent.get(lease_id)

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        """Serve lists these; what is out at others goes on to its end."""
        self._channel.follow(listed)
        known = {replica.replica_id for replica in listed}
        for replica_id in self._listed - known - self._at.keys():
            self._channel.release(replica_id)
        self._listed = known
        self._heard_at = {uid: at for uid, at in self._heard_at.items() if uid in known}

    def close(self) -> None:
        """Ends every connection; what is out is lost."""
        self._channel.close()
        if self._timer is not None:
            self._timer.cancel()

    # ---- what kinds of leases say ---------------------------------------------------------

    def _message(self, sent: S) -> tuple[Kind, Sequence[Buffer]] | None:
        """What is sent for it; None where it may not be sent any more."""
        raise NotImplementedError

    def _refuse_outdated(self, sent: S) -> None:
        """Ends what the live version does not take any more."""
        raise NotImplementedError

    def _handle(self, replica_id: str, frame: Frame, sent: S | None) -> None:
        """A frame that is not of leases in general. Raises MessageError, or FrameError as
        `received` does."""
        raise NotImplementedError

    def _started(self, sent: S) -> None:
        """The replica has begun with it."""
        raise NotImplementedError

    def _failed(self, sent: S) -> None:
        """A fault of ours: nobody may be left waiting."""
        raise NotImplementedError

    def _closed(self, sent: S, end: LeaseEnd, report: Report) -> None:
        """It ended without an answer."""
        raise NotImplementedError

    def _heard(self, replica_id: str) -> None:
        """The replica has said something, whatever it was."""
        raise NotImplementedError

    # ---- on the way out -----------------------------------------------------------------------

    def _send(self, sent: S) -> None:
        lease = sent.lease
        self._sent[lease.lease_id] = sent
        self._at.setdefault(lease.replica_id, {})[lease.lease_id] = sent
        if self._timer is None:
            self._late_later()
        try:
            message = self._message(sent)
            if message is None:
                self._soon(lambda: self._outdated(sent))
            elif self._channel.send(lease.replica_id, message[0], lease.lease_id, message[1]):
                sent.at_replica = True
            else:
                report = Report(retry_in_s=UNREACHED_RETRY_S)
                self._soon(lambda: self._end(sent, LeaseEnd.BUSY, report))
        except Exception as fault:
            known = isinstance(fault, FrameError)
            logger.error("a lease could not be sent: %s", fault, exc_info=None if known else fault)
            self._soon(lambda: self._fault(sent))

    def _tell(self, sent: S, kind: Kind) -> None:
        self._channel.send(sent.lease.replica_id, kind, sent.lease.lease_id)

    def _soon(self, act: Callable[[], None]) -> None:
        self._loop.call_soon(act, context=contextvars.Context())

    # ---- what comes back (`ChannelListener`) --------------------------------------------------

    def links_changed(self) -> None:
        raise NotImplementedError

    def link_lost(self, replica_id: str, reason: str) -> None:
        lost = self._at.get(replica_id)
        if lost:
            logger.warning("replica %s lost %d leases: %s", replica_id, len(lost), reason)
            for sent in list(lost.values()):
                self._end(sent, LeaseEnd.LOST)

    def received(self, replica_id: str, frame: Frame) -> None:
        """A message that does not add up costs its own lease, and nothing else. Raises FrameError
        where it is not known which leases it was about: the connection is not to go on."""
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
            elif frame.kind in (Kind.FAULT, Kind.UNSENT):
                self._faulted(replica_id, frame, sent)
            else:
                self._handle(replica_id, frame, sent)
        except FrameError:
            raise
        except Exception as fault:
            known = isinstance(fault, MessageError | ValueError)
            logger.error("what replica %s sent cannot be used: %s", replica_id, fault,
                         exc_info=None if known else fault)  # fmt: skip
            if sent is not None:
                self._fault(sent)

    def _faulted(self, replica_id: str, frame: Frame, sent: S | None) -> None:
        reason = bytes(frame.body).decode("utf-8", "replace")
        logger.warning("replica %s lost a lease: %s", replica_id, reason)
        if sent is not None:
            sent.unsent = frame.kind is Kind.UNSENT
            self._end(sent, LeaseEnd.LOST)

    # ---- how they end -------------------------------------------------------------------------

    def _remove(self, sent: S) -> bool:
        """It is out no more; whether it was until now."""
        lease_id, replica_id = sent.lease.lease_id, sent.lease.replica_id
        if self._sent.pop(lease_id, None) is None:
            return False
        there = self._at[replica_id]
        del there[lease_id]
        if not there:
            del self._at[replica_id]
            self._channel.release(replica_id)
        return True

    def _count(self, end: BatchEnd) -> None:
        self.ends[end] += 1

    def _end(self, sent: S, end: LeaseEnd, report: Report | None = None) -> None:
        if self._remove(sent):
            end = LeaseEnd.ABORTED if sent.aborted and end is LeaseEnd.BUSY else end
            self._count(LEASE_COUNTS[end])
            self._closed(sent, end, report or Report())

    def _outdated(self, sent: S) -> None:
        self._refuse_outdated(sent)
        self._end(sent, LeaseEnd.BUSY)

    def _fault(self, sent: S) -> None:
        if sent.lease.lease_id in self._sent:
            self._failed(sent)
            self._end(sent, LeaseEnd.ABORTED)

    def _late_later(self) -> None:
        self._timer = self._loop.call_later(
            _LATE_EVERY_S, self._look_for_late, context=contextvars.Context()
        )

    def _look_for_late(self) -> None:
        self._timer = None
        now = monotonic()
        for sent in [s for s in self._sent.values() if now - s.at > s.limit_s]:
            logger.warning(
                "replica %s: no answer within %.1f s", sent.lease.replica_id, sent.limit_s
            )
            self._tell(sent, Kind.DROP)  # one that has not started need not any more
            self._end(sent, LeaseEnd.LOST)
        if self._sent:
            self._late_later()
