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
from math import inf, log
from typing import Final, Generic, Protocol, TypeVar

from routers.state.replica_state import DUE, IDLE, SPARE, AnyReplica, Entry

_KINDS: Final = 5
_TRIES: Final = 4  # replicas of one kind that are asked for one batch
# Replicas whose slowdowns differ by less than this factor take turns
_SPEED_BAND: Final = log(1.25)
_IN_TURN: Final = 8  # of so many choices of an idle replica one is made in turn, whatever the order
_SLACK: Final = 32  # stale entries allowed before a heap is compacted

_T = TypeVar("_T")
R = TypeVar("R", bound=AnyReplica)


class Placement(Protocol):
    """Which replica is asked first?"""

    def place(self, replica: AnyReplica, now: float) -> tuple[int, float, float]:
        """The kind of a healthy replica (not `SPARE`), and its two keys within that kind, lowest
        first. The first key of a `DUE` replica is a time, not before `now`; once that has passed,
        the replica is placed again. The others keep their place until something about them
        changes."""
        ...

    def score(self, replica: AnyReplica, now: float, batch_s: float) -> float:
        """Of the first replicas of all kinds, the one with the lowest score is asked. `batch_s`:
        predicted seconds of the next batch of its group."""
        ...

    def answered(self, replica: AnyReplica, now: float) -> None:
        """The replica has answered a lease and reported what it holds: the one event that a
        placement learns from."""
        ...


class ReadyReplicas(Generic[R]):
    """Replicas that may take a lease now. An entry is valid while it is the one that its replica
    names."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        # Kind `k` of the group with index `i` is at `i * _KINDS + k`, here and in entries.
        self._heaps: list[list[Entry]] = [[] for _ in range(_KINDS)]
        self._counts = [0] * _KINDS
        self._total = self._spare = 0
        self._pushed = 0
        # All replicas, where several gateways each have an order of their own; else none.
        self.in_turn: list[R] = []
        self._next_in_turn = self._idle_choices = 0

    def __contains__(self, replica: AnyReplica) -> bool:
        return replica.entry is not None

    def count(self, *, spare: bool) -> int:
        """How many replicas are ready; `spare`: the unhealthy ones too."""
        return self._total if spare else self._total - self._spare

    def others_idle(self, replica: AnyReplica) -> bool:
        """Whether another ready replica of its group holds nothing."""
        entry, idle = replica.entry, replica.group.index * _KINDS + IDLE
        own = entry is not None and entry[3] == idle
        return idle < len(self._counts) and self._counts[idle] > own

    def place(self, replica: AnyReplica, now: float) -> None:
        """It may take a lease now: find its place, or its new one."""
        if replica.unhealthy:
            kind, first, second = SPARE, float(len(replica.leases)), replica.finishes_at()
        else:
            kind, first, second = self.placement.place(replica, now)
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

    def drop(self, replica: AnyReplica) -> None:
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
        accept: Callable[[R], _T | None],
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
        if self.in_turn and (entry := self._best(now, tries)) is not None:
            answer = self._ask_in_turn(entry, accept)
        while answer is None and (entry := self._best(now, tries)) is not None:
            tries[entry[3]] -= 1
            tried.append(heappop(self._heaps[entry[3]]))
            answer = accept(entry[4])
        for entry in tried:
            if _is_valid(entry):
                self._push(entry)
        return answer

    def _ask_in_turn(self, best: Entry, accept: Callable[[R], _T | None]) -> _T | None:
        """Where gateways have an order of replicas, a replica at its end would be used only in a
        burst, and nobody would know its speed. So for every `_IN_TURN`th choice of an idle replica
        all of them take turns."""
        if best[3] % _KINDS != IDLE:
            return None
        self._idle_choices += 1
        if self._idle_choices < _IN_TURN:
            return None
        self._idle_choices = 0
        for _ in range(min(_IN_TURN, len(self.in_turn))):
            self._next_in_turn = (self._next_in_turn + 1) % len(self.in_turn)
            entry = self.in_turn[self._next_in_turn].entry
            if entry is not None and (entry[0], entry[3]) == (best[0], best[3]):
                return accept(entry[4])
        return None

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
                    score = self.placement.score(entry[4], now, group.next_s)
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


def leases_in_flight(replica: AnyReplica, now: float) -> float:
    """Leases that it holds, plus those of other gateways as of its last report until their
    predicted end."""
    foreign = replica.foreign.leases if replica.foreign.until > now else 0
    return float(len(replica.leases) + foreign)


def speed_band(replica: AnyReplica) -> float:
    """Its slowdown, in steps of equal factors: replicas of one band take turns."""
    return float(round(log(replica.slowdown) / _SPEED_BAND)) if replica.slowdown > 0.0 else 0.0


def preference(replica: AnyReplica) -> float:
    """Which of the idle replicas of one speed band is used next: the one used longest ago, or,
    where several gateways use them, the first in this gateway's order."""
    return float(replica.last_used if replica.preference is None else replica.preference)
