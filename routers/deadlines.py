"""Timers of live requests: when each is demoted, refused or expires though no event comes.

Each live request has one entry in a heap: the moment it is demoted (its latest start), refused or
expires, whichever is next. Entries of forgotten requests are skipped and compacted away, so the
heap holds at most twice the live requests (plus a constant). The latest start is the deadline less
what dispatch to answer has lately taken for its bucket (mean + 2 mean deviations, as TCP's
retransmission timer does, RFC 6298), but never less than half of the request's budget: a hiccup may
not demote everybody on arrival. A late request may wait until its deadline; from there on with
`late="refuse"` no longer, with `late="demote"` until it expires; and always as long as the late
rows that wait leave it a place.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from routers.flows import Flow
from routers.lanes import TrackedRequest
from routers.request_queue import RequestQueue
from routers.settings import DispatcherSettings
from routers.types import Request

_SLACK = 32
_MEAN_GAIN = 0.125
_DEVIATION_GAIN = 0.25
_DEVIATIONS = 2.0
_MAX_MARGIN = 0.5  # of the budget a request arrived with


class Timers:
    """One entry a live request; `due` takes entries out, the caller puts the next one in."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, TrackedRequest]] = []

    def push(self, at: float, tracked: TrackedRequest) -> None:
        heappush(self.heap, (at, tracked.rows[0].order, tracked))

    def due(self, now: float) -> TrackedRequest | None:
        heap = self.heap
        while heap and heap[0][0] <= now:
            tracked = heappop(heap)[2]
            if tracked.open:
                return tracked
        return None

    def next_at(self) -> float:
        """inf: never."""
        heap = self.heap
        while heap:
            if heap[0][2].open:
                return heap[0][0]
            heappop(heap)
        return inf

    def trim(self, live: int) -> None:
        """Drop forgotten entries once they outnumber the live ones."""
        if not live:
            self.heap.clear()
        elif len(self.heap) > 2 * live + _SLACK:
            self.heap[:] = [entry for entry in self.heap if entry[2].open]
            heapify(self.heap)


class Turnaround:
    """Seconds from dispatch to answer, by bucket edge: mean and mean deviation, both EWMAs.

    Queueing is not part of it; transport, waiting at the replica and service are. Unmeasured
    buckets are assumed to take `initial_s`.
    """

    def __init__(self) -> None:
        self._initial_s = 0.0
        self._seen: dict[int, tuple[float, float] | None] = {}

    def keep(self, edges: tuple[int, ...], initial_s: float) -> None:
        """These are the buckets now. What was known of others is dropped, once it has lent a new
        bucket the first guess: what the next longer one took."""
        self._initial_s = initial_s
        known = self._seen
        self._seen = {edge: known.get(edge) or _next_longer(known, edge) for edge in edges}

    def observe(self, edge: int, seconds: float) -> None:
        if edge not in self._seen:
            return
        known = self._seen[edge]
        if known is None:
            self._seen[edge] = (seconds, seconds / 4.0)
            return
        mean, deviation = known
        off = seconds - mean
        deviation += _DEVIATION_GAIN * (abs(off) - deviation)
        self._seen[edge] = (mean + _MEAN_GAIN * off, deviation)

    def margin_s(self, edge: int) -> float:
        known = self._seen.get(edge)
        return self._initial_s if known is None else known[0] + _DEVIATIONS * known[1]

    def typical_s(self) -> tuple[float, float]:
        """Mean and margin over the buckets that were measured; of none, what is assumed."""
        seen = [known for known in self._seen.values() if known is not None]
        if not seen:
            return self._initial_s, self._initial_s
        mean_s = sum([mean for mean, _ in seen]) / len(seen)
        return mean_s, mean_s + _DEVIATIONS * sum([off for _, off in seen]) / len(seen)

    def latest_start(self, edge: int, now: float, deadline: float) -> float:
        margin_s, most_s = self.margin_s(edge), _MAX_MARGIN * (deadline - now)
        return deadline - (margin_s if margin_s < most_s else max(0.0, most_s))


def _next_longer(
    known: dict[int, tuple[float, float] | None], edge: int
) -> tuple[float, float] | None:
    longer = [other for other, seen in known.items() if other >= edge and seen is not None]
    return known[min(longer)] if longer else None


def next_moment(tracked: TrackedRequest, now: float) -> float:
    """When time changes what may become of it: it turns late, may wait no longer, expires."""
    if not tracked.late:
        return tracked.latest_start
    request = tracked.request
    return request.deadline if now < request.deadline else request.expires


def is_over(request: Request, settings: DispatcherSettings, now: float) -> bool:
    """Whether its deadline has passed and settings let nothing wait beyond that."""
    return settings.late == "refuse" and request.deadline <= now


def has_place(rows: int, flow: Flow, waiting: RequestQueue, settings: DispatcherSettings) -> bool:
    """Whether so many rows more may wait late: of a tenant that has less than its share of those
    places, whoever has taken them."""
    most, tenant = settings.max_late_rows, flow.tenant
    if waiting.late_rows + rows <= most:
        return True
    shares = waiting.shares
    return shares.late_rows_of(tenant) + rows <= most * shares.part(tenant, flow.weight)


def is_refused(
    tracked: TrackedRequest, waiting: RequestQueue, settings: DispatcherSettings, now: float
) -> bool:
    """Whether a late request may not stay, or one that becomes late finds no place there."""
    joining = 0 if tracked.late else tracked.queued
    return is_over(tracked.request, settings, now) or (
        joining > 0 and not has_place(joining, tracked.flow, waiting, settings)
    )
