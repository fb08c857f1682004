"""The replicas that may take a lease now, in the order in which they are to be asked.

The placement policy decides that order. Unhealthy replicas (suspect, overdue, ejected) are asked
only while no healthy replica runs, and a group that is not open is never asked. At most a few
replicas of a kind are asked for one batch: what one of them may not take, the next may not take
either, except for the one replica that a row avoids. Work: O(log n) a choice, by one lazy heap for
each kind and group.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

from routers.policies.placement import DUE, IDLE, SPARE, Placement
from routers.state.replica_state import AnyReplica, Place

_KINDS: Final = 5
_TRIES: Final = 4  # replicas of one kind that are asked for one batch
_IN_TURN: Final = 8  # of so many choices of an idle replica one is made in turn, whatever the order
_SLACK: Final = 32  # stale entries allowed before a heap is compacted

_T = TypeVar("_T")
R = TypeVar("R", bound=AnyReplica)


class ReadyReplicas(Generic[R]):
    """Replicas that may take a lease now. A place in a heap is valid while it holds."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        # Kind `k` of the group with index `i` is at `i * _KINDS + k`, here and in places.
        self._heaps: list[list[Place]] = [[] for _ in range(_KINDS)]
        self._counts = [0] * _KINDS
        self._total = self._spare = 0
        self._pushed = 0
        # All replicas, where several gateways each have an order of their own; else none.
        self.in_turn: list[R] = []
        self._next_in_turn = self._idle_choices = 0
        self._asked: list[Place] = []  # since `begin`
        self._may_take_turns = False

    def __contains__(self, replica: AnyReplica) -> bool:
        return replica.place is not None

    def count(self, *, spare: bool) -> int:
        """How many replicas are ready; `spare`: the unhealthy ones too."""
        return self._total if spare else self._total - self._spare

    def others_idle(self, replica: AnyReplica) -> bool:
        """Whether another ready replica of its group holds nothing."""
        place, idle = replica.place, replica.group.index * _KINDS + IDLE
        own = place is not None and place.kind == idle
        return idle < len(self._counts) and self._counts[idle] > own

    def place(self, replica: AnyReplica, now: float) -> None:
        """It may take a lease now: find its place, or its new one."""
        if replica.unhealthy:
            kind, first, second = SPARE, float(len(replica.leases)), replica.finish_at
        else:
            kind, first, second = self.placement.place(replica, now)
        kind += replica.group.index * _KINDS
        place = replica.place
        if place is not None:
            if place.first == first and place.second == second and place.kind == kind:
                return
            self._uncount(place)
        while len(self._counts) <= kind:
            self._counts += [0] * _KINDS
            self._heaps += [[] for _ in range(_KINDS)]
        self._pushed += 1
        replica.place = place = Place(replica, kind, first, second, self._pushed)
        self._counts[kind] += 1
        self._total += 1
        self._spare += kind % _KINDS == SPARE
        self._push(place)

    def drop(self, replica: AnyReplica) -> None:
        """It may take no lease now."""
        if replica.place is not None:
            self._uncount(replica.place)
            replica.place = None

    def _uncount(self, place: Place) -> None:
        place.holds = False
        self._counts[place.kind] -= 1
        self._total -= 1
        self._spare -= place.kind % _KINDS == SPARE

    def first(
        self,
        accept: Callable[[R], _T | None],
        now: float,
        *,
        spare: bool = False,
    ) -> _T | None:
        """Ask one replica after another, the best first, until one accepts. Returns its answer,
        None when none did. `spare`: ask the unhealthy ones too."""
        answer = None
        self.begin()
        while answer is None and (replica := self.ask(now, spare=spare)) is not None:
            answer = accept(replica)
        self.end()
        return answer

    # The same without a function to accept, which would cost more than to ask: `begin`, `ask` until
    # a replica accepts or none is left, and `end`.

    def begin(self) -> None:
        """None has been asked yet."""
        self._asked.clear()
        self._may_take_turns = bool(self.in_turn)

    def ask(self, now: float, *, spare: bool) -> R | None:
        """The best replica that has not been asked; None: none is left."""
        best = self._best(now, spare=spare)
        if best is None:
            return None
        if self._may_take_turns:
            self._may_take_turns = False
            in_turn = self._in_turn(best)
            if in_turn is not None:
                return in_turn
        self._asked.append(heappop(self._heaps[best.kind]))
        found: R = best.replica
        return found

    def end(self) -> None:
        """Those that were asked stand where they stood, if they still may take a lease."""
        for place in self._asked:
            if place.holds:
                self._push(place)
        self._asked.clear()

    def _in_turn(self, best: Place) -> R | None:
        """Where gateways have an order of replicas, a replica at its end would be used only in a
        burst, and nobody would know its speed. So for every `_IN_TURN`th choice of an idle replica
        all of them take turns."""
        if best.kind % _KINDS != IDLE:
            return None
        self._idle_choices += 1
        if self._idle_choices < _IN_TURN:
            return None
        self._idle_choices = 0
        for _ in range(min(_IN_TURN, len(self.in_turn))):
            self._next_in_turn = (self._next_in_turn + 1) % len(self.in_turn)
            replica = self.in_turn[self._next_in_turn]
            place: Place | None = replica.place
            if place is not None and place.first == best.first and place.kind == best.kind:
                return replica
        return None

    def _best(self, now: float, *, spare: bool) -> Place | None:
        """The replica to ask next, of those kinds of which not `_TRIES` have been asked."""
        counts, placement = self._counts, self.placement
        # First, since a `DUE` replica that is placed again may come to a kind looked at before.
        for kind in range(DUE, len(counts), _KINDS):
            if counts[kind]:
                self._top(kind, now)
        best, least = None, inf
        for kind in range(len(counts)):
            if not counts[kind] or (not spare and kind % _KINDS == SPARE):
                continue
            if self._asked and self._tries(kind) >= _TRIES:
                continue
            place = self._top(kind, now)
            if place is None:
                continue
            replica: AnyReplica = place.replica
            group = replica.group
            if group.is_open:
                score = placement.score(replica, now, group.next_s)
                if score < least:
                    best, least = place, score
        return best

    def _tries(self, kind: int) -> int:
        """How many of this kind have been asked."""
        return len([place for place in self._asked if place.kind == kind])

    def _top(self, kind: int, now: float) -> Place | None:
        """The first place of a kind; `DUE` ones whose time has passed are placed again."""
        heap = self._heaps[kind]
        while heap:
            place = heap[0]
            if not place.holds:
                heappop(heap)
            elif place.first < now and kind % _KINDS == DUE:
                heappop(heap)
                self.place(place.replica, now)
            else:
                return place
        return None

    def _push(self, place: Place) -> None:
        kind = place.kind
        heap = self._heaps[kind]
        heappush(heap, place)
        if len(heap) > 2 * self._counts[kind] + _SLACK:
            heap[:] = [each for each in heap if each.holds]
            heapify(heap)
