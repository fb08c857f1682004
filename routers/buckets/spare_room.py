"""Should shorter rows ride in a batch that has room, instead of waiting for one of their own?

They should where device seconds fall by it: what the batch grows by, padded to its longest, against
what their own batch would shrink by. Its fixed part is saved only if no more rows come to that
bucket meanwhile, so buckets merge when little arrives and part when much does (counting it as saved
always cost 1 to 3 % of the answers in time near saturation). Packed and fixed-shape backends, where
a shorter row adds next to nothing, fill every batch. Longest row and bound in seconds stay what
they are; the nearest shorter bucket is asked first; fair between flows as any other batch.

Source: spill-up and merge-when-idle (BucketServe, arXiv 2507.17120), decided by predicted cost.
"""

from __future__ import annotations

from math import exp, inf

from routers.batch_builder import BatchBuilder
from routers.lanes import LengthClass
from routers.request_table import RequestTable

_EASY = 0.1  # of the SLO: waiting on-time work, in seconds a replica, below which there is time


def fill_spare_room(requests: RequestTable, draft: BatchBuilder) -> None:
    shelves = draft.lane.shelves
    if draft.room <= 0 or len(shelves) < 2:
        return
    shorter = [edge for edge, shelf in shelves.items() if shelf.rows and edge < draft.edge]
    for edge in sorted(shorter, reverse=True):
        shelf = shelves[edge]
        count = _how_many(requests, draft, shelf)
        for _ in range(count):
            bucket = shelf.order.first()
            row = bucket.head() if bucket is not None else None
            if row is None or not draft.holds(row):
                break
            draft.take(row)


def _how_many(requests: RequestTable, draft: BatchBuilder, shelf: LengthClass) -> int:
    """All of the shelf's rows, as many as fit, or none."""
    settings = requests.settings
    count = min(shelf.rows, draft.room)
    mean = -(-shelf.tokens // shelf.rows)
    rows = len(draft.rows) + count
    if settings.pads:
        count -= max(0, rows - settings.max_tokens // draft.longest)
    elif mean:
        count = min(count, (settings.max_tokens - draft.total) // mean)
    if count <= 0:
        return 0
    grown_s = draft.predicted_s(count, count * mean)
    if grown_s > requests.sizes.most_s():
        return 0
    return (
        count if grown_s - draft.predicted_s() <= _saved_s(requests, shelf, count, grown_s) else 0
    )


def _saved_s(requests: RequestTable, shelf: LengthClass, count: int, meanwhile_s: float) -> float:
    """What the shelf's own next batch is expected to take less without `count` of its rows, if it
    comes after `meanwhile_s`."""
    width = shelf.edge if requests.settings.pads else -(-shelf.tokens // shelf.rows)
    predict = requests.cost.predict
    own = min(shelf.rows, requests.sizes.target(shelf.edge))
    if shelf.rows > count:
        return predict(own, width) - predict(max(1, own - count), width)
    fixed_s = max(0.0, 2.0 * predict(1, width) - predict(2, width))
    others_come = 1.0 - exp(-meanwhile_s / requests.arrivals.gap_s(shelf.edge))
    return predict(own, width) - others_come * fixed_s


def take_late_along(requests: RequestTable, draft: BatchBuilder, now: float) -> None:
    """Late rows of the same bucket, while what waits on time leaves time for them: a device that is
    never without on-time rows, though not overloaded, would not serve them before they expire. Of
    flows that are not above their share, also while only those above theirs make it busy."""
    waiting, lane = requests.waiting, draft.lane
    if lane.late or draft.room <= 0 or len(waiting.late) <= lane.priority:
        return
    shelf = waiting.late[lane.priority].shelves.get(draft.edge)
    if shelf is None or not shelf.rows:
        return
    if draft.most_start == inf and requests.load_s() > _EASY * requests.settings.slo_s:
        return
    due = min([row.ticket.request.deadline for row in draft.rows]) - now - draft.offer.starts_in_s
    while draft.room > 0 and (bucket := shelf.order.first()) is not None:
        row = bucket.head()
        if row is None or not draft.holds(row) or bucket.flow.start > draft.most_start:
            return
        if draft.predicted_s(1, row.length, quantile=0.99) > due:
            return
        draft.take(row)
