"""How many rows may wait?

As many as settings say, or where they name no number, as many as the running replicas could answer
before the last of them expires: the model's timeout times the rows a second of full batches of the
shortest length, as predicted. What came behind those would wait in vain. A request always finds a
place while no more than `LEAST_ROWS` wait, however slow the model; and no queue is longer than
`MOST_ROWS`, however fast. While no replica runs, one counts. Models that generate, and those whose
costs nobody knows yet, have the bound of the settings. Unit: rows at one gateway.
"""

from __future__ import annotations

from routers.api.settings import DispatcherSettings
from routers.estimates.groups import ReplicaGroups
from routers.state.request_queue import RequestQueue

LEAST_ROWS = 256
MOST_ROWS = 65_536


def most_rows(settings: DispatcherSettings, groups: ReplicaGroups, edge: int, rows: int) -> int:
    """Rows that may wait, the `rows` of a new request included; `edge`: of the shortest bucket."""
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
    """Whether so many rows more of the tenant have no place. O(1)."""
    if settings.queue_timeout_s is not None and waiting.rows <= LEAST_ROWS:
        return False
    most = most_rows(settings, groups, waiting.edges[0], rows)
    return waiting.is_full(tenant, weight, rows, most)
