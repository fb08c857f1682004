"""Which rows form the next batch, now that a replica can take one?

On-time rows before late ones. Within a lane: retried rows first, each alone on a replica that holds
nothing else (one that may take it gets nothing more until it has emptied); then the bucket whose
head has been passed over too long (oldest first), else the fullest relative to what one batch can
hold, ties to the oldest head; late rows by age alone. Rows are taken first in, first out, while
size and tokens allow, and always at least one. A stream replica takes one row, the oldest. Fair
between lengths, not between tenants; it never waits for a batch to fill. Source: token budgets on
padded size as in text-embeddings-inference.
"""

from __future__ import annotations

from routers.buckets import Bucket, Lane, Waiting
from routers.offers import Goods, Offer
from routers.requests import Requests
from routers.settings import DispatcherSettings
from routers.tickets import Row

_OVERDUE = 2.0  # above any fullness


def form_batch(requests: Requests, offer: Offer, now: float) -> Goods | None:
    """The rows for this replica, taken out of the queue; None when it may take none of them."""
    waiting, settings = requests.waiting, requests.settings
    for lane in (waiting.on_time, waiting.late):
        if not lane.rows:
            continue
        retried = lane.solo.head()
        if retried is not None and offer.allows(retried.avoid):
            return _alone(waiting, lane.solo, retried) if offer.may_try(retried) else None
        if lane.rows == lane.solo.rows:
            continue
        if offer.streams:
            bucket, head = _oldest(lane)
            return _alone(waiting, bucket, head) if offer.fits(head) else None
        bucket, _ = _oldest(lane) if lane.late else _fullest(lane, settings, now)
        return _fill(waiting, bucket, settings)
    return None


def _fullest(lane: Lane, settings: DispatcherSettings, now: float) -> tuple[Bucket, Row]:
    best: tuple[float, int, Bucket, Row] | None = None
    for bucket in lane.buckets:
        head = bucket.head()
        if head is None:
            continue
        overdue = now - head.ticket.queued_at >= settings.max_passed_over_s
        fullness = _OVERDUE if overdue else _fullness(bucket, settings)
        if best is None or (fullness, -head.order) > (best[0], -best[1]):
            best = (fullness, head.order, bucket, head)
    assert best is not None
    return best[2], best[3]


def _fullness(bucket: Bucket, settings: DispatcherSettings) -> float:
    """Share of one batch that what waits would fill, at most 1."""
    if settings.pads:
        return min(1.0, bucket.rows / bucket.fit)
    by_size, by_tokens = bucket.rows / settings.max_size, bucket.tokens / settings.max_tokens
    return min(1.0, max(by_size, by_tokens))


def _oldest(lane: Lane) -> tuple[Bucket, Row]:
    heads = [(head.order, bucket, head) for bucket in lane.buckets if (head := bucket.head())]
    _, bucket, head = min(heads, key=lambda found: found[0])
    return bucket, head


def _fill(waiting: Waiting, bucket: Bucket, settings: DispatcherSettings) -> Goods:
    pads, max_tokens, max_size = settings.pads, settings.max_tokens, settings.max_size
    rows: list[Row] = []
    longest = total = 0
    while len(rows) < max_size:
        row = bucket.head()
        if row is None:
            break
        length = row.length
        wider = length if length > longest else longest
        tokens = (len(rows) + 1) * wider if pads else total + length
        if rows and tokens > max_tokens:
            break
        waiting.take_head(bucket, row)
        rows.append(row)
        longest, total = wider, total + length
    return Goods(rows, longest if pads else -(-total // len(rows)), bucket.edge)


def _alone(waiting: Waiting, bucket: Bucket, row: Row) -> Goods:
    waiting.take_head(bucket, row)
    return Goods([row], row.length, waiting.edges[waiting.bucket_of(row.length)])
