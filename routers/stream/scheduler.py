"""Which rows are sent to which replica, and when, where engines batch by themselves?

`StreamScheduler` owns one model's queue and leases at one gateway and is their only writer. Each
time that something has changed it goes through `_decide` from top to bottom: what time alone has
changed, rows that wait for replicas that are ready, preemption for those that still wait, copies of
leases whose first token is late, and when to be called again. Rows that wait always come before
copies of rows that were sent. No request is dispatched at or past its expiry.
"""

from __future__ import annotations

from routers.api.actions import Action, Dispatch, IsolatedDispatch
from routers.api.errors import BadSettings
from routers.api.events import AdaptersHeld, BlocksHeld, Note, Progress
from routers.api.policies import SHARES
from routers.api.settings import DispatcherSettings
from routers.estimates.groups import ReplicaGroups
from routers.policies.registry import PLACEMENTS
from routers.shared.races import Races
from routers.shared.scheduler import Scheduler, checked
from routers.state.flows import Charge
from routers.state.lanes import Lane
from routers.state.leases import abort, row_ids
from routers.state.replica_state import SILENT
from routers.state.rows import Row
from routers.stream.first_tokens import FirstTokens, StreamSilence
from routers.stream.lease import StreamLease, StreamReplica, StreamReplicas, plan_of, running_of
from routers.stream.progress import StreamEndings
from routers.stream.requests import StreamRequests
from routers.stream.turns import Turns, preferred


