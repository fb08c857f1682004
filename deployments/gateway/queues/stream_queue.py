"""One model's streams: callers' prompts become runs at replicas, pieces become their answers.

The dispatcher decides which prompt goes where and when; `StreamQueue` obeys, and tells it what
pieces say: how many tokens a run has had and holds. What a run brings goes to its caller at once. A
caller that leaves, reads too slowly or runs out of time has its run aborted. Where two runs race,
the dispatcher hears of the first piece before the caller gets it. `StreamCalls` sends: one message
begins a run, another aborts it; a message from a replica (STEPS) holds what all of this gateway's
requests there have received since the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import inf

from deployments.contract import errors
from deployments.contract.channel.frames import Buffer, Frame, FrameError, Kind, MessageError
from deployments.contract.channel.stream_messages import (
    MAX_HASHES,
    BlocksMessage,
    GenerateCall,
    Piece,
    SharesMessage,
    StepMessage,
    StreamEnd,
    decode_steps,
    encode_generate,
    packed,
    unpacked,
)
from deployments.contract.description import Generating
from deployments.gateway.queues.connections import ReplicaChannel
from deployments.gateway.queues.dispatcher_driver import (
    INTERNAL_ERROR,
    DispatcherDriver,
    QueueRequest,
    VersionTerms,
    changed,
    clock,
)
from deployments.gateway.queues.lease_calls import LeaseCalls, PeerQueueDepth, SentLease
from deployments.gateway.queues.lost_replicas import (
    ANYWAY,
    OTHERS_MISSED,
    PoisonTracker,
    PromptSuspect,
    quarantines,
)
from deployments.gateway.queues.pending_requests import (
    LEASE_COUNTS,
    MAX_UNREAD_BYTES,
    PendingStreamRequest,
    Prompt,
)
from deployments.gateway.queues.suspect_permits import SuspectPermits
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Abort, Dispatch, Evict, Reject
from routers.api.events import (
    AdaptersHeld,
    BlocksHeld,
    Cancel,
    Closed,
    Opened,
    PeersServed,
    Progress,
)
from routers.api.requests import (
    NO_TOKENS,
    FlowWork,
    LeaseEnd,
    Reason,
    Replica,
    ReplicaKind,
    Report,
    Tokens,
)
from routers.api.settings import DispatcherSettings
from routers.stream.scheduler import StreamScheduler
from routers.stream.staging import SharedEngines, TokenPrices
from runtimes.types import AdapterLoad, DeviceMemory, EngineLoad

logger = logging.getLogger("headrace.queue")
# After which a replica that other gateways have filled may get a run again: streams end there now
# and then.
_BUSY_RETRY_S = 0.05


@dataclass(slots=True, eq=False, kw_only=True)
class StreamRun(SentLease):
    """The lease of a request that generates, at its replica."""

    pending: PendingStreamRequest
    begun: bool = False  # the replica has announced that it has started


class StreamCalls(LeaseCalls[StreamRun]):
    """One queue's runs at its replicas."""

    def __init__(self, owner: StreamQueue, channel: ReplicaChannel) -> None:
        super().__init__(channel)
        self._owner = owner
        self._peer_demand = PeerQueueDepth()
        # By replica: what it said of other gateways, to be reported with the end of a run.
        self._shares: dict[str, SharesMessage] = {}
        # By replica that tells which blocks of prompts it holds: the number of its last message.
        self._blocks_told: dict[str, int] = {}

        # By replica, as of its last message.
        self.loads: dict[str, EngineLoad] = {}  # as its engine counts
        self.given: dict[str, Tokens] = {}  # to requests of all gateways, ever
        self.device_memory: dict[str, DeviceMemory] = {}  # of those that told it

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
        said = self.device_memory.items()
        self.device_memory = {uid: memory for uid, memory in said if uid in self.loads}
        self._owner.links_changed()

    def _lose(self, replica_id: str, reason: str) -> None:
        there = [run for run in self._by_replica.get(replica_id, {}).values() if run.begun]
        if there:
            self._owner.replica_lost(replica_id, there)
        if self._blocks_told.pop(replica_id, None) is not None:
            self._owner.blocks_held(replica_id, _NOT_KNOWN)
        super()._lose(replica_id, reason)

    def _returns(self, run: StreamRun) -> bool:
        return not run.begun

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
            adapters, before = message.load.adapters, self.loads[replica_id].adapters
            self.loads[replica_id] = message.load
            if adapters is not None and adapters != before:
                self._owner.adapters_held(replica_id, adapters)
                if adapters.waiting != (0 if before is None else before.waiting):
                    self._owner.links_changed()
            self.given[replica_id] = Tokens(message.read, 0, message.written)
            if message.device_memory is not None:
                self.device_memory[replica_id] = message.device_memory
        if message.shares is not None:
            self._learn_of_peers(replica_id, message)
        if message.blocks is not None:
            self._learn_of_blocks(replica_id, message.blocks)
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

    # ---- what replicas report of the blocks that they hold ----------------------------------

    def tells_blocks(self, replica_id: str) -> bool:
        return replica_id in self._blocks_told

    def _learn_of_blocks(self, replica_id: str, told: BlocksMessage) -> None:
        """Pass it on, unless one before it is missing: then ask for everything again, and pass on
        nothing until that comes."""
        last = self._blocks_told.get(replica_id)
        if told.whole or told.number - 1 == last:
            self._blocks_told[replica_id] = told.number
            self._owner.blocks_held(replica_id, told)
        elif last is not None:
            del self._blocks_told[replica_id]
            self._owner.blocks_held(replica_id, _NOT_KNOWN)
            self._channel.send(replica_id, Kind.BLOCKS, 0)

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
        shares = self._shares.pop(replica_id, SharesMessage())
        return Report(
            service_s=piece.service_s,
            retry_in_s=_BUSY_RETRY_S if piece.end is StreamEnd.BUSY else 0.0,
            inflight=message.inflight,
            held=message.held,
            seen=message.seen,
            virtual_time=shares.virtual_time,
            served=shares.served,
            waiting=shares.waiting or (),
            tokens=Tokens(piece.input_tokens, piece.cached_tokens, piece.output_tokens),
        )


