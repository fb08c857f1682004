"""Which request that generates gets a speculative copy, on which replica, and which lease wins?

`stream_hedging` decides when a copy is due and which replica may take it; this module carries that
out. Two leases of a request race until the first token. The first lease that shows anything keeps
the request. The other is aborted, so that its prompt is not read on and the caller gets nothing
twice.
- The retry budget for copies of batches pays for the tokens computed twice; no flow is charged.
- A replica whose lease is raced gets no further lease until it shows a token. If the raced lease is
  aborted without one, the replica gets no lease for as long again as that lease had waited.
- A probe is a copy by which an ejected replica is judged. It never takes over the request while the
  other lease is open, and ends with its first token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from routers.api.actions import Action, Dispatch
from routers.api.requests import LeaseEnd, Tokens
from routers.policies.stream_hedging import MAX_READ, CopyOffer, FirstTokenWait, may_take, race_at
from routers.shared.copy_schedule import CopySchedule
from routers.shared.hedger import Hedger, copiable, row_ids
from routers.shared.prompt_reading import began, engine_of
from routers.shared.replica_watch import SilenceWatch
from routers.shared.requests import RequestTable
from routers.state.leases import CopyTerms, abort, end_copy, set_race_cost, start_first
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import SUSPECT_S
from routers.state.rows import Row

_MIN_S = 0.001  # from one check of a lease to the next


@dataclass(slots=True)
class StreamHedger:
    """Copies of streams. `copies` also holds the replicas, leases, budget, utilisation and
    counters."""

    requests: RequestTable
    copies: Hedger
    silence: SilenceWatch
    schedule: CopySchedule = field(default_factory=CopySchedule)

    # -- when

    def watch(self, lease: Lease) -> None:
        """Plan the check of a lease that waits for its first token. To be called again when its
        replica has started on it."""
        if self._may_race(lease) and not lease.hedge_due:
            self.schedule.check_at(lease, self._race_at(lease))

    def again(self, lease: Lease) -> None:
        """The copy of this lease never started: the lease may be copied once more."""
        if lease.hedge_due and not lease.begun:
            self.schedule.add(lease)

    def _race_at(self, lease: Lease) -> float:
        running, hedging = lease.running, self.copies.hedging
        if running is None:
            return inf
        ratios = engine_of(lease).first_tokens.ratios(lease.batch.edge)
        wait = FirstTokenWait(lease.starts_at, running.first_s, ratios, running.is_long)
        return race_at(wait, hedging.settings, hedging.policy)

    def _may_race(self, lease: Lease) -> bool:
        if lease.begun or lease.recalled or lease.aborted or lease.running is None:
            return False
        request = lease.batch.rows[0].tracked.request
        return bool(copiable(lease)) and not request.suspect

    # -- where

    def hedge(self, now: float, actions: list[Action]) -> None:
        """Check all leases that are due, then send copies of the oldest candidates, as far as
        replicas and budget allow."""
        self._check_due_leases(now)
        copies, schedule = self.copies, self.schedule
        if not schedule.candidates or copies.is_too_busy:
            return
        for lease in schedule.first():
            row = lease.batch.rows[0]
            if not self._may_race(lease) or row.tracked.request.deadline <= now:
                schedule.remove(lease)
            elif self._send_copy(lease, row, now, actions) is not None:
                schedule.remove(lease)
                copies.counts.hedges += 1
                lease.call_overdue()
                copies.replicas.refresh(lease.replica, now)

    def probe(self, lease: Lease, now: float, actions: list[Action]) -> None:
        """Copy a lease that was just opened to an ejected replica of its group, if one is due for a
        probe and has room."""
        ejection, row = self.copies.ejection, lease.batch.rows[0]
        replica = ejection.to_probe(lease.replica.group, now)
        if replica is None or replica is lease.replica or not self._may_race(lease):
            return
        offer = self._offer(replica, row, now)
        if offer.has_room:
            ejection.probed(replica)
            self.copies.counts.probes += 1
            self._copy(lease, replica, CopyTerms(offer.cost_s, probe=True), now, actions)

    def _check_due_leases(self, now: float) -> None:
        """Make a candidate of each due lease that may be raced, unless its replica serves others
        meanwhile; then check it again later."""
        schedule = self.schedule
        while (lease := schedule.due(now)) is not None:
            at = self._race_at(lease)
            if at > now:
                schedule.check_at(lease, at)
            elif _serves_others(lease, at - lease.starts_at, now):
                again_s = max(at - lease.starts_at, _MIN_S)
                schedule.check_at(lease, now + again_s)
            elif self._may_race(lease):
                lease.mark_hedge_due()
                schedule.add(lease)

    def _send_copy(self, lease: Lease, row: Row, now: float, actions: list[Action]) -> Lease | None:
        deadline, budget_s = row.tracked.request.deadline, self.copies.budget.level_s

        def accept(replica: ReplicaState) -> Lease | None:
            if replica is lease.replica or not replica.streams:
                return None
            if row.edge > replica.group.longest:
                return None
            offer = self._offer(replica, row, now)
            if not may_take(offer, deadline, budget_s, now):
                return None
            return self._copy(lease, replica, CopyTerms(offer.cost_s, hedge=True), now, actions)

        return self.copies.replicas.ready.first(accept, now)

    def _offer(self, replica: ReplicaState, row: Row, now: float) -> CopyOffer:
        plan, generations = row.tracked.plan, self.requests.generations
        engine = replica.group.engine
        assert plan is not None
        assert generations is not None
        assert engine is not None
        settings = generations.settings
        capacity = self.copies.replicas.capacity_of(replica, now, trusted=True)
        known = generations.known(plan, replica.spec.replica_id, session=False)
        first_s = engine.first_token_s(replica.reading + plan.prompt - known)
        name, request_s = replica.spec.replica_id, engine.alone_s * plan.output
        load_s = generations.adapters.price_s(name, plan.adapter, request_s)
        cost_s = generations.weighted(Tokens(plan.prompt, known, 1)) * generations.token_s()
        reads = capacity.reads(row, settings.long_tokens, settings.max_long_tokens)
        reads = reads and plan.prompt - known <= MAX_READ
        return CopyOffer(capacity.has_room(row), reads, first_s + load_s, cost_s + load_s)

    def _copy(
        self,
        lease: Lease,
        replica: ReplicaState,
        terms: CopyTerms,
        now: float,
        actions: list[Action],
    ) -> Lease:
        copies, batch, generations = self.copies, lease.batch, self.requests.generations
        assert generations is not None
        copy = copies.leases.sign_copy(lease, replica, batch, terms, now)
        began(generations, copy)
        copies.budget.pay(terms.paid_s)
        self.silence.watch(replica, now)
        copies.replicas.refresh(replica, now)
        actions.append(
            Dispatch(
                copy.lease_id, copy.replica_id, row_ids(batch.rows), batch.edge, copy.predicted_s,
                batch.rank, copy_of=lease.lease_id,
            )
        )  # fmt: skip
        return copy

    # -- which lease wins

    def begun(self, lease: Lease, actions: list[Action]) -> None:
        """Something of the lease's answer has come: its first sign decides the race. The caller
        gets it where the lease has the request; of an aborted lease nobody gets anything."""
        if not lease.show():
            return
        self.schedule.forget(lease)
        if lease.aborted:
            return
        self.decide(lease, actions)
        for row in lease.members():
            row.show()

    def decide(self, lease: Lease, actions: list[Action]) -> None:
        """The lease is the first of two to show anything: it keeps the request. A probe leaves the
        request to the other lease, and ends."""
        other = lease.copy or lease.copy_of
        if not lease.probe:
            self.wins(lease, actions)
        elif other is not None and lease.live:
            end_copy(lease, actions)
            abort(lease, actions)
        elif not lease.live:
            abort(lease, actions)  # the probe ran on only until its first token

    def wins(self, lease: Lease, actions: list[Action]) -> None:
        """The lease keeps the request alone, unless nobody waits for the request any more."""
        other = lease.copy or lease.copy_of
        if other is not None and lease.live:
            set_race_cost(lease, None, 0.0)  # only the loser's tokens were computed twice
            self.schedule.forget(other)
            start_first(lease, actions)

    def other_lease_lost(self, lease: Lease, now: float) -> None:
        """The other lease of the race was lost. If this one is a probe, the caller now waits for
        it, so it stops being a probe."""
        if lease.probe and lease.live:
            lease.stop_probing()
            self.copies.ejection.failed(lease.replica, now)

    def closed(self, lease: Lease, end: LeaseEnd, now: float) -> None:
        """The lease has closed and given back its share. Corrects what the budget paid for a race
        that this lease lost, by the tokens that it was given. Blocks a replica whose raced lease
        was aborted without a token, for as long again as the lease waited, `SUSPECT_S` at most."""
        generations, running, replica = self.requests.generations, lease.running, lease.replica
        if generations is None or running is None:
            return
        if lease.probe:
            self.copies.ejection.failed(replica, now)
        gave_up = end is LeaseEnd.ABORTED and not (lease.begun or lease.live)
        if gave_up and lease.hedge_due and not lease.repeats:
            waited_s = now - lease.starts_at
            engine_of(lease).waited(lease.batch.edge, waited_s, running.first_s)
            if lease.overdue:  # no other lease there has shown a token since
                self.copies.replicas.block(replica, now + min(SUSPECT_S, waited_s))
                self.copies.replicas.refresh(replica, now)
        tokens = running.tokens
        if lease.paid_s > 0.0 and (tokens.input or tokens.output):
            other = lease.copy or lease.copy_of
            self.copies.budget.pay(generations.weighted(tokens) * running.token_s - lease.paid_s)
            set_race_cost(lease, other, 0.0)


def _serves_others(lease: Lease, within_s: float, now: float) -> bool:
    """Whether the replica has shown a token of another lease within the last `within_s` seconds,
    since this lease started. Then the replica does not stall: the lease waits for its turn, and a
    copy would take a turn from others elsewhere."""
    since = max(lease.starts_at, now - within_s)
    others = [other.running for other in lease.replica.leases.values() if other.begun]
    return any(each is not None and each.at > since for each in others)
