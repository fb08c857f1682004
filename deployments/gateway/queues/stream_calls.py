"""What is sent to a replica for the lease of a request that generates, and what comes back?

One message begins a run and another one aborts it. A message from a replica (STEPS) holds what all
of this gateway's requests there have received since its last message. When a connection breaks,
everything that ran on it is lost at once. `StreamQueue` calls `StreamCalls`, and hears through
`StreamCallsOwner` what becomes of each run. `LeaseCalls` has what batches and streams share.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from deployments.contract.channel.frames import Buffer, Frame, FrameError, Kind
from deployments.contract.channel.messages import MessageError
from deployments.contract.channel.stream_messages import (
    GenerateCall,
    Piece,
    SharesMessage,
    StepMessage,
    StreamEnd,
    decode_steps,
    encode_generate,
)
from deployments.gateway.queues.lease_calls import LeaseCalls, SentLease
from deployments.gateway.queues.peer_demand import PeerDemand
from deployments.gateway.queues.pending_requests import LEASE_COUNTS, PendingStreamRequest
from deployments.gateway.queues.replica_channel import ReplicaChannel
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Dispatch
from routers.api.requests import FlowWork, LeaseEnd, Report, Tokens
from runtimes.types import EngineLoad

logger = logging.getLogger("headrace.queue")
# After which a replica that other gateways have filled may get a run again: streams end there now
# and then.
_BUSY_RETRY_S = 0.05


@dataclass(slots=True, eq=False, kw_only=True)
class StreamRun(SentLease):
    """The lease of a request that generates, at its replica."""

    pending: PendingStreamRequest
    begun: bool = False  # the replica has announced that it has started


class StreamCallsOwner(Protocol):
    """The queue, as far as its requests' runs need it."""

    def links_changed(self) -> None:
        """The set of reachable replicas has changed."""

    def heard(self, replica_id: str) -> None:
        """The replica has sent something."""

    def replica_lost(self, replica_id: str, runs: Sequence[StreamRun]) -> None:
        """A connection broke. `runs` had started there; `closed` follows for each of them."""

    def takes(self, pending: PendingStreamRequest) -> bool:
        """Whether the request's prompt may be sent to the live version."""

    def outdated(self, pending: PendingStreamRequest) -> None:
        """End a request whose prompt may not be sent to the live version."""

    def failed(self, run: StreamRun) -> None:
        """The gateway itself failed on this run: end its request, so that no caller is left
        waiting."""

    def call_of(self, run: StreamRun, waiting: tuple[FlowWork, ...] | None) -> GenerateCall:
        """The message that begins the run. `waiting`: what its replica is told of the work that
        waits in this queue; None: nothing new."""

    def peers_served(self, replica_id: str, report: Report) -> None:
        """The replica has reported on other gateways, in a message without the end of a run."""

    def opened(self, run: StreamRun) -> None:
        """The replica has started the run."""

    def progressed(self, run: StreamRun, piece: Piece) -> None:
        """A piece has come that is not the last one."""

    def ended(self, run: StreamRun, piece: Piece, report: Report) -> LeaseEnd:
        """The last piece has come. The queue tells the dispatcher itself, and returns how the lease
        has ended."""

    def closed(self, run: StreamRun, end: LeaseEnd, report: Report) -> None:
        """The run has ended without a last piece."""