_NOT_KNOWN = BlocksMessage(0, whole=True, partial=True)
_LATER_S = 1.0  # a replica gives up this much later than we do, so that we say why
_REPORT_TOKENS = 16  # how often the dispatcher hears of a run: a step of it costs 10 to 30 us

_END = {
    StreamEnd.DONE: LeaseEnd.DONE,
    StreamEnd.ABORTED: LeaseEnd.ABORTED,
    StreamEnd.BUSY: LeaseEnd.BUSY,
    StreamEnd.FAILED: LeaseEnd.ABORTED,
}


class StreamQueue(DispatcherDriver[PendingStreamRequest]):
    """`output_tokens`: that callers were brought, ever. `crashes`: prompts that replicas were lost
    with; newcomers are held against them by whoever submits. `permits`: suspected ones need one."""

    def __init__(
        self,
        settings: DispatcherSettings,
        terms: VersionTerms,
        channel: ReplicaChannel,
    ) -> None:
        super().__init__(StreamScheduler(settings), settings, terms)
        self.calls = StreamCalls(self, channel)
        self._shapes: Mapping[str, Generating] = {}
        self._groups: dict[str, str] = {}
        self.output_tokens = 0
        self.memory_faults = 0  # as of `BatchQueue`; an engine tells none
        self.crashes = PoisonTracker(terms.crashes)
        self.permits = SuspectPermits()
        self._engines = SharedEngines()
        self._prices = TokenPrices()

    # ---- what the gateway calls -----------------------------------------------------------

    def submit(
        self, prompt: Prompt, terms: VersionTerms, demand: QueueRequest
    ) -> PendingStreamRequest:
        """Queues a request that was measured under `terms`. Raises the error of an immediate
        rejection; the pending request gives the answer, or its error."""
        if not self.terms.take(terms):
            raise changed()
        now = clock()
        request = self._request((prompt.tokens,), terms, demand, now)
        request.generation, request.streams = prompt.generation, prompt.streams
        pending = PendingStreamRequest(request, prompt, terms)
        self._enter(pending, now)
        if pending.error is not None:
            raise pending.error
        return pending

    def set_replicas(
        self, replicas: Sequence[RunningReplica], shapes: Mapping[str, Generating]
    ) -> None:
        """`shapes`: what each of them may hold, by group."""
        self._shapes = shapes
        self._groups = {replica.replica_id: replica.group() for replica in replicas}
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
        """Share of each replica's key-value cache that is in use, 0..1."""
        return {uid: load.cache_used for uid, load in self.calls.loads.items()}

    @property
    def loads(self) -> dict[str, EngineLoad]:
        return self.calls.loads

    @property
    def device_memory(self) -> Mapping[str, DeviceMemory]:
        return self.calls.device_memory

    # ---- performing ----------------------------------------------------------------------------

    def _open(self, lease: Dispatch, now: float) -> None:
        pending = self._pending[lease.rows[0][0]]
        if lease.copy_of in pending.leases:
            pending.leases[lease.lease_id] = lease.replica_id
            pending.repeats += 1
        else:
            pending.dispatched_at = now
            pending.runs_as(lease.lease_id, lease.replica_id)
            pending.repeats += lease.alone
        self.calls.begin(lease, pending, now)

    def _abort(self, action: Abort) -> None:
        run = self.calls.find(action.lease_id)
        if run is None:
            return
        if self._is_live(run) and self._races(run):
            run.pending.goes_on_without(action.lease_id)
        self.calls.abort(action.lease_id)

    def _is_live(self, run: StreamRun) -> bool:
        """Whether its caller waits for this very run, not for one that took its place."""
        pending = run.pending
        return run.lease.lease_id in pending.leases and pending.request.request_id in self._pending

    @staticmethod
    def _races(run: StreamRun) -> bool:
        """Of a live one: whether another runs for the same caller."""
        return len(run.pending.leases) > 1

    def _refuse(self, action: Reject | Evict) -> None:
        """What an engine said as it failed for the last time is the answer, or its end."""
        pending = self._pending.get(action.request_id)
        if pending is None or action.reason is not Reason.FAILED:
            super()._refuse(action)
        elif pending.begun:
            self._finish(pending, errors.RowFailed("the engine failed on this request"))
        elif pending.last_words is None:
            super()._refuse(action)
        elif self._bring(pending, pending.last_words, clock()):
            self._leave(pending)
            pending.finish()
        else:
            self._finish(pending, _too_slow())

    # ---- what becomes of runs (for `StreamCalls`) -------------------------------------------

    def links_changed(self) -> None:
        self._list(tuple([self._as_listed(uid, self._groups[uid]) for uid in self.calls.reached]))

    def _as_listed(self, replica_id: str, group: str) -> Replica:
        shape = self._shapes[group]
        adapters = self.loads.get(replica_id, EngineLoad()).adapters
        waiting = 0 if adapters is None else adapters.waiting
        most = self._engines.max_leases(shape.max_sequences, waiting)
        return Replica(replica_id, float(shape.cache_tokens), ReplicaKind.STREAM, most, group)

    def replica_lost(self, replica_id: str, runs: Sequence[StreamRun]) -> None:
        """A connection broke. `runs` had started there, and run again elsewhere only after this:
        `closed` follows for each of them."""
        now, there = clock(), {}
        for run in runs:
            pending = run.pending
            key, tenant = pending.prompt.fingerprint, pending.request.tenant
            lost = self.crashes.note(key, tenant, replica_id, now)
            there[key] = PromptSuspect(key, tenant, lost, not pending.tokens.output)
        for suspect in there.values():
            if self._is_quarantined(suspect, list(there.values()), now):
                self.crashes.quarantine(suspect.key, suspect.tenant, now)
        self.end_quarantined({key for key in there if self.crashes.is_quarantined(key)})

    def _is_quarantined(
        self, suspect: PromptSuspect, there: Sequence[PromptSuspect], now: float
    ) -> bool:
        """By this loss."""
        elsewhere = self.crashes.elsewhere
        if self.crashes.is_quarantined(suspect.key):
            return False
        if not quarantines(suspect, there, sole=elsewhere.others == 0):
            return False
        return len(suspect.lost) >= ANYWAY or not elsewhere.was_there(
            suspect.key, suspect.lost, OTHERS_MISSED, now
        )

    def end_quarantined(self, keys: Set[bytes]) -> None:
        """Ends all that wait or run with a quarantined prompt, here or at another gateway."""
        for pending in [p for p in self._pending.values() if p.prompt.fingerprint in keys]:
            self._finish(pending, self.crashes.quarantine_error())

    def failed(self, run: StreamRun) -> None:
        """The gateway itself failed on this run: end its request, so that no caller is left
        waiting."""
        if self._is_live(run):
            self._finish(run.pending, errors.RowFailed(INTERNAL_ERROR))

    def call_of(self, run: StreamRun, waiting: tuple[FlowWork, ...] | None) -> GenerateCall:
        """The message that begins the run. `waiting`: what its replica is told of the work that
        waits in this queue; None: nothing new."""
        pending, lease, now = run.pending, run.lease, clock()
        left_s = max(pending.request.expires - now, 0.0) + _LATER_S
        prompt, priority = pending.prompt, pending.request.priority
        input_s, output_s = self._prices.at(self._settings.generation, self.snapshot, now)
        generation = self._settings.generation
        wanted = generation is not None and generation.affinity == "prefix"
        told = wanted and self.calls.tells_blocks(lease.replica_id)
        hashes = packed(prompt.generation.blocks[:MAX_HASHES]) if told else b""
        return GenerateCall(
            prompt.endpoint, prompt.body, left_s, priority, prompt.salt, lease.rank, lease.charges,
            waiting, input_s, output_s, hashes, prompt.hashed_tokens if hashes else 0,
        )  # fmt: skip

    def peers_served(self, replica_id: str, report: Report) -> None:
        """The replica has reported on other gateways, in a message without the end of a run."""
        self._step(PeersServed(replica_id, report), clock())

    def adapters_held(self, replica_id: str, adapters: AdapterLoad) -> None:
        """The replica reports other adapters than before."""
        held = AdaptersHeld(replica_id, adapters.held, adapters.load_s, adapters.failing)
        self._step(held, clock())

    def blocks_held(self, replica_id: str, told: BlocksMessage) -> None:
        """The replica reports what has changed of the blocks of prompts that it holds."""
        stored, removed = unpacked(told.stored), unpacked(told.removed)
        self._step(BlocksHeld(replica_id, stored, removed, told.whole, told.partial), clock())

    def opened(self, run: StreamRun) -> None:
        self._step(Opened(run.lease.lease_id), clock())

    def progressed(self, run: StreamRun, piece: Piece) -> None:
        """A piece has come that is not the last one."""
        pending, now = run.pending, clock()
        if run.aborted:
            return  # nothing of it is given any more
        undecided = not self._is_live(run) or self._races(run)
        if undecided:
            self._tell(run, piece, now)
            if run.aborted or not self._is_live(run):
                return  # it was only let run to see how its replica does
            pending.runs_as(run.lease.lease_id, run.lease.replica_id)
            pending.last_reported = piece.output_tokens
        if not self._bring(pending, piece, now):
            self._finish(pending, _too_slow())
            return
        new = pending.tokens.output - pending.last_reported
        if new >= _REPORT_TOKENS or not (undecided or pending.last_reported):
            pending.last_reported = pending.tokens.output
            self._tell(run, piece, now)

    def _tell(self, run: StreamRun, piece: Piece, now: float) -> None:
        """The dispatcher, how far it is."""
        tokens = Tokens(piece.input_tokens, piece.cached_tokens, piece.output_tokens)
        held = float(piece.held_tokens)
        given = self.calls.given.get(run.lease.replica_id, NO_TOKENS)
        self._step(Progress(run.lease.lease_id, piece.service_s, held, tokens, given), now)

    def ended(self, run: StreamRun, piece: Piece, report: Report) -> LeaseEnd:
        """The last piece has come. Tells the dispatcher, and returns how the lease has ended."""
        how = piece.end or StreamEnd.DONE
        end, pending = _END[how], run.pending
        failed: tuple[int, ...] = ()
        if self.crashes and how is StreamEnd.DONE:
            self.crashes.release(pending.prompt.fingerprint)
        if not self._is_live(run):
            end = LeaseEnd.ABORTED if end is LeaseEnd.DONE else end  # nobody waited for it any more
            pending.take_late(run.lease.lease_id, piece)
        elif run.aborted:  # its rows were recalled: pieces of it may have been dropped
            end = LeaseEnd.ABORTED if end is LeaseEnd.DONE else end
            self._unanswered(run)
        elif how is StreamEnd.DONE:
            end = self._answered(pending, piece)
        elif how is StreamEnd.FAILED:
            self._failed_on(run, piece)
            failed = (0,)
        else:
            self._unanswered(run)
        now = clock()
        told = LeaseEnd.DONE if failed else end
        self._step(Closed(run.lease.lease_id, told, report, failed), now)
        if self._engines.learn(report, now):
            self.links_changed()
        return end

    def closed(self, run: StreamRun, end: LeaseEnd, report: Report) -> None:
        """The run has ended without a last piece. What its caller was shown is paid, also where the
        caller has left since."""
        pending = run.pending
        if pending.begun and run.lease.lease_id in pending.leases and not self._races(run):
            report = replace(report, tokens=pending.tokens)
        if self._is_live(run):
            self._unanswered(run)
        self._step(Closed(run.lease.lease_id, end, report), clock())

    # ---- what becomes of callers --------------------------------------------------------------

    def _failed_on(self, run: StreamRun, piece: Piece) -> None:
        """What the engine said of it is the rest of an answer that its caller reads already."""
        if run.pending.begun:
            self._bring(run.pending, piece, clock())
        else:
            run.pending.last_words = piece if piece.data else None
            self._unanswered(run)

    def _unanswered(self, run: StreamRun) -> None:
        """It is over: what becomes of its request, where no other run has it, the dispatcher says
        when it is told of that."""
        if self._races(run):
            run.pending.goes_on_without(run.lease.lease_id)
        else:
            run.pending.forget_run()

    def _answered(self, pending: PendingStreamRequest, piece: Piece) -> LeaseEnd:
        """Only a whole answer is a sample of what answers cost."""
        if not self._bring(pending, piece, clock()):
            self._finish(pending, _too_slow())
            return LeaseEnd.DONE
        self._leave(pending)
        pending.finish()
        if pending.status == 200:
            return LeaseEnd.DONE
        self._step(Cancel(pending.request.request_id), clock())
        return LeaseEnd.ABORTED

    def _bring(self, pending: PendingStreamRequest, piece: Piece, now: float) -> bool:
        before = pending.tokens.output
        fits = pending.take(piece, now)
        self.output_tokens += max(pending.tokens.output - before, 0)
        return fits


def _too_slow() -> errors.ReaderTooSlow:
    return errors.ReaderTooSlow(
        f"the client left more than {MAX_UNREAD_BYTES} bytes of the answer unread"
    )
