"""Which request gets a second lease because its first token is late, where, and which lease wins?

A copy is due after the delay that a policy (`HedgeDelay`, chosen by name) derives from the
prediction for this request and from what first tokens of its bucket take. It goes where there is
room for all of it, where its prompt need not wait behind long prompts, and where its first token
could still be in time. Not copied are long prompts, prompts that may have ended a replica, and
requests whose first token has come. The first lease that shows anything keeps the request; the
other is aborted. The retry budget pays for the tokens computed twice. A replica whose lease is
raced gets no further lease until it shows a token. A probe never takes over the request while the
other lease is open. Source: Dean & Barroso, The Tail at Scale (CACM'13).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from routers.api.actions import Action, Dispatch
from routers.api.requests import ABORTED, LeaseEnd, Tokens
from routers.api.settings import DispatcherSettings, HedgeParameters
from routers.estimates.ratio_histogram import RatioHistogram
from routers.policies.hedging import HedgeDelay
from routers.policies.registry import HEDGINGS
from routers.shared.health import FACTOR, UNKNOWN_RATIO, Ejection, Silence, SilenceWatch
from routers.shared.races import Races
from routers.state.flows import Charge
from routers.state.leases import (
    LeaseTable,
    abort,
    copiable,
    end_copy,
    row_ids,
    set_race_cost,
    start_first,
)
from routers.state.replica_state import OVERDUE, AnyLease, Origin
from routers.state.replicas import SUSPECT_S
from routers.state.rows import Row
from routers.stream.lease import (
    BegunByPriority,
    StreamLease,
    StreamReplica,
    StreamReplicas,
    plan_of,
    running_of,
)
from routers.stream.requests import StreamRequests

MAX_READ: Final = 512
"""Tokens of a prompt that a copy may have to read. With prompts of 1,100 tokens, copies made the
p99 of first tokens 119 ms instead of 81, since all others wait while prompts are read again."""
_MIN_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class FirstTokenWait:
    """How long one lease waits for its first token."""

    since: float  # when its replica began with it
    predicted_s: float  # from there to its first token
    ratios: RatioHistogram | None  # measured over predicted seconds of its bucket; None: unmeasured
    is_long: bool = False  # its prompt takes long to read, on any replica


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """A replica that could take the copy."""

    has_room: bool  # for all of it
    reads: bool  # its prompt may be read beside the long prompts there
    first_s: float  # predicted seconds to its first token there
    cost_s: float  # predicted seconds of what would be done twice


def race_at(wait: FirstTokenWait, settings: HedgeParameters, policy: HedgeDelay) -> float:
    """When to send a copy; inf: never, as far as is known now."""
    if settings.mode == "off" or wait.is_long:
        return inf
    delay_s = policy.delay_s(wait.predicted_s, wait.ratios)
    return inf if delay_s is None else wait.since + max(_MIN_S, delay_s)


def may_take(offer: CopyOffer, deadline: float, budget_s: float, now: float) -> bool:
    """Whether the copy may be sent there. `deadline`: of its first token; `budget_s`: what copies
    may cost at the moment."""
    if not (offer.has_room and offer.reads):
        return False
    return offer.cost_s <= budget_s and now + offer.first_s < deadline


class StreamSilence(Silence[StreamReplica]):
    """Of a stream replica: it owes first tokens, and is given the time of the longest."""

    def is_worth_a_look(self, replica: StreamReplica) -> bool:
        return True

    def owed(self, replica: StreamReplica) -> tuple[float, float, float] | None:
        unread = [lease for lease in replica.leases.values() if not lease.begun]
        if not unread:
            return None
        to_read = [lease.running.ahead + lease.running.reads for lease in unread]
        first_s = max([replica.engine.first_token_s(tokens) for tokens in to_read])
        return unread[0].sent_at, first_s, UNKNOWN_RATIO / FACTOR


class FirstTokens:
    """Watches leases until their first tokens, and races those that are late."""

    def __init__(
        self,
        settings: DispatcherSettings,
        requests: StreamRequests,
        replicas: StreamReplicas,
        leases: LeaseTable[StreamLease],
        races: Races[StreamLease],
        health: tuple[Ejection[StreamReplica], SilenceWatch[StreamReplica]],
    ) -> None:
        self._generations = requests.generations
        self._replicas, self._leases, self._races = replicas, leases, races
        self._schedule = races.schedule
        self._ejection, self._silence = health
        self.policy = HEDGINGS[settings.policies.hedging](settings.hedge)
        self.begun = BegunByPriority()  # open leases, copies included

    def adopt(self, settings: DispatcherSettings) -> None:
        """Adopt new settings; what was learnt is kept."""
        self.policy = HEDGINGS[settings.policies.hedging](settings.hedge)

    # -- when

    def watch(self, lease: StreamLease) -> None:
        """Plan the check of a lease that waits for its first token. To be called again when its
        replica has started on it."""
        if self._may_race(lease) and not lease.hedge_due:
            self._schedule.check_at(lease, self._race_at(lease))

    def again(self, lease: StreamLease) -> None:
        """The copy of this lease never started: the lease may be copied once more."""
        if lease.hedge_due and not lease.begun:
            self._schedule.add(lease)

    def look(self, now: float) -> None:
        """Make a candidate of each lease whose check is due and that may be raced, unless its
        replica serves others meanwhile; then check it again later."""
        schedule = self._schedule
        while (lease := schedule.due(now)) is not None:
            at = self._race_at(lease)
            if at > now:
                schedule.check_at(lease, at)
            elif _serves_others(lease, at - lease.starts_at, now):
                again_s = max(at - lease.starts_at, _MIN_S)
                schedule.check_at(lease, now + again_s)
            elif self._may_race(lease):
                lease.hedge_due = True
                schedule.add(lease)

    def _race_at(self, lease: StreamLease) -> float:
        running, engine = lease.running, lease.replica.engine
        ratios = engine.first_tokens.ratios(lease.edge)
        wait = FirstTokenWait(lease.starts_at, running.first_s, ratios, running.is_long)
        return race_at(wait, self._races.hedge, self.policy)

    def _may_race(self, lease: StreamLease) -> bool:
        if lease.begun or lease.recalled or lease.aborted:
            return False
        return bool(copiable(lease)) and not lease.row.tracked.request.suspect

    # -- where

    def hedge(self, now: float, actions: list[Action]) -> None:
        """Send copies of the oldest candidates, as far as replicas and budget allow."""
        races, schedule = self._races, self._schedule
        if not schedule.candidates or races.is_too_busy:
            return
        for lease in schedule.first():
            if not self._may_race(lease) or lease.row.tracked.request.deadline <= now:
                schedule.remove(lease)
            elif self._send_copy(lease, now, actions) is not None:
                schedule.remove(lease)
                races.counts.hedges += 1
                lease.call_overdue()
                self._replicas.refresh(lease.replica, now)

    def probe(self, lease: StreamLease, now: float, actions: list[Action]) -> None:
        """Copy a lease that was just opened to an ejected replica of its group, if one is due for a
        probe and has room."""
        replica = self._ejection.to_probe(lease.replica.group, now)
        if replica is None or replica is lease.replica or not self._may_race(lease):
            return
        offer = self._offer(replica, lease.row)
        if offer.has_room:
            self._ejection.probed(replica)
            self._races.counts.probes += 1
            self._copy(lease, replica, Origin.PROBE, offer.cost_s, now, actions)

    def _send_copy(
        self, lease: StreamLease, now: float, actions: list[Action]
    ) -> StreamLease | None:
        row, budget_s = lease.row, self._races.budget.level_s

        def accept(replica: StreamReplica) -> StreamLease | None:
            if replica is lease.replica or row.edge > replica.group.longest:
                return None
            offer = self._offer(replica, row)
            if not may_take(offer, row.tracked.request.deadline, budget_s, now):
                return None
            return self._copy(lease, replica, Origin.HEDGE, offer.cost_s, now, actions)

        return self._replicas.ready.first(accept, now)

    def _offer(self, replica: StreamReplica, row: Row) -> CopyOffer:
        plan, generations, engine = plan_of(row), self._generations, replica.engine
        settings, name = generations.settings, replica.spec.replica_id
        room = self._replicas.room_of(replica)
        known = generations.known(plan, name, session=False)
        first_s = engine.first_token_s(replica.reading + plan.prompt - known)
        load_s = generations.adapters.price_s(name, plan.adapter, engine.alone_s * plan.output)
        cost_s = generations.weighted(Tokens(plan.prompt, known, 1)) * generations.token_s()
        reads = room.reads(row, settings.long_tokens, settings.max_long_tokens)
        reads = reads and plan.prompt - known <= MAX_READ
        return CopyOffer(room.has_room(row), reads, first_s + load_s, cost_s + load_s)

    def _copy(
        self,
        lease: StreamLease,
        replica: StreamReplica,
        origin: Origin,
        paid_s: float,
        now: float,
        actions: list[Action],
    ) -> StreamLease:
        row, charge = lease.row, Charge(lease.rank, lease.predicted_s)
        running = running_of(self._generations, replica, row, now)
        copy = StreamLease(self._leases.next_id(), replica, row, charge, running)
        copy.edge = lease.edge
        replica.took(copy)
        self._leases.sign_copy(copy, lease, origin, paid_s, tied=False)
        self.begun.began(copy)
        self._races.budget.pay(paid_s)
        self._silence.watch(replica, now)
        self._replicas.refresh(replica, now)
        dispatch = Dispatch(
            copy.lease_id, copy.replica_id, row_ids(copy.rows), copy.edge, copy.predicted_s,
            copy.rank,
        )  # fmt: skip
        dispatch.copy_of = lease.lease_id
        actions.append(dispatch)
        return copy

    # -- which lease wins

    def shows(self, lease: StreamLease, actions: list[Action]) -> None:
        """Something of the lease's answer has come: its first sign decides the race. The caller
        gets it where the lease has the request; of an aborted lease nobody gets anything."""
        replica = lease.replica
        is_first, lease.begun = not lease.begun, True
        if replica.reasons & OVERDUE:
            # A stream of it goes on, so the replica works: none of its leases is overdue.
            replica.set_reason(OVERDUE, False)
            for each in replica.leases.values():
                each.overdue = False
        if not is_first:
            return
        self._schedule.forget(lease)
        if lease.aborted:
            return
        self._decide(lease, actions)
        for row in lease.members():
            row.shown = row.tracked.request.streams  # a caller that streams gets it at once

    def _decide(self, lease: StreamLease, actions: list[Action]) -> None:
        """The lease is the first of two to show anything: it keeps the request. A probe leaves the
        request to the other lease, and ends."""
        if not lease.is_probe:
            self.wins(lease, actions)
        elif lease.other is not None and lease.live:
            end_copy(lease, actions)
            abort(lease, actions)
        elif not lease.live:
            abort(lease, actions)  # the probe ran on only until its first token

    def wins(self, lease: StreamLease, actions: list[Action]) -> None:
        """The lease keeps the request alone, unless nobody waits for the request any more."""
        other = lease.other
        if other is not None and lease.live:
            set_race_cost(lease, None, 0.0)  # only the loser's tokens were computed twice
            self._schedule.forget(other)
            start_first(lease, actions)

    def other_lease_lost(self, lease: AnyLease, now: float) -> None:
        """The other lease of the race was lost. If this one is a probe, the caller now waits for
        it, so it stops being a probe."""
        if lease.is_probe and lease.live:
            lease.origin = Origin.ADOPTED
            self._ejection.failed(lease.replica, now)

    def closed(self, lease: StreamLease, end: LeaseEnd, now: float) -> None:
        """The lease has closed and given back its share. Corrects what the budget paid for a race
        that this lease lost, by the tokens that it was given. Blocks a replica whose raced lease
        was aborted without a token, for as long again as the lease waited, `SUSPECT_S` at most."""
        running, replica = lease.running, lease.replica
        if lease.is_probe:
            self._ejection.failed(replica, now)
        gave_up = end is ABORTED and not (lease.begun or lease.live)
        if gave_up and lease.hedge_due and not lease.is_copy:
            waited_s = now - lease.starts_at
            replica.engine.waited(lease.edge, waited_s, running.first_s)
            if lease.overdue:  # no other lease there has shown a token since
                self._replicas.block(replica, now + min(SUSPECT_S, waited_s))
                self._replicas.refresh(replica, now)
        tokens = running.tokens
        if lease.paid_s > 0.0 and (tokens.input or tokens.output):
            taken_s = self._generations.weighted(tokens) * running.token_s
            self._races.budget.pay(taken_s - lease.paid_s)
            set_race_cost(lease, lease.other, 0.0)


def _serves_others(lease: StreamLease, within_s: float, now: float) -> bool:
    """Whether the replica has shown a token of another lease within the last `within_s` seconds,
    since this lease started. Then the replica does not stall: the lease waits for its turn, and a
    copy would take a turn from others elsewhere."""
    since = max(lease.starts_at, now - within_s)
    return any(other.begun and other.running.at > since for other in lease.replica.leases.values())
