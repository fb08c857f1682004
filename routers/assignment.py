"""Which replica is sent what, now that something has changed?

While rows wait and a replica is ready, the one that will finish first is offered to the batcher; a
session's own replica is taken instead where that costs next to nothing. What was staged behind a
running batch may be tied to a copy, what is sent while an ejected replica is due is copied there.
Rows that wait always come before copies of those that have been sent. Whose turn it is among rows
is `batcher`'s question, who is ready `replicas`', who is raced `racing`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from routers.batcher import form_batch
from routers.lanes import Row
from routers.leases import abort, stream_share
from routers.placement.choice import Affinity, finish_in_s
from routers.placement.speculative_copies import SpeculativeCopies, row_ids
from routers.preemption import spare_lease
from routers.replica_state import FormedBatch, Lease, ReplicaState
from routers.request_table import RequestTable
from routers.streams.choice import preferred as preferred_stream
from routers.streams.leases import began
from routers.types import Action, Dispatch

_MOST_URGENT = (0, 0, inf)


@dataclass(slots=True)
class Assignment:
    """`racing` brings replicas, leases, budget and settings along."""

    requests: RequestTable
    racing: SpeculativeCopies
    affinity: Affinity

    def fill(self, now: float, actions: list[Action]) -> None:
        """Send what waits to whoever is ready, then tie what had to be staged."""
        waiting, replicas = self.requests.waiting, self.racing.replicas
        staged: list[tuple[int, Lease]] = []
        while waiting.rows and replicas.has_ready:
            lease = replicas.ready.first(
                lambda holder: self._send(holder, now, actions),
                now,
                replicas.batch_s,
                spare=not replicas.healthy,
            )
            if lease is None:
                break
            if lease.staged:
                staged.append((len(actions) - 1, lease))
            self._probe(lease, now, actions)
        if staged and self.racing.settings.hedge.mode == "tied":
            self._tie(staged, now, actions)
        if waiting.rows:
            self._push(now, actions)

    def _push(self, now: float, actions: list[Action]) -> None:
        """Take places from less urgent work that has been sent."""
        requests, racing = self.requests, self.racing
        ageing_s = requests.settings.ageing_s
        while (urgent := requests.most_urgent()) is not None:
            holder = racing.replicas.yielding.to(urgent)
            if holder is None or requests.waiting.passed_over(ageing_s, now) is not None:
                break
            if not self._send_instead(holder, now, actions):
                break
        if urgent is not None and racing.settings.preempt_streams:
            lease = racing.leases.streams.to_stop(urgent)
            if lease is not None:
                lease.wanted_back = True
                racing.tally.preempted += 1
                abort(lease, actions)

    def _send_instead(self, holder: ReplicaState, now: float, actions: list[Action]) -> bool:
        """One lease more than the replica holds, which therefore gives its least urgent back."""
        given_up = spare_lease(holder)
        assert given_up is not None
        offer = self.racing.replicas.offer(holder, now, trusted=holder.answers > 0)
        starts_in_s = max(0.0, given_up.starts_at - now)
        offer = replace(offer, room=1.0, starts_in_s=starts_in_s)
        goods = form_batch(self.requests, offer, now, actions)
        if goods is None:
            return False
        holder.finish_at = given_up.starts_at
        lease = self._sign(holder, goods, now, actions)
        comes_back = given_up if goods.rank < given_up.goods.rank else lease
        comes_back.wanted_back = True
        self.racing.tally.pushed_out += 1
        return True

    def _send(self, holder: ReplicaState, now: float, actions: list[Action]) -> Lease | None:
        """A lease of what the batcher gives this replica, if anything."""
        racing = self.racing
        trusted = bool(racing.settings.profile)
        offer = racing.replicas.offer(holder, now, trusted=trusted)
        goods = form_batch(self.requests, offer, now, actions)
        if self.requests.wants_room is not None:
            self._save_room(holder, self.requests.wants_room)
        if goods is None:
            return None
        return self._sign(self._preferred(holder, goods, now), goods, now, actions)

    def _save_room(self, holder: ReplicaState, row: Row) -> None:
        """At the replica that was asked first, and at no other meanwhile."""
        plan = row.ticket.plan
        saves = None if plan is None else self.racing.replicas.holders.get(plan.waits_at)
        if plan is not None and (saves is None or saves.saves_for is not row):
            holder.save(row)
            plan.waits_at = holder.replica.replica_id

    def _sign(
        self, holder: ReplicaState, goods: FormedBatch, now: float, actions: list[Action]
    ) -> Lease:
        """The lease, sent, paid and watched."""
        racing = self.racing
        replica_id = holder.replica.replica_id
        lease = racing.leases.sign(holder, goods, goods.predicted_s, now)
        racing.replicas.took(goods.predicted_s)
        generations = self.requests.generations
        if generations is not None and goods.rows[0].ticket.plan is not None:
            began(generations, lease)
        self._pay(lease)
        urgent = self.requests.most_urgent() if goods.rank > _MOST_URGENT else None
        lease.firm = urgent is not None and goods.rank[:2] > (0, urgent)
        if racing.replicas.running > 1:
            racing.hedging.watch(lease)
        racing.replicas.refresh(holder, now)
        sessions = [name for row in goods.rows if (name := row.ticket.request.session)]
        if sessions:
            self.affinity.served(sessions, replica_id)
        actions.append(
            Dispatch(
                lease.lease_id, replica_id, row_ids(goods.rows), goods.edge, goods.predicted_s,
                goods.rank, goods.charges, self.requests.waiting_work(),
            )
        )  # fmt: skip
        return lease

    def _pay(self, lease: Lease) -> None:
        budget = self.racing.budget
        if lease.goods.rows[0].retried:
            budget.pay(lease.predicted_s)
            self.racing.tally.retries += 1
        else:
            budget.earn(lease.predicted_s)

    def _preferred(self, best: ReplicaState, goods: FormedBatch, now: float) -> ReplicaState:
        """The replica that served the leading row's session last, or else the best."""
        row = goods.rows[0]
        preferred = self.affinity.preferred(row.ticket.request.session)
        generations = self.requests.generations
        if generations is not None and best.streams and row.ticket.plan is not None:
            replicas = self.racing.replicas
            return preferred_stream(replicas, generations, row, best, preferred, now)
        if preferred is None or row.retried:
            return best
        replicas = self.racing.replicas
        holder = replicas.holders.get(preferred)
        if holder is None or holder.sick or holder not in replicas.ready:
            return best
        if holder.streams != best.streams or not _fits(holder, goods):
            return best
        seconds = self.racing.cost.predict(len(goods.rows), goods.width)
        later_s = finish_in_s(holder, now, seconds) - finish_in_s(best, now, seconds)
        yields = self.affinity.yields(later_s, seconds, streams=best.streams)
        return best if yields else holder

    def _probe(self, lease: Lease, now: float, actions: list[Action]) -> None:
        if self.racing.outliers.ejected:
            probe = self.racing.probe(lease, now)
            if probe is not None:
                actions.append(probe)

    def _tie(self, staged: list[tuple[int, Lease]], now: float, actions: list[Action]) -> None:
        for index, lease in staged:
            copy = self.racing.tie(lease, now)
            if copy is not None:
                sent = actions[index]
                assert isinstance(sent, Dispatch)
                actions[index] = replace(sent, tied=True)
                actions.append(copy)


def _fits(holder: ReplicaState, goods: FormedBatch) -> bool:
    if not holder.streams:
        return holder.answers > 0 or len(goods.rows) == 1
    room = holder.replica.capacity - holder.held
    return not holder.leases or stream_share(goods.rows[0]) <= room