class StreamCalls(LeaseCalls[StreamRun]):
    """One queue's runs at its replicas."""

    def __init__(self, owner: StreamCallsOwner, channel: ReplicaChannel) -> None:
        super().__init__(channel)
        self._owner = owner
        self._peer_demand = PeerDemand()
        # By replica: what it said of other gateways, to be reported with the end of a run.
        self._shares: dict[str, SharesMessage] = {}

        # By replica, as of its last message.
        self.loads: dict[str, EngineLoad] = {}  # as its engine counts
        self.given: dict[str, Tokens] = {}  # to requests of all gateways, ever

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        super().follow(listed)
        known = {replica.replica_id for replica in listed}
        self._peer_demand.forget(known)
        self._shares = {uid: told for uid, told in self._shares.items() if uid in known}

    def begin(self, lease: Dispatch, pending: PendingStreamRequest, now: float) -> None:
        """Send the lease. A run has no time limit of its own: the request's timeout ends it, or the
        silence of its replica (`ReplicaLink`)."""
        self._send(StreamRun(lease, now, inf, pending=pending))

    def abort(self, lease_id: int) -> None:
        """Ask the replica to stop the run, once. No effect on a run that has ended."""
        run = self._sent.get(lease_id)
        if run is None or run.aborted:
            return
        run.aborted = True
        if run.at_replica:
            self._notify(run, Kind.ABORT)

    # ---- `LeaseCalls` -------------------------------------------------------------------------

    def links_changed(self) -> None:
        self.loads = {uid: self.loads.get(uid, EngineLoad()) for uid in self.reached}
        self.given = {uid: given for uid, given in self.given.items() if uid in self.loads}
        self._owner.links_changed()

    def link_lost(self, replica_id: str, reason: str) -> None:
        there = [run for run in self._by_replica.get(replica_id, {}).values() if run.begun]
        if there:
            self._owner.replica_lost(replica_id, there)
        super().link_lost(replica_id, reason)

    def _message(self, run: StreamRun) -> tuple[Kind, Sequence[Buffer]] | None:
        if not self._owner.takes(run.pending):
            return None
        lease = run.lease
        waiting = None  # a copy reports nothing of what waits here
        if not lease.copy_of:
            waiting = self._peer_demand.to_report(lease.replica_id, lease.waiting, run.at)
        version = self._channel.version(lease.replica_id)
        return Kind.BEGIN, encode_generate(self._owner.call_of(run, waiting), version)

    def _refuse_outdated(self, run: StreamRun) -> None:
        self._owner.outdated(run.pending)

    def _handle(self, replica_id: str, frame: Frame, run: StreamRun | None) -> None:
        if frame.kind is not Kind.STEPS:
            raise MessageError(f"{frame.kind.name} of a replica that generates")
        try:
            message = decode_steps(frame.body)
        except MessageError as fault:  # ends of runs may have been in it, nobody knows of which
            raise FrameError(str(fault)) from fault
        if replica_id in self.loads:
            self.loads[replica_id] = message.load
            self.given[replica_id] = Tokens(message.read, 0, message.written)
        if message.shares is not None:
            self._learn_of_peers(replica_id, message)
        for piece in message.pieces:
            run = self._by_replica.get(replica_id, {}).get(piece.lease_id)
            try:
                self._deliver_piece(replica_id, run, piece, message)
            except Exception:
                logger.exception("a piece of an answer could not be handed on")
                if run is not None:
                    self._fail_lease(run)

    def _deliver_piece(
        self, replica_id: str, run: StreamRun | None, piece: Piece, message: StepMessage
    ) -> None:
        if run is None:
            if piece.end is None:  # this gateway counts the run as lost: it need not go on
                self._channel.send(replica_id, Kind.ABORT, piece.lease_id)
        elif piece.end is None:
            self._owner.progressed(run, piece)
        else:
            run.at_replica = False
            end = self._owner.ended(run, piece, self._report(replica_id, piece, message))
            self._remove(run)
            self._count(LEASE_COUNTS[end])

    def _heard(self, replica_id: str) -> None:
        self._owner.heard(replica_id)

    def _started(self, run: StreamRun) -> None:
        run.begun = True
        self._owner.opened(run)

    def _failed(self, run: StreamRun) -> None:
        self.abort(run.lease.lease_id)
        self._owner.failed(run)

    def _closed(self, run: StreamRun, end: LeaseEnd, report: Report) -> None:
        if end is LeaseEnd.LOST or not run.at_replica:
            self._peer_demand.report_lost(run.lease.replica_id)
        self._owner.closed(run, end, report)

    # ---- what replicas report of other gateways -------------------------------------------------

    def _learn_of_peers(self, replica_id: str, message: StepMessage) -> None:
        """Pass on what the message says of other gateways: in the report of a run's end where the
        message has one, else at once."""
        news = message.shares or SharesMessage()
        known = self._shares.pop(replica_id, SharesMessage())
        waiting = self._peer_demand.update(replica_id, news.waiting)
        shares = SharesMessage(news.virtual_time, known.served + news.served, waiting)
        if any(piece.end is not None for piece in message.pieces):
            self._shares[replica_id] = shares
        else:
            report = Report(virtual_time=shares.virtual_time, served=shares.served, waiting=waiting)
            self._owner.peers_served(replica_id, report)

    def _report(self, replica_id: str, piece: Piece, message: StepMessage) -> Report:
        tokens = (piece.input_tokens, piece.cached_tokens, piece.output_tokens)
        shares = self._shares.pop(replica_id, SharesMessage())
        return Report(
            service_s=piece.service_s,
            retry_in_s=_BUSY_RETRY_S if piece.end is StreamEnd.BUSY else 0.0,
            padded_tokens=sum(tokens) - piece.cached_tokens,
            inflight=message.inflight,
            held=message.held,
            seen=message.seen,
            virtual_time=shares.virtual_time,
            served=shares.served,
            waiting=shares.waiting or (),
            tokens=Tokens(*tokens),
        )
