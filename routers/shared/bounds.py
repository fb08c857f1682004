"""How many rows may wait, and until when?

Bounds hold whatever controllers of admission would say, and are checked before those are asked
(`bound_reached`). A request that is no longer expected to meet its deadline may wait until then,
with `late="demote"` until it expires; always only while there is a place for it among the late rows
that wait. Unit: rows at one gateway. Retries of lost rows are not counted; they are at most as many
as lost replicas held.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from routers.api.requests import Reason, Request
from routers.api.settings import DispatcherSettings
from routers.estimates.groups import ReplicaGroups
from routers.state.flows import Flow
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest

# A request always finds a place while at most this many wait, however slow the model is.
MIN_ROWS: Final = 256
# No queue is longer, however fast the model is.
MAX_ROWS: Final = 65_536


class Bounds:
    """The bounds of one model's queue. `row_s`: what a row takes of a replica that is kept full;
    None: its part of a full batch."""

    def __init__(
        self, waiting: RequestQueue, groups: ReplicaGroups, settings: DispatcherSettings
    ) -> None:
        self.waiting, self.groups = waiting, groups
        self.row_s: Callable[[], float] | None = None
        self.adopt(settings)

    def adopt(self, settings: DispatcherSettings) -> None:
        """Go on under these settings. Numbers that are read for each request stand here."""
        self.settings, self.longest = settings, settings.bucket_edges[-1]
        self.max_rows, self.max_queue_s = settings.max_queue_rows, settings.admission.max_queue_s
        self.by_time = settings.queue_timeout_s is not None  # else by number alone


def max_rows(bounds: Bounds, rows: int) -> int:
    """Rows that may wait, with the `rows` of a new request: as many as the settings say.

    Without a number there: as many as this gateway's part of the running replicas could answer
    before the last row expires, between `MIN_ROWS` and `MAX_ROWS`. For batches, the rate is the
    predicted rows a second of full batches of the shortest length. For generation, it is tokens a
    second of a full replica over the mean tokens of the requests answered lately. A gateway's part
    is what other gateways lately left of the replicas. Without a running replica, the bound is that
    of one. Models of unknown cost have the settings' bound.
    """
    if not bounds.by_time:
        return bounds.max_rows
    row_s, groups, timeout_s = _row_s(bounds), bounds.groups, bounds.settings.queue_timeout_s
    if row_s <= 0.0 or timeout_s is None:
        return bounds.max_rows
    served = timeout_s * (groups.own_capacity if groups.capacity else 1.0) / row_s
    return max(MIN_ROWS + rows, int(min(MAX_ROWS, served)))


def _row_s(bounds: Bounds) -> float:
    """What a row takes of a replica that is kept full, reference seconds; 0.0: not known yet."""
    settings, group = bounds.settings, bounds.groups.reference
    if bounds.row_s is not None:
        return bounds.row_s()
    size = settings.fixed_size or settings.max_size
    return group.cost.predict(size, bounds.waiting.edges[0]) / size


def is_full(bounds: Bounds, tenant: str, weight: float, rows: int) -> bool:
    """Whether so many more rows of the tenant have no place. O(1)."""
    waiting = bounds.waiting
    if bounds.by_time and waiting.shares.rows <= MIN_ROWS:
        return False
    return waiting.is_full(tenant, weight, rows, max_rows(bounds, rows))


def bound_reached(bounds: Bounds, request: Request, now: float) -> Reason | None:
    """The bound that keeps the request from the queue; None: no bound does. Bounds that waiting
    cannot change come first."""
    waiting, lengths = bounds.waiting, request.lengths
    rows = len(lengths)
    longest = lengths[0] if rows == 1 else max(lengths)
    if longest > bounds.longest:
        return Reason.TOO_LONG
    if rows > bounds.max_rows:
        return Reason.TOO_LARGE
    if request.expires <= now:
        return Reason.EXPIRED
    if request.tenant_rows and waiting.rows_of(request.tenant) + rows > request.tenant_rows:
        return Reason.TENANT_FULL
    tenant, weight = request.tenant, request.weight
    if is_full(bounds, tenant, weight, rows):
        return Reason.QUEUE_FULL
    if bounds.max_queue_s == inf or not waiting.rows:
        return None
    max_s = bounds.max_queue_s * (bounds.groups.capacity or 1.0)
    if waiting.seconds > max_s:
        shares = waiting.shares
        if shares.seconds_of(tenant) > max_s * shares.part(tenant, weight):
            return Reason.QUEUE_FULL
    return None


# -- until when a late request may wait


def next_moment(tracked: TrackedRequest, now: float) -> float:
    """When the passing of time next changes what may become of the request: it turns late, reaches
    its deadline, or expires."""
    if not tracked.late:
        return tracked.latest_start
    request = tracked.request
    return request.deadline if now < request.deadline else request.expires


def is_over(request: Request, settings: DispatcherSettings, now: float) -> bool:
    """Whether the request's deadline has passed and settings let nothing wait beyond it."""
    return settings.late == "refuse" and request.deadline <= now


def keeps_its_place(tracked: TrackedRequest, settings: DispatcherSettings) -> bool:
    """Whether the request stays among the on-time ones until it expires, because a row of it waits
    that was lost with a replica: it was sent in time, and may have to wait for another replica. If
    another row of it turns out late when its turn comes, it is late all the same, because a request
    is late as a whole. Rows that came as suspects, and rows that the model failed on, do not count.
    O(rows)."""
    return settings.late == "demote" and any(
        row.isolated and row.losses and not row.failed and row.bucket is not None
        for row in tracked.rows
    )


def has_place(rows: int, flow: Flow, waiting: RequestQueue, settings: DispatcherSettings) -> bool:
    """Whether so many more rows may wait late: places are free, or the tenant has less than its
    share of them, whichever tenants have taken them."""
    most, tenant = settings.max_late_rows, flow.tenant
    if waiting.late_rows + rows <= most:
        return True
    shares = waiting.shares
    return shares.late_rows_of(tenant) + rows <= most * shares.part(tenant, flow.weight)


def is_refused(
    tracked: TrackedRequest, waiting: RequestQueue, settings: DispatcherSettings, now: float
) -> bool:
    """Whether a late request may not stay, or one that becomes late has no place among the late
    rows."""
    joining = 0 if tracked.late else tracked.queued
    return is_over(tracked.request, settings, now) or (
        joining > 0 and not has_place(joining, tracked.flow, waiting, settings)
    )
