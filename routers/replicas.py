"""Which replica takes the next lease, and when may it?

A replica is *ready* when it has room and its next lease is due: at once when it runs nothing (or
streams), just in time when it runs a batch, so that the staged batch binds its rows as late as it
can without the device waiting: at the predicted finish less the measured transport. While nothing
has been measured there, at once. Among the ready: fewest leases, then earliest predicted finish,
then least recently used. Cost: a look at each ready replica a dispatch; replicas that are full or
not due are in no list that is looked through. Ejecting slow replicas is not done here.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from routers.leases import Holder
from routers.offers import Offer
from routers.types import Replica

MIN_BLOCK_S = 0.001  # a busy answer that names no time may not become a busy loop
SUSPECT_S = 1.0  # after a loss, unless the replica answers or is listed as running again
_SLACK = 32


class ReplicaSet:
    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        self.ready: dict[Holder, None] = {}
        self.running = 0  # not draining
        self.timers: list[tuple[float, int, Holder]] = []
        self._pushed = 0

    def update(self, replicas: Iterable[Replica], now: float) -> list[str]:
        """Take over the whole running set; returns the ids of replicas that are gone for good."""
        listed = {replica.replica_id: replica for replica in replicas}
        for replica_id, replica in listed.items():
            holder = self.holders.get(replica_id)
            if holder is None:
                holder = self.holders[replica_id] = Holder(replica)
            holder.replica, holder.draining = replica, False
            if holder.suspect:
                self._unblock(holder)
        for replica_id, holder in self.holders.items():
            holder.draining = replica_id not in listed
        self.running = len(listed)
        gone = [key for key, holder in self.holders.items() if self._is_over(holder)]
        for replica_id in gone:
            self._drop(self.holders.pop(replica_id))
        for holder in self.holders.values():
            self.refresh(holder, now)
        return gone

    def refresh(self, holder: Holder, now: float) -> None:
        """Find the holder's place again after anything about it has changed."""
        due_at = self._due_at(holder)
        if due_at is None or due_at > now:
            self.ready.pop(holder, None)
        else:
            self.ready[holder] = None
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

    def next_at(self) -> float | None:
        timers = self.timers
        while timers:
            at, _, holder = timers[0]
            if holder.wake_at == at:
                return at
            heappop(timers)
        return None

    def in_order(self) -> list[Holder]:
        """The ready replicas, the one to use first in front."""
        if len(self.ready) == 1:
            return list(self.ready)
        return sorted(self.ready, key=_preference)

    def block(self, holder: Holder, until: float, *, suspect: bool = False) -> None:
        holder.blocked_until = max(holder.blocked_until, until)
        holder.suspect = holder.suspect or suspect

    def closed(self, holder: Holder, now: float, *, alive: bool) -> bool:
        """A lease of it has closed; `alive`: by an answer, so whatever blocked it is over. True
        when it was draining and that was its last lease: it is gone."""
        if alive:
            self._unblock(holder)
        holder.reckon(now)
        if self._is_over(holder):
            del self.holders[holder.replica.replica_id]
            self._drop(holder)
            return True
        self.refresh(holder, now)
        return False

    def offer(self, holder: Holder) -> Offer:
        """What the holder can take now, in the batcher's words."""
        replica = holder.replica
        return Offer(
            replica.replica_id,
            streams=holder.streams,
            room=replica.capacity - holder.held,
            idle=not holder.leases,
            alone=self.running <= 1,
        )

    def _due_at(self, holder: Holder) -> float | None:
        if holder.draining or not holder.has_room():
            return None
        staged = holder.leases and not holder.streams and holder.transport_s is not None
        at = holder.finish_at - (holder.transport_s or 0.0) if staged else 0.0
        return max(at, holder.blocked_until)

    def _drop(self, holder: Holder) -> None:
        holder.wake_at = None
        self.ready.pop(holder, None)

    @staticmethod
    def _is_over(holder: Holder) -> bool:
        return holder.draining and not holder.leases

    @staticmethod
    def _unblock(holder: Holder) -> None:
        holder.blocked_until, holder.suspect = 0.0, False


def _preference(holder: Holder) -> tuple[int, float, int]:
    return len(holder.leases), holder.finish_at, holder.last_used
