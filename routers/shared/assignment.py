"""Which replica is sent which batch, now that something has changed?

While rows wait and a replica is ready, the placement policy's first choice is offered to `batcher`,
which forms a batch for it. The batch goes to the replica that served its leading row's session last
instead, where that costs next to nothing. A batch staged behind a running one may get a tied copy.
A lease sent while an ejected replica is due for a probe is copied to that replica. Rows that wait
always come before copies of rows that were sent. Where rows wait and no replica is ready, less
urgent work that was sent is preempted. `batcher` decides which rows are next, `replicas` which
replicas are ready, `hedger` and `stream_hedger` which leases are copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from routers.api.actions import Action, Dispatch, IsolatedDispatch
from routers.policies.preemption.types import Preemption, PreemptionView
from routers.policies.stream_choice import preferred as preferred_stream
from routers.shared.batcher import form_batch
from routers.shared.hedger import Hedger, row_ids
from routers.shared.prompt_reading import began
from routers.shared.replica_watch import SilenceWatch
from routers.shared.requests import RequestTable
from routers.shared.stream_hedger import StreamHedger
from routers.state.affinity import Affinity
from routers.state.formed_batch import FormedBatch
from routers.state.leases import abort, stream_share
from routers.state.preemptible import preemptible_lease
from routers.state.ready_replicas import finish_in_s
from routers.state.replica_state import Lease, ReplicaState
from routers.state.rows import Row

_MAX_URGENT = (0, 0, inf)  # a greater rank is late, or of a less urgent priority than 0


@dataclass(slots=True)
class Assignment:
    """Sends waiting rows to replicas that are ready."""

    requests: RequestTable
    copies: Hedger  # also holds the replicas, the leases, the budget and the settings
    stream_hedger: StreamHedger
    affinity: Affinity
    silence: SilenceWatch
    preemption: Preemption
    sent: PreemptionView  # what may be taken back, for `preemption` to look at

    def fill(self, now: float, actions: list[Action]) -> None:
        """Send rows to every replica that is ready, then tie staged batches to copies, and preempt
        less urgent work for rows that still wait."""
        waiting, replicas = self.requests.waiting, self.copies.replicas
        staged: list[tuple[int, Lease]] = []
        while waiting.rows and replicas.has_ready:
            if len(replicas.groups.by_name) > 1:
                self._prepare_groups(now)
            lease = replicas.ready.first(
                lambda replica: self._send_to(replica, now, actions),
                now,
                spare=replicas.spares_above is not None,
            )
            if lease is None:
                break
            if lease.staged:
                staged.append((len(actions) - 1, lease))
            self._probe(lease, now, actions)
        if staged and self.copies.settings.hedge.mode == "tied":
            self._tie(staged, now, actions)
        if waiting.rows:
            self._preempt_all(now, actions)

    def _prepare_groups(self, now: float) -> None:
        """With several groups of replicas: compute which of them may take the next batch."""
        requests, groups = self.requests, self.copies.replicas.groups
        lanes = [each for each in requests.waiting.lanes() if each.rows > each.isolated.rows]
        queue = lanes[0].order.first() if lanes else None
        edge = requests.waiting.edges[0] if queue is None else queue.in_turn().edge
        rows = 1 if queue is None else lanes[0].length_classes[edge].rows
        groups.look_ahead(rows, edge, requests.waiting.seconds_above, now)

    def may_preempt(self, now: float) -> bool:
        """Whether a place at a batch replica might be taken for what waits."""
        return self._gives_back(now) is not None

    def _gives_back(self, now: float) -> ReplicaState | None:
        """The replica that is preempted for the most urgent rows, or for less urgent ones where no
        replica that takes the most urgent is preempted; None: none is."""
        for lane in self.requests.waiting.on_time:
            if lane.rows:
                replica = self.preemption.gives_back(self.sent, lane.priority, now)
                if replica is not None or not self.requests.groups.bounds:
                    return replica
        return None

    def _preempt_all(self, now: float, actions: list[Action]) -> None:
        """For the most urgent rows that wait, take places from less urgent work that was sent: not
        while a batch is due that leads because its priority had been passed over too long."""
        requests, copies = self.requests, self.copies
        ageing_s = requests.settings.ageing_s
        while (replica := self._gives_back(now)) is not None:
            if requests.waiting.passed_over(ageing_s, now) is not None:
                break
            if not self._preempt(replica, now, actions):
                break
        urgent = requests.most_urgent() if copies.settings.preempt_streams else None
        if urgent is not None:
            lease = self.preemption.stops(self.sent, urgent, now)
            if lease is not None:
                lease.recall()
                copies.counts.preempted += 1
                abort(lease, actions)

    def _preempt(self, replica: ReplicaState, now: float, actions: list[Action]) -> bool:
        """Send the replica one batch more than it has slots for: it returns its least urgent staged
        batch. Whether a batch could be formed."""
        victim = preemptible_lease(replica)
        assert victim is not None
        capacity = self.copies.replicas.capacity_of(replica, now, trusted=replica.answers > 0)
        starts_in_s = max(0.0, victim.starts_at - now)
        capacity = replace(capacity, room=1.0, starts_in_s=starts_in_s)
        batch = form_batch(self.requests, capacity, now, actions)
        if batch is None:
            return False
        replica.give_up(victim)
        lease = self._dispatch(replica, batch, now, actions)
        comes_back = victim if batch.rank < victim.batch.rank else lease
        comes_back.recall()
        self.copies.counts.evictions += 1
        return True

    def _send_to(self, replica: ReplicaState, now: float, actions: list[Action]) -> Lease | None:
        """A lease of the batch that is formed for this replica; None: there is none."""
        copies = self.copies
        trusted = bool(replica.group.settings.profile)
        capacity = copies.replicas.capacity_of(replica, now, trusted=trusted)
        batch = form_batch(self.requests, capacity, now, actions)
        if self.requests.row_without_room is not None:
            self._save_room(replica, self.requests.row_without_room)
        if batch is None:
            return None
        return self._dispatch(self._preferred(replica, batch, now), batch, now, actions)

    def _save_room(self, replica: ReplicaState, row: Row) -> None:
        """Keep room for the row at this replica, unless another replica keeps room for it."""
        plan = row.tracked.plan
        saves = None if plan is None else self.copies.replicas.by_id.get(plan.waits_at)
        if plan is not None and (saves is None or saves.saves_for is not row):
            replica.save(row)
            plan.waits_at = replica.spec.replica_id

    def _dispatch(
        self, replica: ReplicaState, batch: FormedBatch, now: float, actions: list[Action]
    ) -> Lease:
        """Open the lease, append its `Dispatch`, pay for it and watch it."""
        copies = self.copies
        replica_id = replica.spec.replica_id
        lengths = replica.group.lengths
        urgent = self.requests.most_urgent(lengths) if batch.rank > _MAX_URGENT else None
        preemptible = urgent is None or batch.rank[:2] <= (0, urgent)
        lease = copies.leases.sign(replica, batch, now, preemptible=preemptible)
        replica.group.took(batch.predicted_s, batch.edge)
        if len(copies.replicas.groups.by_name) > 1:
            copies.replicas.groups.weigh(batch.edge)
        generations = self.requests.generations
        if generations is not None and batch.rows[0].tracked.plan is not None:
            began(generations, lease)
        self._pay_budget(lease)
        if copies.replicas.running > 1:
            copies.watch(lease)
            if replica.streams:
                self.silence.watch(replica, now)
                self.stream_hedger.watch(lease)
        copies.replicas.refresh(replica, now)
        sessions = [name for row in batch.rows if (name := row.tracked.request.session)]
        if sessions:
            self.affinity.served(sessions, replica_id)
        dispatch = IsolatedDispatch if lease.isolated else Dispatch
        actions.append(
            dispatch(
                lease.lease_id, replica_id, row_ids(batch.rows), batch.edge, batch.predicted_s,
                batch.rank, batch.charges, self.requests.waiting.work(),
            )
        )  # fmt: skip
        return lease

    def _pay_budget(self, lease: Lease) -> None:
        """A retry is paid from the retry budget; any other lease adds its share to that budget."""
        budget = self.copies.budget
        if lease.batch.rows[0].isolated:
            budget.pay(lease.predicted_s)
            self.copies.counts.retries += 1
        else:
            budget.earn(lease.predicted_s)

    def _preferred(self, best: ReplicaState, batch: FormedBatch, now: float) -> ReplicaState:
        """The replica for the batch: the one that served its leading row's session last, if it may
        take the batch and finishes little later than `best`, else `best`. Streams: see
        `stream_choice`."""
        row = batch.rows[0]
        preferred = self.affinity.preferred(row.tracked.request.session)
        generations = self.requests.generations
        if generations is not None and best.streams and row.tracked.plan is not None:
            replicas = self.copies.replicas
            return preferred_stream(replicas, generations, row, best, preferred, now)
        if preferred is None or row.isolated:
            return best
        replicas = self.copies.replicas
        replica = replicas.by_id.get(preferred)
        if replica is None or replica.unhealthy or replica not in replicas.ready:
            return best
        if replica.group is not best.group or not _fits(replica, batch):
            return best
        seconds = best.group.cost.predict(len(batch.rows), batch.width)
        later_s = finish_in_s(replica, now, seconds) - finish_in_s(best, now, seconds)
        gives_way = self.affinity.gives_way(later_s, seconds, streams=best.streams)
        return best if gives_way else replica

    def _probe(self, lease: Lease, now: float, actions: list[Action]) -> None:
        """Copy the lease to an ejected replica of its group that is due for a probe."""
        if not self.copies.replicas.ejected:
            return
        if lease.running is not None:
            self.stream_hedger.probe(lease, now, actions)
        elif (probe := self.copies.probe(lease, now)) is not None:
            actions.append(probe)

    def _tie(self, staged: list[tuple[int, Lease]], now: float, actions: list[Action]) -> None:
        """Tie each staged lease to a copy where a slot is free. `staged`: leases with the index of
        their `Dispatch` in `actions`, which is marked as tied."""
        for index, lease in staged:
            copy = self.copies.tie(lease, now)
            if copy is not None:
                sent = actions[index]
                assert isinstance(sent, Dispatch)
                actions[index] = replace(sent, tied=True)
                actions.append(copy)


def _fits(replica: ReplicaState, batch: FormedBatch) -> bool:
    if not replica.streams:
        return replica.answers > 0 or len(batch.rows) == 1
    room = replica.spec.capacity - replica.held
    return not replica.leases or stream_share(batch.rows[0]) <= room
