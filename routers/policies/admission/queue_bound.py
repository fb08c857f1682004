"""How many rows may wait?

As many as the settings say. Without a number there: as many as this gateway's part of the running
replicas could answer before the last row expires (the model's timeout times rows a second). Rows
behind those would wait in vain. For batches, the rate is the predicted rows a second of full
batches of the shortest length. For generation, it is tokens a second of a full replica over the
mean tokens of the requests answered lately. A gateway's part is what other gateways lately left of
the replicas. Without a running replica, the bound is that of one. Models of unknown cost have the
settings' bound. That bound lies between `MIN_ROWS` and `MAX_ROWS`. Unit: rows at one gateway.
Retries of lost rows are not counted; they are at most as many as lost replicas held.
`bound_reached` also checks the other bounds that hold whatever controllers would say.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from routers.api.requests import Reason, Request
from routers.api.settings import DispatcherSettings
from routers.estimates.groups import ReplicaGroups
from routers.state.request_queue import RequestQueue

# A request always finds a place while at most this many wait, however slow the model is.
MIN_ROWS: Final = 256
# No queue is longer, however fast the model is.
MAX_ROWS: Final = 65_536


class BoundView:
    """What bounds look at. `row_s`: what a row takes of a replica that is kept full; None: its part
    of a full batch."""

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


def max_rows(view: BoundView, rows: int) -> int:
    """Rows that may wait, with the `rows` of a new request."""
    if not view.by_time:
        return view.max_rows
    row_s, groups, timeout_s = _row_s(view), view.groups, view.settings.queue_timeout_s
    if row_s <= 0.0 or timeout_s is None:
        return view.max_rows
    served = timeout_s * (groups.own_capacity if groups.capacity else 1.0) / row_s
    return max(MIN_ROWS + rows, int(min(MAX_ROWS, served)))


def _row_s(view: BoundView) -> float:
    """What a row takes of a replica that is kept full, reference seconds; 0.0: not known yet."""
    settings, group = view.settings, view.groups.reference
    if view.row_s is not None:
        return view.row_s()
    size = settings.fixed_size or settings.max_size
    return group.cost.predict(size, view.waiting.edges[0]) / size


def is_full(view: BoundView, tenant: str, weight: float, rows: int) -> bool:
    """Whether so many more rows of the tenant have no place. O(1)."""
    waiting = view.waiting
    if view.by_time and waiting.shares.rows <= MIN_ROWS:
        return False
    return waiting.is_full(tenant, weight, rows, max_rows(view, rows))


def bound_reached(view: BoundView, request: Request, now: float) -> Reason | None:
    """The bound that keeps the request from the queue; None: no bound does. Bounds that waiting
    cannot change come first."""
    waiting, lengths = view.waiting, request.lengths
    rows = len(lengths)
    longest = lengths[0] if rows == 1 else max(lengths)
    if longest > view.longest:
        return Reason.TOO_LONG
    if rows > view.max_rows:
        return Reason.TOO_LARGE
    if request.expires <= now:
        return Reason.EXPIRED
    if request.tenant_rows and waiting.rows_of(request.tenant) + rows > request.tenant_rows:
        return Reason.TENANT_FULL
    tenant, weight = request.tenant, request.weight
    if is_full(view, tenant, weight, rows):
        return Reason.QUEUE_FULL
    if view.max_queue_s == inf or not waiting.rows:
        return None
    max_s = view.max_queue_s * (view.groups.capacity or 1.0)
    if waiting.seconds > max_s:
        shares = waiting.shares
        if shares.seconds_of(tenant) > max_s * shares.part(tenant, weight):
            return Reason.QUEUE_FULL
    return None
