"""Which replicas run, and when may each take its next lease?

A replica is *ready* when it has room and its next lease is due: at once when it runs nothing (or
streams), just in time when it runs a batch, so that the staged batch binds its rows as late as it
can without the device waiting: at the predicted finish less the measured transport. While nothing
has been measured there, at once. Behind a lease that is far overdue nothing is staged while another
replica runs that is not sick: what is bound there waits for the straggler. Which of the ready ones
is used is `choice`'s question.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf

from routers.placement.choice import Ready, load_of
from routers.preemption import Yielding
from routers.replica_state import ReplicaCapacity, ReplicaState
from routers.types import Replica

MIN_BLOCK_S = 0.001  # a busy answer that names no time may not become a busy loop
SUSPECT_S = 1.0  # after a loss, unless the replica answers or is listed as running again
_BATCH_GAIN = 0.05
_SLACK = 32


class ReplicaSet:
    """`batch_s`: predicted seconds of a typical batch (EWMA). `healthy`: running and not sick.
    `largest`: capacity of the largest that run. `most_streams`: leases that a stream replica may
    hold for the promised time a token."""

    def __init__(self) -> None:
        self.holders: dict[str, ReplicaState] = {}
        self.ready = Ready()
        self.yielding = Yielding()
        self.running = 0  # not draining
        self.healthy = 0
        self.busy = 0.0  # sum of the running ones' loads
        self.batch_s = 0.0
        self.largest = 0.0
        self.most_streams = inf
        self.timers: list[tuple[float, int, ReplicaState]] = []
        self._pushed = 0

    def update(self, replicas: Iterable[Replica], now: float) -> list[ReplicaState]:
        """Take over the whole running set; returns those that are gone for good."""
        listed = {replica.replica_id: replica for replica in replicas}
        for replica_id, replica in listed.items():
            holder = self.holders.get(replica_id)
            if holder is None:
                holder = self.holders[replica_id] = ReplicaState(replica)
            holder.list_as(replica)
            if holder.suspect:
                self._unblock(holder)
        for replica_id, holder in self.holders.items():
            holder.draining = replica_id not in listed
        gone = [holder for holder in self.holders.values() if self._is_over(holder)]
        for holder in gone:
            self._drop(self.holders.pop(holder.replica.replica_id))
        for holder in self.holders.values():
            holder.sick = holder.suspect or holder.overdue or holder.ejected
        self.running = len(listed)
        self.largest = max([replica.capacity for replica in listed.values()], default=0.0)
        self.healthy = sum(not (h.draining or h.sick) for h in self.holders.values())
        self.busy = 0.0
        for holder in self.holders.values():
            holder.load = 0.0
        for holder in self.holders.values():
            self.refresh(holder, now)
        return gone

    def refresh(self, holder: ReplicaState, now: float) -> None:
        """Find the holder's place again after anything about it has changed."""
        sick = holder.suspect or holder.overdue or holder.ejected
        if sick != holder.sick:
            holder.sick = sick
            if not holder.draining:
                self.healthy += -1 if sick else 1
        load = 0.0 if holder.draining else load_of(holder)
        if load != holder.load:
            self.busy += load - holder.load
            holder.load = load
        self.yielding.place(holder)
        due_at = self._due_at(holder)
        if due_at is None or due_at > now:
            self.ready.drop(holder)
        else:
            self.ready.place(holder, now)
            due_at = None
        if due_at is not None and due_at != holder.wake_at:
            self._pushed += 1
            heappush(self.timers, (due_at, self._pushed, holder))
        holder.wake_at = due_at

    def promote(self, now: float) -> None:
        """Move replicas whose time has come to the ready ones."""
        timers = self.timers
        while timers and timers[0][0] <= now:
            at, _, holder = heappop(timers)
            if holder.wake_at == at:
                self.refresh(holder, now)
        if len(timers) > 2 * len(self.holders) + _SLACK:
            timers[:] = [entry for entry in timers if entry[2].wake_at == entry[0]]
            heapify(timers)

    def next_at(self) -> float:
        """When the next replica that is not ready may take a lease; inf: nobody knows."""
        timers = self.timers
        while timers:
            at, _, holder = timers[0]
            if holder.wake_at == at:
                return at
            heappop(timers)
        return inf

    def busy_share(self, ejected: int) -> float:
        """Of the replicas that are used, the share that holds work; 0..1."""
        return min(1.0, self.busy / max(1, self.running - ejected))

    @property
    def has_ready(self) -> bool:
        return self.ready.count(spare=not self.healthy) > 0

    def took(self, predicted_s: float) -> None:
        """A batch was sent that is predicted to take so long."""
        known = self.batch_s
        self.batch_s = known + (_BATCH_GAIN if known else 1.0) * (predicted_s - known)

    def block(self, holder: ReplicaState, until: float, *, suspect: bool = False) -> None:
        holder.blocked_until = max(holder.blocked_until, until)
        holder.suspect = holder.suspect or suspect

    def closed(self, holder: ReplicaState, now: float, *, alive: bool) -> bool:
        """A lease of it has closed; `alive`: by an answer, so whatever blocked it is over. True
        when it was draining and that was its last lease: it is gone."""
        if alive:
            self._unblock(holder)
        if holder.overdue:
            holder.overdue = any(lease.overdue for lease in holder.leases.values())
        holder.reckon(now)
        if self._is_over(holder):
            del self.holders[holder.replica.replica_id]
            self._drop(holder)
            return True
        self.refresh(holder, now)
        return False

    def offer(self, holder: ReplicaState, now: float, *, trusted: bool) -> ReplicaCapacity:
        """What the holder can take now, in the batcher's words; `trusted`: costs are known even of
        replicas that have not answered yet."""
        replica, saves_for = holder.replica, holder.saves_for
        saves_for = holder.saving() if saves_for is not None else None
        return ReplicaCapacity(
            replica.replica_id,
            streams=holder.streams,
            room=replica.capacity - holder.held - holder.saved,
            idle=not holder.leases,
            trusted=trusted or holder.answers > 0,
            last_edge=holder.last_edge,
            alone=self.running <= 1,
            starts_in_s=max(0.0, holder.finish_at - now),
            others_idle=self.ready.others_idle(holder),
            saved=holder.saved,
            saves_for=saves_for,
            reading_long=holder.reading_long,
        )

    def _due_at(self, holder: ReplicaState) -> float | None:
        if holder.draining or not holder.has_room():
            return None
        if holder.streams and holder.leases and len(holder.leases) + 1 > self.most_streams:
            return None
        if holder.streams or holder.transport_s is None:
            return holder.blocked_until
        head = holder.head()
        running_s = head.predicted_s if head is not None else self.batch_s
        return max(holder.finish_at - holder.lead_s(running_s), holder.blocked_until)

    def _drop(self, holder: ReplicaState) -> None:
        holder.wake_at = None
        self.yielding.place(holder)
        self.ready.drop(holder)

    @staticmethod
    def _is_over(holder: ReplicaState) -> bool:
        return holder.draining and not holder.leases

    @staticmethod
    def _unblock(holder: ReplicaState) -> None:
        holder.blocked_until, holder.suspect = 0.0, False
