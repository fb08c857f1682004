"""When is each request, lease or replica to be looked at next? The earliest first.

Entries of what was forgotten, moved or dropped are skipped and compacted away, so a heap holds at
most twice what is live (plus a constant). Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Final, Generic, TypeVar

from routers.state.rows import TrackedRequest

_SLACK: Final = 32  # stale entries allowed before the heap is compacted


class Timers:
    """One entry a live request: when the passing of time changes what may become of it. `due` takes
    an entry out; its caller puts the next one in.

    Most requests come in the order of these times and stand in `line` from `first` on; one that
    does not goes to `heap`.
    """

    def __init__(self) -> None:
        self.line: list[TrackedRequest] = []
        self.first = 0
        self.heap: list[tuple[float, int, TrackedRequest]] = []

    def push(self, at: float, tracked: TrackedRequest) -> None:
        """Wake up for the request at this time."""
        tracked.timer_at = at
        line = self.line
        if self.first == len(line) or line[-1].timer_at < at:
            line.append(tracked)
        else:
            heappush(self.heap, (at, tracked.rows[0].order, tracked))

    def due(self, now: float) -> TrackedRequest | None:
        """Take out a live request whose time has come; None if there is none. Among equals the
        first to arrive is first."""
        if self.next_at() > now:
            return None
        heap = self.heap
        if self.first < len(self.line):
            tracked = self.line[self.first]
            if not heap or (tracked.timer_at, tracked.rows[0].order, tracked) < heap[0]:
                self.first += 1
                return tracked
        return heappop(heap)[2] if heap else None

    def next_at(self) -> float:
        """When the first entry is due; inf: never."""
        line, heap, first = self.line, self.heap, self.first
        last = len(line)
        while first < last and not line[first].open:
            first += 1
        self.first = first
        at = line[first].timer_at if first < last else inf
        while heap:
            heap_at, _, tracked = heap[0]
            if tracked.open:
                return heap_at if heap_at < at else at
            heappop(heap)
        return at

    def trim(self, live: int) -> None:
        """Drop entries of forgotten requests once they outnumber the `live` requests."""
        if len(self.line) + len(self.heap) > (2 * live + _SLACK if live else 0):
            self.line = [each for each in self.line[self.first :] if each.open]
            self.first = 0
            self.heap = [entry for entry in self.heap if entry[2].open]
            heapify(self.heap)


T = TypeVar("T", bound=Hashable)


class _Check:
    """One look at an item. `holds`: it was neither made nor replaced nor dropped."""

    what: Any
    at: float
    order: int
    number: int
    holds: bool

    def __init__(self, what: Any, at: float, order: int, number: int) -> None:
        self.what, self.at, self.order, self.number = what, at, order, number
        self.holds = True

    def __lt__(self, other: _Check) -> bool:
        if self.at != other.at:
            return self.at < other.at
        if self.order != other.order:
            return self.order < other.order
        return self.number < other.number


class CheckTimes(Generic[T]):
    """One time for each item. Of items due at the same time, the one with the lowest `order` is
    first; without an order, the one asked for first."""

    def __init__(self) -> None:
        self._checks: dict[T, _Check] = {}
        self._heap: list[_Check] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, what: T) -> float:
        """When the item is to be looked at; inf: never."""
        check = self._checks.get(what)
        return inf if check is None else check.at

    def look_at(self, what: T, at: float, order: int = 0) -> None:
        """Look at the item at this time instead of any time asked for before; inf: never. `order`:
        0: none."""
        known = self._checks.get(what)
        if known is not None:
            if known.at == at:
                return
            known.holds = False
        if at == inf:
            if known is not None:
                del self._checks[what]
            return
        self._pushed += 1
        check = self._checks[what] = _Check(what, at, order, self._pushed)
        heap = self._heap
        heappush(heap, check)
        if len(heap) > 2 * len(self._checks) + _SLACK:
            heap[:] = [each for each in heap if each.holds]
            heapify(heap)

    def drop(self, what: T) -> None:
        """Do not look at the item."""
        check = self._checks.get(what)
        if check is not None:
            check.holds = False
            del self._checks[what]

    def due(self, now: float) -> tuple[T, float] | None:
        """An item that is due, and the time it was due at; None if none is. An item is returned
        once for each time that was asked for."""
        if self.next_at() > now:
            return None
        check = heappop(self._heap)
        what: T = check.what
        del self._checks[what]
        return what, check.at

    def first(self) -> T | None:
        """The item that is due first; None if there is none."""
        return self._heap[0].what if self.next_at() < inf else None

    def next_at(self) -> float:
        """When the first item is due; inf: never."""
        heap = self._heap
        while heap:
            if heap[0].holds:
                return heap[0].at
            heappop(heap)
        return inf
