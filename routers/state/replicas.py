"""The replicas that run, and when each may take its next lease.

A replica is *ready* when it has room and its next lease is due. A replica that runs nothing, or
that streams, is due at once. One that runs a batch is due at its predicted finish less the measured
transport (*just in time*), so that the staged batch binds its rows as late as it can without
leaving the device idle; while no transport has been measured there, it is due at once. Behind a
lease that is far overdue nothing is staged while a healthy replica runs: a batch staged there would
wait for the straggler.

`ready_replicas` says which of the ready ones is used. Times are seconds on the caller's monotonic
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import inf, log
from typing import TypeVar

from routers.api.requests import Replica
from routers.estimates.groups import ReplicaGroups
from routers.state.preemptible import PreemptibleReplicas
from routers.state.replica_state import Entry, ReplicaState
from routers.state.rows import ReplicaCapacity

# The kinds of ready replicas that each group has; unhealthy ones are SPARE.
IDLE, DUE, OVERRUN, BUSY, SPARE = range(5)
_KINDS = 5
_TRIES = 4  # replicas of one kind that are asked for one batch
_SPEED_BAND = log(1.25)  # replicas whose slowdowns differ by less than this factor take turns
_MUCH_SLOWER = 1.5  # times its group's pace
_READING = 4096.0  # prompt tokens yet to be read that weigh as much as a full replica
_SLACK = 32  # stale entries allowed before a heap is compacted


_T = TypeVar("_T")


class ReadyReplicas:
    """Replicas that may take a lease now. An entry is valid while it is the one that its replica
    names."""

    def __init__(self) -> None:
        # Kind `k` of the group with index `i` is at `i * _KINDS + k`, here and in entries.
        self._heaps: list[list[Entry]] = [[] for _ in range(_KINDS)]
        self._counts = [0] * _KINDS
        self._total = self._spare = 0
        self._pushed = 0

    def __contains__(self, replica: ReplicaState) -> bool:
        return replica.entry is not None

    def count(self, *, spare: bool) -> int:
        """How many replicas are ready; `spare`: the unhealthy ones too."""
        return self._total if spare else self._total - self._spare

    def others_idle(self, replica: ReplicaState) -> bool:
        """Whether another ready replica of its group holds nothing."""
        entry, idle = replica.entry, replica.group.index * _KINDS + IDLE
        own = entry is not None and entry[3] == idle
        return idle < len(self._counts) and self._counts[idle] > own

    def place(self, replica: ReplicaState, now: float) -> None:
        """It may take a lease now: find its place, or its new one."""
        if replica.unhealthy:
            kind, first, second = SPARE, float(len(replica.leases)), replica.finish_at
        else:
            kind, first, second = _place(replica, now)
        kind += replica.group.index * _KINDS
        entry = replica.entry
        if entry is not None:
            if entry[:2] == (first, second) and entry[3] == kind:
                return
            self._uncount(entry)
        while len(self._counts) <= kind:
            self._counts += [0] * _KINDS
            self._heaps += [[] for _ in range(_KINDS)]
        self._pushed += 1
        replica.entry = entry = (first, second, self._pushed, kind, replica)
        self._counts[kind] += 1
        self._total += 1
        self._spare += kind % _KINDS == SPARE
        self._push(entry)

    def drop(self, replica: ReplicaState) -> None:
        """It may take no lease now."""
        if replica.entry is not None:
            self._uncount(replica.entry)
            replica.entry = None

    def _uncount(self, entry: Entry) -> None:
        self._counts[entry[3]] -= 1
        self._total -= 1
        self._spare -= entry[3] % _KINDS == SPARE

    def first(
        self,
        accept: Callable[[ReplicaState], _T | None],
        now: float,
        *,
        spare: bool = False,
    ) -> _T | None:
        """Ask one replica after another, the best first, until one accepts. Returns its answer,
        None when none did. `spare`: ask the unhealthy ones too."""
        tried: list[Entry] = []
        tries = [_TRIES] * len(self._heaps)
        if not spare:
            tries[SPARE::_KINDS] = [0] * (len(tries) // _KINDS)
        answer = None
        while answer is None and (entry := self._best(now, tries)) is not None:
            tries[entry[3]] -= 1
            tried.append(heappop(self._heaps[entry[3]]))
            answer = accept(entry[4])
        for entry in tried:
            if _is_valid(entry):
                self._push(entry)
        return answer

    def _best(self, now: float, tries: list[int]) -> Entry | None:
        """The replica to ask next, of those kinds that have tries left."""
        # First, since a `DUE` replica that is placed again may come to a kind looked at before.
        for kind in range(DUE, len(self._counts), _KINDS):
            if self._counts[kind]:
                self._top(kind, now)
        best, least = None, inf
        for kind, left in enumerate(tries):
            if left and self._counts[kind]:
                entry = self._top(kind, now)
                if entry is not None and (group := entry[4].group).is_open:
                    score = finish_in_s(entry[4], now, group.next_s)
                    if score < least:
                        best, least = entry, score
        return best

    def _top(self, kind: int, now: float) -> Entry | None:
        """The first valid entry of a kind; `DUE` ones whose time has passed are placed again."""
        heap = self._heaps[kind]
        while heap:
            entry = heap[0]
            replica = entry[4]
            if not _is_valid(entry):
                heappop(heap)
            elif entry[0] < now and kind % _KINDS == DUE:
                heappop(heap)
                self.place(replica, now)
            else:
                return entry
        return None

    def _push(self, entry: Entry) -> None:
        kind = entry[3]
        heap = self._heaps[kind]
        heappush(heap, entry)
        if len(heap) > 2 * self._counts[kind] + _SLACK:
            heap[:] = [each for each in heap if _is_valid(each)]
            heapify(heap)


def _is_valid(entry: Entry) -> bool:
    """Whether this is the last entry that was made for its replica."""
    valid = entry[4].entry
    return valid is not None and valid[2] == entry[2]


def _place(replica: ReplicaState, now: float) -> tuple[int, float, float]:
    """The kind of a healthy replica (not `SPARE`), and its two keys within that kind, lowest first.
    The first key of a `DUE` replica is a time, not before `now`; once that has passed, the replica
    is placed again. The others keep their place until something about them changes."""
    if replica.streams:
        load = load_of(replica) + replica.reading / _READING
        return BUSY, (1.0 + load) * _slowdown_of_stream(replica), replica.last_used
    if not replica.leases and replica.foreign_until <= now:
        return IDLE, _speed_band(replica), replica.last_used
    if replica.finish_at >= now:
        return DUE, replica.finish_at, len(replica.leases)
    return OVERRUN, -replica.finish_at, len(replica.leases)


def finish_in_s(replica: ReplicaState, now: float, batch_s: float) -> float:
    """Predicted seconds until the replica would have finished a typical batch that is sent to it
    now."""
    if replica.streams:
        return batch_s * _slowdown_of_stream(replica) * (1.0 + load_of(replica))
    own_s = batch_s * replica.slowdown
    if not replica.leases and replica.foreign_until <= now:
        return own_s
    return abs(replica.finish_at - now) + own_s


def load_of(replica: ReplicaState) -> float:
    """How busy it is, 0..1: of a batch replica whether it holds a batch, of a stream replica how
    full it is."""
    if not replica.streams:
        return 1.0 if replica.leases else 0.0
    capacity, most = replica.spec.capacity, replica.spec.max_leases
    full = replica.held / capacity if capacity > 0 else 0.0
    if most:
        full = max(full, len(replica.leases) / most)
    return min(1.0, full)


def _slowdown_of_stream(replica: ReplicaState) -> float:
    """How many times slower a stream replica is taken to be. A small slowdown is as likely due to
    its prompts as to the replica, and counts as none."""
    return replica.slowdown if replica.slowdown > _MUCH_SLOWER else 1.0


def _speed_band(replica: ReplicaState) -> float:
    """Its slowdown, in steps of equal factors: replicas of one band take turns."""
    return float(round(log(replica.slowdown) / _SPEED_BAND)) if replica.slowdown > 0.0 else 0.0


MIN_BLOCK_S = 0.001  # a busy answer that names no time must not cause a busy loop
SUSPECT_S = 1.0  # after a loss, unless the replica answers or is listed as running again


class ReplicaSet:
    """All replicas that run, or drain with leases open."""

    def __init__(self, groups: ReplicaGroups) -> None:
        self.groups = groups
        self.by_id: dict[str, ReplicaState] = {}
        self.ready = ReadyReplicas()
        self.preemptible = PreemptibleReplicas()
        self.running = 0  # not draining
        self.healthy = 0  # running and not unhealthy
        self.ejected = 0  # draining or not
        self.busy = 0.0  # sum of the running ones' loads
        self.largest = 0.0  # capacity of the largest that runs
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
        if all(replica.suspended for replica in self.by_id.values() if not replica.draining):
            for replica in self.by_id.values():
                replica.suspended = False  # no other replica is left to do its work
        for replica in self.by_id.values():
            replica.unhealthy = replica.is_unwell
        self.running = len(listed)
        self.largest = max([spec.capacity for spec in listed.values()], default=0.0)
        self.healthy = sum(not (each.draining or each.unhealthy) for each in self.by_id.values())
        self.busy = 0.0
        self._count_groups()
        for replica in self.by_id.values():
            replica.load = replica.busy_until = 0.0
        for replica in self.by_id.values():
            self.refresh(replica, now)
        return gone

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
    def has_ready(self) -> bool:
        """Whether a replica may take a lease now; unhealthy ones count only while no healthy one
        runs."""
        return self.ready.count(spare=not self.healthy) > 0

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
            alone=self.running <= 1,
            starts_in_s=max(0.0, replica.finish_at - now),
            others_idle=self.ready.others_idle(replica),
            groups=self.groups if len(self.groups.by_name) > 1 else None,
            whole=spec.capacity,
            saved=replica.saved,
            saves_for=saves_for,
            reading_long=replica.reading_long,
        )

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
