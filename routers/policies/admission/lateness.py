"""Until when may a request wait that can no longer be expected to meet its deadline?

Until its deadline; from there on with `late="refuse"` no longer, with `late="demote"` until it
expires; and always as long as the late rows that wait leave it a place. With `late="demote"` one
that a replica was lost with stays among those on time until it expires: it was sent in time, and
may have to wait for another replica before it is tried again. Unless it has further rows of which
one turns out late when its turn comes: a request is late as a whole.
"""

from __future__ import annotations

from routers.api.requests import Request
from routers.api.settings import DispatcherSettings
from routers.state.flows import Flow
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest


def next_moment(tracked: TrackedRequest, now: float) -> float:
    """When time changes what may become of it: it turns late, may wait no longer, expires."""
    if not tracked.late:
        return tracked.latest_start
    request = tracked.request
    return request.deadline if now < request.deadline else request.expires


def is_over(request: Request, settings: DispatcherSettings, now: float) -> bool:
    """Whether its deadline has passed and settings let nothing wait beyond that."""
    return settings.late == "refuse" and request.deadline <= now


def keeps_its_place(tracked: TrackedRequest, settings: DispatcherSettings) -> bool:
    """Whether rows of it wait that were lost with a replica; not those that come as suspects, nor
    those that the model failed on. O(rows)."""
    return settings.late == "demote" and any(
        row.retried and row.losses and not row.failed and row.queue is not None
        for row in tracked.rows
    )


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
