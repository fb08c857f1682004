"""The replicas that run, and when each may take its next lease.

A replica is *ready* when it has room and its next lease is due. A replica that runs nothing, or
that streams, is due at once. One that runs a batch is due at its predicted finish less the measured
transport (*just in time*), so that the staged batch binds its rows as late as it can without
leaving the device idle; while no transport has been measured there, it is due at once. Behind a
lease that is far overdue nothing is staged while a healthy replica runs: a batch staged there would
wait for the straggler.

Which of the ready replicas is used is the placement's question (`ready_replicas.Placement`). Times
are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf

from routers.api.requests import Replica
from routers.estimates.groups import ANY_LENGTH, LengthRange, ReplicaGroups
from routers.state.formed_batch import ReplicaCapacity
from routers.state.preemptible import PreemptibleReplicas
from routers.state.ready_replicas import Placement, ReadyReplicas, load_of
from routers.state.replica_state import ReplicaState

MIN_BLOCK_S = 0.001  # a busy answer that names no time must not cause a busy loop
SUSPECT_S = 1.0  # after a loss, unless the replica answers or is listed as running again
_SLACK = 32  # stale timers allowed before the heap is compacted


class ReplicaSet:
    """All replicas that run, or drain with leases open."""

    def __init__(self, groups: ReplicaGroups, placement: Placement) -> None:
        self.groups = groups
        self.by_id: dict[str, ReplicaState] = {}
        self.ready = ReadyReplicas(placement)
        self.preemptible = PreemptibleReplicas()
        self.running = 0  # not draining
        self.healthy = 0  # running and not unhealthy
        self.ejected = 0  # draining or not
        self.busy = 0.0  # sum of the running ones' loads
        self.largest = 0.0  # capacity of the largest that runs
        self._gateway, self._gateways = 0, 1  # place among the gateways that live, and their number
        self.timers: list[tuple[float, int, ReplicaState]] = []  # heap, by `wake_at`
        self._pushed = 0

    def update(self, replicas: Iterable[Replica], now: float) -> list[ReplicaState]:
        """Take over the whole running set. Returns the replicas that have gone for good."""
        listed = {spec.replica_id: spec for spec in replicas}
        for replica_id, spec in listed.items():
            replica = self.by_id.get(replica_id)
            if replica is None:
                replica = self.by_id[replica_id] = ReplicaState(spec, self.groups.of(spec.group))
            if replica.draining:
                replica.suspended = False  # it was heard on a new connection
            replica.list_as(spec)
            if replica.suspect:
                self._unblock(replica)
        for replica_id, replica in self.by_id.items():
            replica.draining = replica_id not in listed
        gone = [replica for replica in self.by_id.values() if self._is_over(replica)]
        for replica in gone:
            self._drop(self.by_id.pop(replica.spec.replica_id))
        for length in (0, *self.groups.bounds):  # by who can take longer rows
            able = [each for each in self.by_id.values() if each.group.longest > length]
            if all(each.suspended for each in able if not each.draining):
                for replica in able:
                    replica.suspended = False  # no other replica is left to do its work
        for replica in self.by_id.values():
            replica.unhealthy = replica.is_unwell
        self.running = len(listed)
        self.largest = max([spec.capacity for spec in listed.values()], default=0.0)
        self.healthy = sum(not (each.draining or each.unhealthy) for each in self.by_id.values())
        self.busy = 0.0
        self._count_groups()
        self._order()
        for replica in self.by_id.values():
            replica.load = replica.busy_until = 0.0
        for replica in self.by_id.values():
            self.refresh(replica, now)
        return gone

    def adopt(self, placement: Placement, now: float) -> None:
        """Go on under another placement: each replica finds its place anew."""
        self.ready.placement = placement
        for replica in self.by_id.values():
            self.ready.drop(replica)
            self.refresh(replica, now)

    def share(self, gateway: int, gateways: int, now: float) -> None:
        """This gateway is number `gateway`, from 0, of so many that use the replicas."""
        if (gateway, gateways) != (self._gateway, self._gateways):
            self._gateway, self._gateways = gateway, gateways
            self._order()
            for replica in self.by_id.values():
                self.refresh(replica, now)

    def _order(self) -> None:
        """Give each replica its place among the idle ones of its group: an order that differs from
        those of the other gateways as much as can be, so that gateways seldom meet at a replica
        while another one is idle."""
        members: dict[str, list[ReplicaState]] = {}
        for replica_id in sorted(self.by_id):
            replica = self.by_id[replica_id]
            members.setdefault(replica.group.name, []).append(replica)
        for group in members.values():
            for place, replica in enumerate(group):
                replica.preference = _preference(place, len(group), self._gateway, self._gateways)
        self.ready.in_turn = list(self.by_id.values()) if self._gateways > 1 else []

    def _count_groups(self) -> None:
        for group in self.groups.all():
            group.begin_count()
        for replica in self.by_id.values():
            replica.group.running += not replica.draining
            replica.group.healthy += not (replica.draining or replica.unhealthy)
        self.groups.count()

    def refresh(self, replica: ReplicaState, now: float) -> None:
        """Find the replica's place again. To be called after anything about it has changed."""
        unhealthy = replica.is_unwell
        if unhealthy != replica.unhealthy:
            replica.unhealthy = unhealthy
            if not replica.draining:
                self.healthy += -1 if unhealthy else 1
                replica.group.healthy += -1 if unhealthy else 1
        load = 0.0 if replica.draining else load_of(replica)
        if load != replica.load:
            self.busy += load - replica.load
            replica.load = load
        if len(self.groups.by_name) > 1:
            until = 0.0 if unhealthy or replica.draining else replica.finish_at
            replica.group.busy_until(replica.busy_until, until)
            replica.busy_until = until
        self.preemptible.place(replica)
        due_at = self._due_at(replica)
        if due_at is None or due_at > now:
            self.ready.drop(replica)
        else:
            self.ready.place(replica, now)
            due_at = None
        if due_at is not None and due_at != replica.wake_at:
            self._pushed += 1
            heappush(self.timers, (due_at, self._pushed, replica))
        replica.wake_at = due_at

    def promote(self, now: float) -> None:
        """Move the replicas whose time has come to the ready ones."""
        timers = self.timers
        while timers and timers[0][0] <= now:
            at, _, replica = heappop(timers)
            if replica.wake_at == at:
                self.refresh(replica, now)
        if len(timers) > 2 * len(self.by_id) + _SLACK:
            timers[:] = [entry for entry in timers if entry[2].wake_at == entry[0]]
            heapify(timers)

    def next_at(self) -> float:
        """When the next replica that is not ready may take a lease; inf where that is no matter of
        time."""
        timers = self.timers
        while timers:
            at, _, replica = timers[0]
            if replica.wake_at == at:
                return at
            heappop(timers)
        return inf

    @property
    def busy_share(self) -> float:
        """The share of the replicas in use that holds work, 0..1; ejected ones are not in use."""
        return min(1.0, self.busy / max(1, self.running - self.ejected))

    @property
    def spares_above(self) -> int | None:
        """The length above which rows may go to unhealthy replicas, because no healthy one runs
        that takes them; None: no rows may."""
        if not self.healthy:
            return 0
        return self.groups.left_to_unhealthy() if self.groups.bounds else None

    @property
    def has_ready(self) -> bool:
        """Whether a replica may take a lease now; unhealthy ones count only where no healthy one
        runs in their place."""
        return self.ready.count(spare=self.spares_above is not None) > 0

    def block(self, replica: ReplicaState, until: float, *, suspect: bool = False) -> None:
        """Give it no lease before `until`."""
        replica.blocked_until = max(replica.blocked_until, until)
        replica.suspect = replica.suspect or suspect

    def eject(self, replica: ReplicaState) -> None:
        """Give it probes only. To be followed by `refresh`."""
        replica.ejected = True
        self.ejected += 1

    def readmit(self, replica: ReplicaState) -> None:
        """Use it like the others again. To be followed by `refresh`."""
        replica.ejected = False
        self.ejected -= 1

    def closed(self, replica: ReplicaState, now: float, *, alive: bool) -> bool:
        """A lease of the replica has closed. `alive`: it closed by an answer, so whatever blocked
        the replica is over. Returns True when the replica was draining and this was its last lease:
        it has gone."""
        if alive:
            self._unblock(replica)
            self.ready.placement.answered(replica, now)
        if replica.overdue:
            replica.overdue = any(lease.overdue for lease in replica.leases.values())
        replica.predict_finish(now)
        if self._is_over(replica):
            del self.by_id[replica.spec.replica_id]
            self._drop(replica)
            return True
        self.refresh(replica, now)
        return False

    def capacity_of(self, replica: ReplicaState, now: float, *, trusted: bool) -> ReplicaCapacity:
        """What the replica can take now, as batching policies are told it. `trusted`: costs are
        known even for replicas that have not answered yet."""
        spec, saves_for = replica.spec, replica.saves_for
        saves_for = replica.saving() if saves_for is not None else None
        return ReplicaCapacity(
            spec.replica_id,
            replica.group,
            streams=replica.streams,
            room=spec.capacity - replica.held - replica.saved,
            idle=not replica.leases,
            trusted=trusted or replica.answers > 0,
            last_edge=replica.last_edge,
            lengths=self._lengths_of(replica),
            longest_beside=self._longest_beside(replica) if self.running > 1 else 0,
            starts_in_s=max(0.0, replica.finish_at - now),
            others_idle=self.ready.others_idle(replica),
            groups=self.groups if len(self.groups.by_name) > 1 else None,
            whole=spec.capacity,
            saved=replica.saved,
            saves_for=saves_for,
            reading_long=replica.reading_long,
        )

    def _lengths_of(self, replica: ReplicaState) -> LengthRange | None:
        """Of an unhealthy one those that no healthy one takes."""
        lengths = replica.group.lengths
        above = self.spares_above if replica.unhealthy and self.groups.bounds else None
        if above is None:
            return lengths
        lengths = lengths or LengthRange()
        return replace(lengths, above=max(above, lengths.above))

    def _longest_beside(self, replica: ReplicaState) -> int:
        if not self.groups.bounds:
            return ANY_LENGTH
        return self.groups.longest_beside(replica.group, well=not replica.unhealthy)

    def _due_at(self, replica: ReplicaState) -> float | None:
        """When its next lease is due; None while that is no matter of time."""
        if replica.draining or replica.suspended or not replica.has_room():
            return None
        if (
            replica.streams
            and replica.leases
            and len(replica.leases) + 1 > replica.group.max_streams
        ):
            return None
        if replica.streams or replica.transport_s is None:
            return replica.blocked_until
        head = replica.head()
        running_s = head.predicted_s if head is not None else replica.group.batch_s
        return max(replica.finish_at - replica.lead_s(running_s), replica.blocked_until)

    def _drop(self, replica: ReplicaState) -> None:
        replica.wake_at = None
        self.ejected -= replica.ejected
        self.preemptible.place(replica)
        self.ready.drop(replica)

    @staticmethod
    def _is_over(replica: ReplicaState) -> bool:
        """Whether it is drained."""
        return replica.draining and not replica.leases

    @staticmethod
    def _unblock(replica: ReplicaState) -> None:
        replica.blocked_until, replica.suspect = 0.0, False


def _preference(place: int, replicas: int, gateway: int, gateways: int) -> int | None:
    """When gateway `gateway` of `gateways` asks the replica at this place of so many: gateways come
    in pairs, each pair has its part of the replicas, and the two begin at its two ends. One gateway
    alone has no order."""
    if gateways < 2:
        return None
    if gateway % 2 == 0:
        return (place - gateway * replicas // gateways) % replicas
    return ((gateway + 1) * replicas // gateways - 1 - place) % replicas
