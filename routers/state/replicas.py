"""The replicas that run, and when each may take its next lease.

A replica is *ready* when it has room and its next lease is due, as its kind says
(`ReplicaState.due_at`). Behind a lease that is far overdue nothing is sent while a healthy replica
runs: it would wait for the straggler.

Which of the ready replicas is used is the placement's question (`policies.placement`). Times
are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import ClassVar, Final, Generic, TypeVar

from routers.api.errors import BadSettings
from routers.api.requests import Replica, ReplicaKind
from routers.estimates.groups import ANY_LENGTH, LengthRange, ReplicaGroup, ReplicaGroups
from routers.policies.placement import Placement
from routers.state.ready_replicas import ReadyReplicas
from routers.state.replica_state import EJECTED, OVERDUE, SILENT, SUSPECT, AnyReplica

MIN_BLOCK_S: Final = 0.001  # a busy answer that names no time must not cause a busy loop
SUSPECT_S: Final = 1.0  # after a loss, unless the replica answers or is listed as running again
_SLACK: Final = 32  # stale timers allowed before the heap is compacted
_SESSIONS: Final = 10_000  # remembered
# How much later than on the best replica a batch may finish for the preference's sake, of its
# predicted seconds: near ties only.
_GIVES_WAY: Final = 0.1


R = TypeVar("R", bound=AnyReplica)


class ReplicaSet(Generic[R]):
    """All replicas of one kind that run, or drain with leases open."""

    kind: ClassVar[ReplicaKind]

    def __init__(self, groups: ReplicaGroups, placement: Placement) -> None:
        self.groups = groups
        self.by_id: dict[str, R] = {}
        self.ready: ReadyReplicas[R] = ReadyReplicas(placement)
        self.running = 0  # not draining
        self.healthy = 0  # running and not unhealthy
        self.ejected = 0  # draining or not
        self.busy = 0.0  # sum of the running ones' loads
        self.largest = 0.0  # capacity of the largest that runs
        self._gateway, self._gateways = 0, 1  # place among the gateways that live, and their number
        self.timers: list[tuple[float, int, R]] = []  # heap, by `wake_at`
        self._pushed = 0

    # -- what differs by kind

    @abstractmethod
    def make(self, spec: Replica, group: ReplicaGroup) -> R:
        """The record of a replica that is listed for the first time."""

    def follow(self, replica: R) -> None:
        """Something about the replica has changed."""

    # -- what both have

    def check_kind(self, replicas: Iterable[Replica]) -> None:
        """Raises `BadSettings` for a replica of the other kind."""
        for spec in replicas:
            if spec.kind is not self.kind:
                raise BadSettings(
                    f"replica {spec.replica_id} must be of kind {self.kind.value}, "
                    f"as all of its model, got {spec.kind.value}"
                )

    def update(self, replicas: Iterable[Replica], now: float) -> list[R]:
        """Take over the whole running set, whose kind was checked. Returns the replicas that have
        gone for good."""
        listed = {spec.replica_id: spec for spec in replicas}
        for replica_id, spec in listed.items():
            replica = self.by_id.get(replica_id)
            if replica is None:
                replica = self.make(spec, self.groups.of(spec.group))
                self.by_id[replica_id] = replica
            if replica.draining:
                replica.set_reason(SILENT, False)  # it was heard on a new connection
            replica.spec, replica.draining = spec, False
            if replica.reasons & SUSPECT:
                self._unblock(replica)
        for replica_id, replica in self.by_id.items():
            replica.draining = replica_id not in listed
        gone = [replica for replica in self.by_id.values() if self._is_over(replica)]
        for replica in gone:
            self._drop(self.by_id.pop(replica.spec.replica_id))
        for length in (0, *self.groups.bounds):  # by who can take longer rows
            able = [each for each in self.by_id.values() if each.group.longest > length]
            if all(each.reasons & SILENT for each in able if not each.draining):
                for replica in able:
                    replica.set_reason(SILENT, False)  # no other replica is left to do its work
        for replica in self.by_id.values():
            replica.unhealthy = replica.reasons > 0
        self.running = len(listed)
        self.largest = max([spec.capacity for spec in listed.values()], default=0.0)
        self.healthy = sum(not (each.draining or each.unhealthy) for each in self.by_id.values())
        self.busy = 0.0
        self._count_groups()
        self._order()
        for replica in self.by_id.values():
            replica.load = 0.0
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
        members: dict[str, list[R]] = {}
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

    def refresh(self, replica: R, now: float) -> None:
        """Find the replica's place again. To be called after anything about it has changed."""
        unhealthy = replica.reasons > 0
        if unhealthy != replica.unhealthy:
            replica.unhealthy = unhealthy
            if not replica.draining:
                self.healthy += -1 if unhealthy else 1
                replica.group.healthy += -1 if unhealthy else 1
        load = 0.0 if replica.draining else replica.busy_share()
        if load != replica.load:
            self.busy += load - replica.load
            replica.load = load
        self.follow(replica)
        self._place(replica, now)

    def _place(self, replica: R, now: float) -> None:
        """Find its place among the ready ones, or when it will have one."""
        due_at = inf if replica.draining or replica.reasons & SILENT else replica.due_at()
        if due_at > now:
            self.ready.drop(replica)
        else:
            self.ready.place(replica, now)
            due_at = inf
        if due_at < inf and due_at != replica.wake_at:
            self._pushed += 1
            heappush(self.timers, (due_at, self._pushed, replica))
        replica.wake_at = due_at

    def promote(self, now: float) -> None:
        """Move the replicas whose time has come to the ready ones."""
        timers = self.timers
        while timers and timers[0][0] <= now:
            at, _, replica = heappop(timers)
            if replica.wake_at == at:
                self._place(replica, now)
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

    def block(self, replica: R, until: float, *, suspect: bool = False) -> None:
        """Give it no lease before `until`."""
        replica.blocked_until = max(replica.blocked_until, until)
        if suspect:
            replica.set_reason(SUSPECT, True)

    def eject(self, replica: AnyReplica) -> None:
        """Give it probes only. To be followed by `refresh`."""
        replica.set_reason(EJECTED, True)
        self.ejected += 1

    def readmit(self, replica: AnyReplica) -> None:
        """Use it like the others again. To be followed by `refresh`."""
        replica.set_reason(EJECTED, False)
        self.ejected -= 1

    def closed(self, replica: R, now: float, *, alive: bool) -> bool:
        """A lease of the replica has closed. `alive`: it closed by an answer, so whatever blocked
        the replica is over. Returns True when the replica was draining and this was its last lease:
        it has gone."""
        if alive:
            self._unblock(replica)
            self.ready.placement.answered(replica, now)
        if replica.reasons & OVERDUE:
            replica.set_reason(OVERDUE, any(lease.overdue for lease in replica.leases.values()))
        if self._is_over(replica):
            del self.by_id[replica.spec.replica_id]
            self._drop(replica)
            return True
        self.refresh(replica, now)
        return False

    def lengths_of(self, replica: R) -> LengthRange | None:
        """The lengths of rows that it may take; None: all. Of an unhealthy one those that no
        healthy one takes."""
        lengths = replica.group.lengths
        above = self.spares_above if replica.unhealthy and self.groups.bounds else None
        if above is None:
            return lengths
        lengths = lengths or LengthRange()
        return replace(lengths, above=max(above, lengths.above))

    def longest_beside(self, replica: R) -> int:
        """The longest row that another running replica takes; 0: none runs."""
        if self.running <= 1:
            return 0
        if not self.groups.bounds:
            return ANY_LENGTH
        return self.groups.longest_beside(replica.group, well=not replica.unhealthy)

    def _drop(self, replica: R) -> None:
        replica.wake_at = inf
        self.ejected -= replica.reasons & EJECTED > 0
        self.follow(replica)
        self.ready.drop(replica)

    @staticmethod
    def _is_over(replica: R) -> bool:
        """Whether it is drained."""
        return replica.draining and not replica.leases

    @staticmethod
    def _unblock(replica: R) -> None:
        replica.blocked_until = 0.0
        replica.set_reason(SUSPECT, False)


