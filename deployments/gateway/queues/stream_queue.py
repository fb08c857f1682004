"""One model's streams: callers' prompts become runs at replicas, pieces become their answers.

The dispatcher decides which prompt goes where and when; this queue obeys, and tells it what pieces
say: how many tokens a run has had and holds. What a run brings goes to its caller at once. A caller
that leaves, reads too slowly or runs out of time has its run aborted, which frees its tokens. What
runs once more, and what ends with an error because its caller was given a part of it, the
dispatcher says. Where two runs race, it hears of the first piece before the caller gets it: by then
it is one. Prompts that end replicas are refused for a while (`prompt_suspects`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from deployments.contract import errors
from deployments.contract.channel.stream_messages import GenerateCall, Piece, StreamEnd
from deployments.contract.description import Generating
from deployments.gateway.queues.core_loop import (
    INTERNAL_ERROR,
    CoreLoop,
    Demand,
    VersionTerms,
    changed,
    clock,
)
from deployments.gateway.queues.crash_records import CrashRecords
from deployments.gateway.queues.pending_requests import (
    MOST_UNREAD_BYTES,
    PendingStreamRequest,
    Prompt,
)
from deployments.gateway.queues.prompt_suspects import (
    ANYWAY,
    OTHERS_MISSED,
    PromptSuspect,
    convicts,
)
from deployments.gateway.queues.replica_channel import ReplicaChannel
from deployments.gateway.queues.stream_calls import StreamCalls, StreamRun
from deployments.gateway.queues.suspect_permits import SuspectPermits
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Abort, Dispatch, Evict, Reject
from routers.api.events import Cancel, Closed, Opened, PeersServed, Progress
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
from routers.shared_engines import SharedEngines, TokenPrices
from runtimes.types import EngineLoad

_LATER_S = 1.0  # a replica gives up this much later than we do, so that we say why
_REPORT_TOKENS = 16  # how often the dispatcher hears of a run: a step of it costs 10 to 30 us

_END = {
    StreamEnd.DONE: LeaseEnd.DONE,
    StreamEnd.ABORTED: LeaseEnd.ABORTED,
    StreamEnd.BUSY: LeaseEnd.BUSY,
    StreamEnd.FAILED: LeaseEnd.ABORTED,
}


class StreamQueue(CoreLoop[PendingStreamRequest]):
    """`output_tokens`: that callers were brought, ever. `crashes`: prompts that replicas were lost
    with; newcomers are held against them by whoever submits. `permits`: suspected ones need one."""

    def __init__(
        self,
        settings: DispatcherSettings,
        terms: VersionTerms,
        channel: ReplicaChannel,
    ) -> None:
        super().__init__(settings, terms)
        self.calls = StreamCalls(self, channel)
        self._shapes: Mapping[str, Generating] = {}
        self._groups: dict[str, str] = {}
        self.output_tokens = 0
        self.crashes = CrashRecords(terms.crashes)
        self.permits = SuspectPermits()
        self._engines = SharedEngines()
        self._prices = TokenPrices()

    # ---- what the gateway calls -----------------------------------------------------------

    def submit(self, prompt: Prompt, terms: VersionTerms, demand: Demand) -> PendingStreamRequest:
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

    # ---- what becomes of runs (`StreamCallsOwner`) ------------------------------------------

    def links_changed(self) -> None:
        self._list(tuple([self._as_listed(uid, self._groups[uid]) for uid in self.calls.reached]))

    def _as_listed(self, replica_id: str, group: str) -> Replica:
        shape = self._shapes[group]
        most = self._engines.most_leases(shape.max_sequences)
        return Replica(replica_id, float(shape.cache_tokens), ReplicaKind.STREAM, most, group)

    def replica_lost(self, replica_id: str, runs: Sequence[StreamRun]) -> None:
        """Before what ran there runs again elsewhere."""
        now, there = clock(), {}
        for run in runs:
            pending = run.pending
            key, tenant = pending.prompt.fingerprint, pending.request.tenant
            lost = self.crashes.note(key, tenant, replica_id, now)
            there[key] = PromptSuspect(key, tenant, lost, not pending.tokens.output)
        for suspect in there.values():
            if self._is_convicted(suspect, list(there.values()), now):
                self.crashes.convict(suspect.key, suspect.tenant, now)
        self.end_convicted({key for key in there if self.crashes.is_convicted(key)})

    def _is_convicted(
        self, suspect: PromptSuspect, there: Sequence[PromptSuspect], now: float
    ) -> bool:
        """By this loss."""
        elsewhere = self.crashes.elsewhere
        if self.crashes.is_convicted(suspect.key):
            return False
        if not convicts(suspect, there, sole=elsewhere.others == 0):
            return False
        return len(suspect.lost) >= ANYWAY or not elsewhere.was_there(
            suspect.key, suspect.lost, OTHERS_MISSED, now
        )

    def end_convicted(self, keys: Set[bytes]) -> None:
        """Ends all that wait or run with a convicted prompt, here or at another gateway."""
        for pending in [p for p in self._pending.values() if p.prompt.fingerprint in keys]:
            self._finish(pending, self.crashes.conviction())

    def failed(self, run: StreamRun) -> None:
        if self._is_live(run):
            self._finish(run.pending, errors.RowFailed(INTERNAL_ERROR))

    def call_of(self, run: StreamRun, waiting: tuple[FlowWork, ...] | None) -> GenerateCall:
        pending, lease, now = run.pending, run.lease, clock()
        left_s = max(pending.request.expires - now, 0.0) + _LATER_S
        prompt, priority = pending.prompt, pending.request.priority
        input_s, output_s = self._prices.at(self._settings.generation, self.snapshot, now)
        return GenerateCall(
            prompt.endpoint, prompt.body, left_s, priority, prompt.salt, lease.rank, lease.charges,
            waiting, input_s, output_s,
        )  # fmt: skip

    def peers_served(self, replica_id: str, report: Report) -> None:
        self._step(PeersServed(replica_id, report), clock())

    def opened(self, run: StreamRun) -> None:
        self._step(Opened(run.lease.lease_id), clock())

    def progressed(self, run: StreamRun, piece: Piece) -> None:
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
        how = piece.end or StreamEnd.DONE
        end, pending = _END[how], run.pending
        failed: tuple[int, ...] = ()
        if self.crashes and how is StreamEnd.DONE:
            self.crashes.acquit(pending.prompt.fingerprint)
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
        f"the client left more than {MOST_UNREAD_BYTES} bytes of the answer unread"
    )
