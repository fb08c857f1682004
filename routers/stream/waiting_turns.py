"""The requests that wait at a replica, with the one whose turn is next found in O(log n).

The rule is `batch.staging.whose_turn`: the lowest rank; among requests that the same flow leads
at the same standing, the one whose gateway has waited longest for a start. So there is one heap of
all requests, and one heap for each flow and gateway. Requests that have left are skipped when they
reach a heap's top, and cleared away once they outnumber those that wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Generic, TypeVar

from routers.batch.staging import Ranked

_SLACK = 64  # stale entries allowed before the heaps are rebuilt

R = TypeVar("R", bound=Ranked)
_Lead = tuple[int, int, int, str]  # standing (late or not, priority), and flow
_Entry = tuple[tuple[int, int, float], int, R]  # rank, number of arrival, request


class WaitingTurns(Generic[R]):
    """The waiting requests, compared by identity."""

    def __init__(self) -> None:
        self._numbers: dict[R, int] = {}  # requests that wait, with their number of arrival
        self._came = 0
        self._clear()

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, turn: R) -> bool:
        return turn in self._numbers

    def add(self, turn: R) -> None:
        self._came += 1
        self._numbers[turn] = self._came
        self._push(turn)
        self._clear_stale()

    def remove(self, turn: R) -> None:
        del self._numbers[turn]
        self._clear_stale()

    def whose_turn(self, turns: Mapping[str, int]) -> R:
        """The request whose turn is next; it stays until it is removed. `turns`: by gateway, the
        number of its last start. Do not call it while no request waits."""
        lowest = self._first(self._order)
        assert lowest is not None
        lead = _lead(lowest[2])
        if lead is None:
            return lowest[2]
        alike = self._by_lead[lead]
        firsts = [(name, self._first(heap)) for name, heap in alike.items()]
        found = [(turns[name], *entry) for name, entry in firsts if entry is not None]
        return min(found)[3]

    def _push(self, turn: R) -> None:
        entry, lead = (turn.rank, self._numbers[turn], turn), _lead(turn)
        self._pushed += 1
        heappush(self._order, entry)
        if lead is not None:
            heappush(self._by_lead.setdefault(lead, {}).setdefault(turn.gateway, []), entry)

    def _clear_stale(self) -> None:
        """Rebuild the heaps, if as many requests have come since as wait."""
        if self._pushed > 2 * len(self._numbers) + _SLACK:
            self._clear()
            for left in self._numbers:
                self._push(left)

    def _first(self, heap: list[_Entry[R]]) -> _Entry[R] | None:
        """The heap's first request that still waits."""
        while heap and self._numbers.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0] if heap else None

    def _clear(self) -> None:
        self._pushed = 0
        self._order: list[_Entry[R]] = []
        self._by_lead: dict[_Lead, dict[str, list[_Entry[R]]]] = {}


def _lead(turn: Ranked) -> _Lead | None:
    """The standing and the flow that leads the request; None for a copy, which leads no flow."""
    if not turn.charges:
        return None
    return *turn.rank[:2], *turn.charges[0][:2]