class Affinity:
    """Which replica served each session last, whose cache may still hold the session's prompts.
    Keeps at most `most` sessions; those used least recently go."""

    def __init__(self, most: int = _SESSIONS) -> None:
        self._most = most
        self._last: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def preferred(self, session: str) -> str | None:
        """Id of the replica that served the session last; None where none is known."""
        return self._last.get(session) if session else None

    def served(self, sessions: Iterable[str], replica_id: str) -> None:
        """This replica has served these sessions."""
        last = self._last
        for session in sessions:
            if session:
                last[session] = replica_id
                last.move_to_end(session)
        while len(last) > self._most:
            last.popitem(last=False)

    @staticmethod
    def gives_way(later_s: float, predicted_s: float) -> bool:
        """Whether finishing `later_s` after the best replica is too much to pay for the
        preference."""
        return later_s > predicted_s * _GIVES_WAY


def _preference(place: int, replicas: int, gateway: int, gateways: int) -> int | None:
    """When gateway `gateway` of `gateways` asks the replica at this place of so many: gateways come
    in pairs, each pair has its part of the replicas, and the two begin at its two ends. One gateway
    alone has no order."""
    if gateways < 2:
        return None
    if gateway % 2 == 0:
        return (place - gateway * replicas // gateways) % replicas
    return ((gateway + 1) * replicas // gateways - 1 - place) % replicas