class StreamScheduler(Scheduler[StreamRequests, StreamReplicas, StreamLease]):
    """Schedules the requests of one model that generates. Raises `BadSettings` and
    `BadRequestEvent`, nothing else."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._check_kind(checked(settings))
        groups = ReplicaGroups(settings)
        replicas = StreamReplicas(groups, PLACEMENTS[settings.policies.placement]())
        requests = StreamRequests(settings, replicas)
        races: Races[StreamLease] = Races(settings)
        super().__init__(
            settings, requests, replicas, races, StreamSilence(settings.silence, replicas)
        )
        self._turns = Turns(requests)
        self._preempts = settings.preempt_streams
        self._first_tokens = FirstTokens(
            settings, requests, replicas, self._leases, races, (self._ejection, self._silence)
        )
        self._endings = self._streams = StreamEndings(
            requests, replicas, self._leases, self._first_tokens, races, self._suspension
        )

    def _check_kind(self, settings: DispatcherSettings) -> None:
        if settings.generation is None:
            raise BadSettings("generation must be set for a model whose replicas stream")

    def _adopt(self, settings: DispatcherSettings) -> None:
        self._preempts = settings.preempt_streams
        self._requests.adopt(settings)
        self._first_tokens.adopt(settings)

    # -- events

    def _note(self, event: Note, now: float) -> None:
        generations, by_id = self._requests.generations, self._replicas.by_id
        if isinstance(event, AdaptersHeld):
            if event.replica_id in by_id:
                generations.adapters.told(
                    event.replica_id, event.adapters, event.load_s, event.failing
                )
        elif isinstance(event, BlocksHeld):
            if event.replica_id in by_id:
                generations.tree.told(event)
        else:
            super()._note(event, now)

    def _watch(self, lease: StreamLease) -> None:
        self._first_tokens.watch(lease)

    def _opened(self, lease: StreamLease, now: float) -> None:
        self._first_tokens.watch(lease)

    def _progressed(self, event: Progress, now: float, actions: list[Action]) -> bool:
        lease = self._leases.open.get(event.lease_id)
        if lease is None:
            return True
        replica = lease.replica
        was_silent = replica.reasons & SILENT > 0
        self._suspension.heard(replica, now)
        self._first_tokens.shows(lease, actions)
        has_changed = self._streams.moved(lease, event, now)
        self._replicas.refresh(replica, now)
        return has_changed or was_silent

    # -- what follows from them

    def _decide(self, now: float, actions: list[Action]) -> None:
        requests, replicas, races = self._requests, self._replicas, self._races
        first_tokens, silence = self._first_tokens, self._silence
        # What time alone has changed: requests that are late or refused, replicas that are silent
        # or blocked no longer.
        requests.run_timers(now, actions)
        while (silent := silence.silent(now)) is not None:
            self._suspend(silent, now, actions)
        replicas.promote(now)

        self._fill(now, actions)
        healthy = replicas.healthy
        first_tokens.look(now)
        first_tokens.hedge(now, actions)
        if replicas.healthy < healthy and len(replicas.groups.by_name) > 1:
            # Rows may have been left to the group of a replica that has just become unhealthy.
            self._fill(now, actions)

        # When to be called again, and until when an arrival changes nothing but the queue.
        check_at = min(silence.next_at(), races.schedule.next_check_at())
        check_at = min(requests.timers.next_at(), check_at)
        candidates = bool(races.schedule.candidates)
        quiet = not (replicas.has_ready or candidates or self._preempts)
        self._wakeups.plan(requests.most_urgent(), check_at, replicas.next_at(), quiet=quiet)
        self._wakeups.ask(requests.waiting.rows > 0 or candidates, actions)

    def _suspend(self, replica: StreamReplica, now: float, actions: list[Action]) -> None:
        """Give the silent replica no new lease, and move its rows, as long as nothing of their
        answers has come."""
        self._begin_silence(replica)
        for lease in list(replica.leases.values()):
            self._suspension.move(lease, now, actions, ran=False)
        self._replicas.refresh(replica, now)

    def _fill(self, now: float, actions: list[Action]) -> None:
        """Send rows to every replica that is ready, and stop a less urgent stream for rows that
        still wait."""
        requests, replicas = self._requests, self._replicas
        while requests.waiting.rows and replicas.has_ready:
            if len(replicas.groups.by_name) > 1:
                self._look_ahead(now)
            lease = replicas.ready.first(
                lambda replica: self._take_and_send(replica, now, actions),
                now,
                spare=replicas.spares_above is not None,
            )
            if lease is None:
                break
            if replicas.ejected:
                self._first_tokens.probe(lease, now, actions)
        urgent = requests.most_urgent() if self._preempts else None
        if urgent is not None:
            begun = self._first_tokens.begun
            priority = self._preemption.stops(begun, urgent)
            stopped = None if priority is None else begun.last_begun(priority)
            if stopped is not None:
                stopped.recalled = True
                self._races.counts.preempted += 1
                abort(stopped, actions)

    def _take_and_send(
        self, replica: StreamReplica, now: float, actions: list[Action]
    ) -> StreamLease | None:
        """A lease of the row that this replica takes; None: it takes none."""
        turns, replicas = self._turns, self._replicas
        found = turns.next_row(replicas.room_of(replica), now, actions)
        charge = None if found is None else self._take(found[0], found[1], now)
        if turns.row_without_room is not None:
            self._save_room(replica, turns.row_without_room)
        if found is None or charge is None:
            return None
        row, generations = found[0], self._requests.generations
        session = self._affinity.preferred(row.tracked.request.session)
        chosen = preferred(replicas, generations, row, replica, session)
        return self._send(chosen, row, charge, now, actions)

    def _take(self, row: Row, lane: Lane, now: float) -> Charge:
        """Take the row, whose turn came in this lane, out of the queue, and charge its flow what it
        is predicted to take."""
        requests, flow, cost_s = self._requests, row.tracked.flow, row.cost_s
        flows, order = requests.flows, requests.flows.order
        competing_weight = flows.weights[lane.priority]
        price = cost_s if order.settles else order.price(row.length, cost_s)
        account = order.charged((flow.start, flow.credit_s), flow.weight, price)
        requests.take_out(row, now)
        tag = flows.tag(flow)
        charges = ((flow.priority, flow.tenant, cost_s),)
        paid = charges if order.settles else ((flow.priority, flow.tenant, price),)
        is_told = order.ranking is SHARES
        rank = int(lane.late), lane.priority, tag if is_told else 0.0
        flows.set_account(flow, account)
        flows.leads(flow, tag, cost_s, competing_weight)
        return Charge(rank, cost_s, charges, paid, flows.epoch)

    def _save_room(self, replica: StreamReplica, row: Row) -> None:
        """Keep room for the row at this replica, unless another replica keeps room for it."""
        plan = plan_of(row)
        saves = self._replicas.by_id.get(plan.waits_at)
        if saves is None or saves.saves_for is not row:
            replica.save(row)
            plan.waits_at = replica.spec.replica_id

    def _send(
        self, replica: StreamReplica, row: Row, charge: Charge, now: float, actions: list[Action]
    ) -> StreamLease:
        """Open the lease, append its `Dispatch`, pay for it and watch it."""
        requests, replicas = self._requests, self._replicas
        running = running_of(requests.generations, replica, row, now)
        lease = StreamLease(self._leases.next_id(), replica, row, charge, running)
        lease.unsettled_charge = charge
        lease.non_preemptible = self._passed_over(charge.rank, replica)
        replica.took(lease)
        self._leases.sign(lease)
        self._first_tokens.begun.began(lease)
        self._sent(lease, row.edge, charge.predicted_s)
        if replicas.running > 1:
            self._silence.watch(replica, now)
            self._first_tokens.watch(lease)
        replicas.refresh(replica, now)
        self._remember_sessions(lease.rows, replica)
        make = IsolatedDispatch if row.isolated else Dispatch
        dispatch = make(
            lease.lease_id, replica.spec.replica_id, row_ids(lease.rows), row.edge,
            charge.predicted_s, charge.rank,
        )  # fmt: skip
        dispatch.charges, dispatch.waiting = charge.charges, requests.waiting.work()
        actions.append(dispatch)
        return lease
