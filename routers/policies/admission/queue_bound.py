"""How many rows may wait?

As many as settings say. Where settings name no number: as many as the running replicas could answer
before the last of them expires, that is the model's timeout times the predicted rows a second of
full batches of the shortest length. Rows behind those would wait in vain. A request always finds a
place while no more than `LEAST_ROWS` wait, however slow the model is, and no queue is longer than
`MOST_ROWS`, however fast. While no replica runs, the bound is that of one. Models that generate,
and models whose costs are not known yet, have the bound of the settings. Retries of lost rows are
not counted; they are at most as many as lost replicas held. Unit: rows at one gateway.

`bound_reached` also checks the other bounds that keep a request from the queue whatever controllers
would say.
"""

from __future__ import annotations

from math import inf

from routers.api.requests import Reason, Request
from routers.api.settings import DispatcherSettings
from routers.estimates.groups import ReplicaGroups
from routers.state.request_queue import RequestQueue

LEAST_ROWS = 256
MOST_ROWS = 65_536


def most_rows(settings: DispatcherSettings, groups: ReplicaGroups, edge: int, rows: int) -> int:
    """Rows that may wait, with the `rows` of a new request. `edge`: of the shortest bucket."""
    group = groups.reference
    if settings.queue_timeout_s is None or group.engine is not None:
        return settings.max_queue_rows
    size = settings.fixed_size or settings.max_size
    batch_s = group.cost.predict(size, edge)
    if batch_s <= 0.0:
        return settings.max_queue_rows
    served = settings.queue_timeout_s * (groups.capacity or 1.0) * size / batch_s
    return max(LEAST_ROWS + rows, min(MOST_ROWS, int(served)))


def is_full(
    tenant: str,
    weight: float,
    rows: int,
    waiting: RequestQueue,
    settings: DispatcherSettings,
    groups: ReplicaGroups,
) -> bool:
    """Whether so many more rows of the tenant have no place. O(1)."""
    if settings.queue_timeout_s is not None and waiting.shares.rows <= LEAST_ROWS:
        return False
    most = most_rows(settings, groups, waiting.edges[0], rows)
    return waiting.is_full(tenant, weight, rows, most)


def bound_reached(
    request: Request,
    waiting: RequestQueue,
    settings: DispatcherSettings,
    groups: ReplicaGroups,
    now: float,
) -> Reason | None:
    """The bound that keeps the request from the queue; None: no bound does. Bounds that waiting
    cannot change come first."""
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
    if is_full(tenant, weight, rows, waiting, settings, groups):
        return Reason.QUEUE_FULL
    most_s = settings.admission.max_queue_s * (groups.capacity or 1.0)
    if most_s < inf and waiting.rows and waiting.seconds > most_s:
        shares = waiting.shares
        if shares.seconds_of(tenant) > most_s * shares.part(tenant, weight):
            return Reason.QUEUE_FULL
    return None
