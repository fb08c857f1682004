"""Until when may a request wait that is no longer expected to meet its deadline?

Until its deadline. After the deadline it may wait no longer with `late="refuse"`, and until it
expires with `late="demote"`. Always only while there is a place for it among the late rows that
wait.

With `late="demote"`, a request whose row was lost with a replica stays among the on-time ones until
it expires: it was sent in time, and may have to wait for another replica before it is tried again.
If one of its other rows turns out late when its turn comes, it is late all the same, because a
request is late as a whole.
"""

from __future__ import annotations

from routers.api.requests import Request
from routers.api.settings import DispatcherSettings
from routers.state.flows import Flow
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest


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
    """Whether the request stays among the on-time ones because a row of it waits that was lost with
    a replica. Rows that came as suspects, and rows that the model failed on, do not count.
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
