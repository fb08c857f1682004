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
from dataclasses import dataclass
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


@dataclass(slots=True)
class BoundView:
    """What bounds look at."""

    waiting: RequestQueue
    groups: ReplicaGroups
    settings: DispatcherSettings
    # What a row takes of a replica that is kept full; None: its part of a full batch.
    row_s: Callable[[], float] | None = None


def max_rows(view: BoundView, rows: int) -> int:
    """Rows that may wait, with the `rows` of a new request."""
    settings, groups = view.settings, view.groups
    if settings.queue_timeout_s is None:
        return settings.max_queue_rows
    row_s = _row_s(view)
    if row_s <= 0.0:
        return settings.max_queue_rows
    served = settings.queue_timeout_s * (groups.own_capacity if groups.capacity else 1.0) / row_s
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
    if view.settings.queue_timeout_s is not None and waiting.shares.rows <= MIN_ROWS:
        return False
    return waiting.is_full(tenant, weight, rows, max_rows(view, rows))


def bound_reached(view: BoundView, request: Request, now: float) -> Reason | None:
    """The bound that keeps the request from the queue; None: no bound does. Bounds that waiting
    cannot change come first."""
    waiting, settings, groups = view.waiting, view.settings, view.groups
    lengths = request.lengths
    rows = len(lengths)
    longest = lengths[0] if rows == 1 else max(lengths)
    if longest > settings.bucket_edges[-1]:
        return Reason.TOO_LONG
    if rows > settings.max_queue_rows:
        return Reason.TOO_LARGE
    if request.expires <= now:
        return Reason.EXPIRED
    if request.tenant_rows and waiting.rows_of(request.tenant) + rows > request.tenant_rows:
        return Reason.TENANT_FULL
    tenant, weight = request.tenant, request.weight
    if is_full(view, tenant, weight, rows):
        return Reason.QUEUE_FULL
    max_s = settings.admission.max_queue_s * (groups.capacity or 1.0)
    if max_s < inf and waiting.rows and waiting.seconds > max_s:
        shares = waiting.shares
        if shares.seconds_of(tenant) > max_s * shares.part(tenant, weight):
            return Reason.QUEUE_FULL
    return None
