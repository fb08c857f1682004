"""How far has a stream got, what does its flow owe for it, and what follows when its lease ends?

- A flow pays a lease's predicted cost when the lease is sent, and more as soon as more has been
  served. When the lease ends the flow gets back what was not served; everything, if nothing was, or
  if its replica was lost before the caller was shown anything.
- A lease occupies the tokens that its replica reports, and the room kept for output still to come.
- The request is answered, stays in the other lease of a race, or goes back to the queue.
Reports also teach the engine's speed, its pace and the share of prompts that is cached.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from routers.api.actions import Action
from routers.api.events import Closed, Progress
from routers.api.requests import ABORTED, BUSY, DONE, LOST, LeaseEnd, Tokens
from routers.shared.endings import Endings, believable
from routers.shared.health import Suspension
from routers.shared.races import Races
from routers.state.leases import LeaseTable, fail, win
from routers.state.replica_state import EJECTED, HEDGE, AnyReplica
from routers.stream.first_tokens import FirstTokens
from routers.stream.lease import StreamLease, StreamReplica, StreamReplicas
from routers.stream.requests import StreamRequests

_FULL: Final = 0.8  # share of a replica's room above which it counts as full
_MAX_TOKENS: Final = 1_000_000_000  # a greater count in a report is not believed


class StreamEndings(Endings[StreamLease]):
    """Follows streams from report to report, and ends their leases."""

    def __init__(
        self,
        requests: StreamRequests,
        replicas: StreamReplicas,
        leases: LeaseTable[StreamLease],
        first_tokens: FirstTokens,
        races: Races[StreamLease],
        suspension: Suspension,
    ) -> None:
        super().__init__(requests, replicas, leases, races, suspension)
        self._first_tokens, self._prompts = first_tokens, requests.prompts
        self._generations = requests.generations

    # -- a report

    def moved(self, lease: StreamLease, event: Progress, now: float) -> bool:
        """Take in how far a lease has got; whether its replica may now take more than before."""
        running, generations, replica = lease.running, self._generations, lease.replica
        before, was_ejected = running.tokens, replica.reasons & EJECTED
        tokens = _believable(event.tokens, before)
        is_first = tokens.output > 0 and running.first_at is None
        if is_first:
            self._first_token(lease, tokens, now)
        elif tokens.output > before.output and running.first_at is not None:
            self._further_tokens(lease, tokens, now)
        running.tokens = tokens
        self._charge_served(lease, tokens, now)
        served = generations.weighted(tokens) - generations.weighted(before)
        given = max(0.0, generations.weighted(event.given))
        full = self._is_full(replica, counts_all=given > 0.0)
        replica.engine.worked(lease.replica_id, served, now, full=full, given=given)
        held, share, plan = event.held, lease.share, running.plan
        if not 0.0 <= held <= _MAX_TOKENS:  # a NaN included
            held = float(plan.prompt + tokens.output)
        if not tokens.output and held < plan.prompt:
            held = float(plan.prompt)  # the rest of the prompt has yet to be read
        replica.resize(lease, held + generations.left(plan, tokens.output))
        return is_first or lease.share < share or was_ejected != replica.reasons & EJECTED

    def _first_token(self, lease: StreamLease, tokens: Tokens, now: float) -> None:
        """The lease's first token has come: judge its replica's pace, and learn first-token
        times."""
        running, replica, engine = lease.running, lease.replica, lease.replica.engine
        running.first_at = running.at = now
        read = max(0, tokens.input - tokens.cached)
        others = replica.reading > running.reads or replica.read_at > lease.starts_at
        others = others or running.loads
        if engine.knows_first_tokens and not (running.ahead or running.is_long or others):
            predicted_s = engine.first_token_s(running.ahead + read)
            self._judge_pace(lease, lease.starts_at, predicted_s, now)
        if lease.live:  # else another replica was quicker, and this time is no sample
            seconds = now - lease.sent_at
            engine.waited(lease.edge, now - lease.starts_at, running.first_s)
            if not running.loads:  # else it also waited for its adapter
                engine.began(running.ahead + read, seconds)
            self._generations.found(running, tokens.cached, lease.replica_id)
            self._prompts.first_token(replica.group, read, seconds)
        if running.reads:
            replica.has_read(running, now)
        if running.plan.blocks:
            running.cached = tokens.cached

    def _further_tokens(self, lease: StreamLease, tokens: Tokens, now: float) -> None:
        """Further tokens have come: judge the replica's pace, and learn its time a step."""
        running, replica, engine = lease.running, lease.replica, lease.replica.engine
        more = (tokens.output - running.tokens.output) / running.plan.sequences
        if more > 0.0 and running.tokens.output:
            sequences = float(len(replica.leases))
            step_s = engine.step_s(sequences)
            reads = replica.reading > 0.0 or replica.read_at > running.at
            if step_s is not None and not reads:  # while it reads prompts a step takes longer
                self._judge_pace(lease, running.at, more * step_s, now)
            engine.stepped(sequences, (now - running.at) / more)
        running.at = now

    def _judge_pace(
        self, lease: StreamLease, began_at: float, predicted_s: float, now: float
    ) -> None:
        """Judge the replica's pace by a wait of this lease, from `began_at` to now, against its
        prediction. An ejected replica is judged by its probes only. None is ejected while the
        replicas are too busy for copies: pace says little where prompts of all sizes wait for each
        other, and the other replicas could not take over the work."""
        replica, engine = lease.replica, lease.replica.engine
        if engine.frozen or (replica.reasons & EJECTED and not lease.is_probe):
            return
        name = lease.replica_id
        ratio = engine.pace.took(name, began_at, now, predicted_s, alone=lease.is_probe)
        if ratio is not None:
            replica.slowdown = engine.pace.slowdown(name)
            if self._races.is_too_busy and not lease.is_probe:
                return
            self._ejection.judge(replica, ratio, now)

    def _charge_served(self, lease: StreamLease, tokens: Tokens, now: float) -> None:
        """Charge the flow for what the lease was served beyond what was paid, and tell the
        controllers of everything served since they were told last."""
        charge, running, served = lease.unsettled_charge, lease.running, self._requests.served
        if charge is None:
            return  # a copy that has not won: no flow pays for it
        served_s = self._generations.weighted(tokens) * running.token_s
        priority, tenant, paid_s = charge.charges[0]
        if served_s > charge.predicted_s:
            served.charge(priority, tenant, served_s - paid_s)
            charge.predicted_s = served_s
            charge.charges = charge.paid = ((priority, tenant, served_s),)
        if served_s > running.told_s:
            served.report((priority, tenant, served_s - running.told_s), lease.rank, now)
            running.told_s = served_s

    def _is_full(self, replica: StreamReplica, *, counts_all: bool) -> bool:
        """Whether the replica is full while rows wait, so that the rate it shows is its fastest. If
        it also serves other gateways, only where `counts_all`: the rate counts their tokens too."""
        if replica.foreign.shared and not counts_all:
            return False
        return self._requests.waiting.rows > 0 and replica.busy_share() > _FULL

    # -- the end

    def race_again(self, lease: StreamLease) -> None:
        self._first_tokens.again(lease)

    def forget(self, replica: AnyReplica) -> None:
        super().forget(replica)
        assert isinstance(replica, StreamReplica)
        replica.engine.forget(replica.spec.replica_id)
        self._generations.forget(replica.spec.replica_id)

    def close(self, event: Closed, now: float, actions: list[Action]) -> None:
        lease = self._leases.close(event.lease_id, now)
        if lease is None:
            return
        self._first_tokens.begun.ended(lease)
        self._races.schedule.forget(lease)
        report = believable(event.report, lease.predicted_s)
        if report is not event.report:
            event = replace(event, report=report)
        replica, end = lease.replica, event.end
        self.learn_of_peers(replica, report, now)
        # It has one row: if that failed, there is no answer.
        answered = end is DONE and not event.failed
        if answered:
            self._first_tokens.wins(lease, actions)
        self._settle_up(lease, ABORTED if event.failed else end, report.tokens, now)
        replica.group.max_streams = replica.engine.max_leases
        other = lease.other
        if answered:
            self._answered(lease, event, now, actions)
        else:
            self._failed(lease, event, now, actions)
        if other is not None and other.is_suspended:
            self._suspension.move(other, now, actions, ran=False)
        replica.learn(report, now, answered=answered)
        head = replica.head()
        if head is not None and not head.opened:
            head.overdue = False  # it waited for the lease before it
        if self._replicas.closed(replica, now, alive=end in (DONE, ABORTED)):
            self.forget(replica)
        else:
            self._first_tokens.closed(lease, end, now)

    def _answered(
        self, lease: StreamLease, event: Closed, now: float, actions: list[Action]
    ) -> None:
        requests = self._requests
        has_lost = lease.unsettled_charge is None and lease.copy_of is None
        self._races.counts.hedges_won += lease.origin is HEDGE and lease.live > 0
        members, _ = win(lease, (), actions)
        if lease.unsettled_charge is not None:
            requests.served.settle(lease.unsettled_charge, event.report.service_s, now)
        if not has_lost:
            lease.replica.group.turnaround.observe(lease.edge, now - lease.first_sent_at)
        requests.answered(members)
        self._suspension.take_late_answer(lease, (), actions)

    def _failed(self, lease: StreamLease, event: Closed, now: float, actions: list[Action]) -> None:
        if lease.is_probe:
            self._ejection.failed(lease.replica, now)
        other = lease.other
        stranded = fail(lease)
        if other is not None:
            self._first_tokens.other_lease_lost(other, now)
        has_run = lease.opened or event.report.service_s > 0.0 or event.failed
        if event.end is not LOST and not has_run:
            self.undo_race(lease, other)
        self.settle(lease, event, now)
        self.send_back(stranded, lease, event, now, actions)

    def _settle_up(self, lease: StreamLease, end: LeaseEnd, tokens: Tokens, now: float) -> None:
        """The lease has closed: learn from its last report, and settle what its flow owes."""
        running, generations, replica = lease.running, self._generations, lease.replica
        generations.ended(running.plan, lease.replica_id)
        before = running.tokens
        has_said = tokens.input > 0 or tokens.output > 0
        tokens = _believable(tokens, before) if has_said else before
        if running.first_at is None and end is DONE:
            # No `Progress` told of the first token, so what was cached is learnt only now.
            generations.found(running, tokens.cached, lease.replica_id)
        if running.reads:
            replica.has_read(running, now)
        served = generations.weighted(tokens) - generations.weighted(before)
        full = self._is_full(replica, counts_all=False)
        replica.engine.worked(lease.replica_id, served, now, full=full)
        if not replica.leases:
            replica.engine.idle(lease.replica_id)
        if end is DONE and tokens.output:
            generations.answered(running.plan, tokens)
        running.tokens = tokens
        self._settle_account(lease, end, now)

    def _settle_account(self, lease: StreamLease, end: LeaseEnd, now: float) -> None:
        """Settle the account of the lease's flow, or refund it where nothing was served."""
        other = lease.other
        if other is not None and other.live > 0:
            return  # the other lease goes on with the request, and settles when it ends
        charge, running, served = lease.take_unsettled(), lease.running, self._requests.served
        if charge is None:
            return
        tokens = running.tokens
        nothing = not (tokens.input or tokens.output)
        shown = lease.row.shown and not nothing
        refunded = end is BUSY or (end is LOST and not shown)
        if refunded or (nothing and end is ABORTED):
            served.settle(charge, None, now)
            return
        if nothing:  # a replica that reports no counts: the prediction stands
            served_s = charge.predicted_s
        else:
            served_s = self._generations.weighted(tokens) * running.token_s
        served.settle_told(charge, served_s, served_s - running.told_s, now)
        running.told_s = served_s


def _believable(tokens: Tokens, before: Tokens) -> Tokens:
    """The reported counts, with any that is impossible or less than before replaced."""
    read = _count(tokens.input, before.input)
    cached = min(_count(tokens.cached, 0), read)
    return Tokens(read, cached, _count(tokens.output, before.output))


def _count(value: int, least: int) -> int:
    return value if least <= value <= _MAX_TOKENS else least
