"""Which rows form a batch of like lengths, in which none of them is late?

The flow with the lowest start tag leads, with its bucket that fills most of a batch, unless another
one has waited too long. Rows that cannot meet their deadline in a batch of most of what waits are
called late. With several groups of replicas, a group leaves to faster ones what those will have
finished sooner, and rows that only those can answer in time. Shorter rows ride with a batch where
that saves predicted device seconds, in which this policy is fair.

Sources: SFQ(D) over weighted flows; early drop by sliding window (Nexus, SOSP'19); spill-up and
merge-when-idle (BucketServe, arXiv 2507.17120), decided by predicted cost.
"""

from __future__ import annotations

from math import exp, inf
from typing import Final

from routers.estimates.batch_size import gap_s, pays_to_wait
from routers.policies.batching.types import (
    Batching,
    BatchView,
    BucketView,
    Choice,
    PartialBatch,
    hold,
    leave,
)

# A row is late unless it is in time in a batch of this share of the rows that could form one.
_EARLY_DROP: Final = 0.7
# Of the SLO: on-time work that waits, seconds a replica, up to which there is time for late rows
_LOW_LOAD: Final = 0.1


class RaggedBatching(Batching):
    """The default batching policy."""

    def choose(self, view: BatchView, now: float) -> Choice:
        bucket = _leading(view, now)
        edge, group, groups = bucket.edge, view.group, view.groups
        max_rows = view.max_rows(edge)
        held_until = _held_until(view, bucket, max_rows, now)
        if held_until is not None:
            return hold(held_until)
        if groups is not None and groups.finishes_sooner(
            group, bucket.rows, edge, view.ahead_s, now
        ):
            return leave(edge)
        late_before, elsewhere_from = -inf, inf
        if not view.late:
            late_before = now + _turnaround_s(view, bucket, max_rows)
            if groups is not None:
                elsewhere_from = groups.in_time_elsewhere_from(group, 1, edge, now)
        return Choice(
            edge,
            late_before=late_before,
            elsewhere_from=elsewhere_from,
            max_guests=group.sizes.part_rows(edge),
        )

    def riders(
        self, view: BatchView, batch: PartialBatch, edge: int, rows: int, tokens: int
    ) -> int:
        """All rows of that length, as many as fit, or none: what the batch grows by, as they are
        padded to its longest row, against what their own batch would shrink by."""
        if not view.trusted or view.others_idle:
            return 0
        sizes = batch.group.sizes
        count = min(rows, batch.room)
        mean = -(-tokens // rows)
        if sizes.pads:
            count -= max(0, batch.size + count - sizes.max_tokens // batch.longest)
        elif mean:
            count = min(count, (sizes.max_tokens - batch.tokens) // mean)
        if count <= 0:
            return 0
        grown_s = batch.predicted_s(count, count * mean)
        if grown_s > sizes.max_s():
            return 0
        saved_s = _saved_s(view, edge, rows, mean, count, grown_s)
        return count if grown_s - batch.predicted_s() <= saved_s else 0

    def backfills(self, view: BatchView, batch: PartialBatch, load_s: float) -> bool:
        """While on-time work leaves time for late rows. A device that always has on-time rows,
        though it is not overloaded, would otherwise not serve late rows before they expire. Also
        while only flows above their share keep the device busy."""
        if not view.trusted or view.others_idle:
            return False
        return batch.guests_left or load_s <= _LOW_LOAD * batch.group.settings.slo_s


def _leading(view: BatchView, now: float) -> BucketView:
    """The bucket that leads. Where the order compares rows (by deadline or arrival), that of the
    first row. Else the fullest, or the one whose shape the replica has loaded, while their turns
    are apart by less than loading another shape costs."""
    if not view.by_share:
        return view.lowest()
    buckets = view.buckets
    bucket = buckets[0] if len(buckets) == 1 else _fullest(view, now)
    switch_s = view.group.sizes.switch_s
    if switch_s > 0.0 and view.last_edge not in (0, bucket.edge):
        for loaded in buckets:
            if loaded.edge == view.last_edge and loaded.turn <= bucket.turn + switch_s:
                return loaded
    return bucket


def _fullest(view: BatchView, now: float) -> BucketView:
    """The bucket that fills most of a batch, over all flows; among equals the one whose turn is
    first. But a bucket whose turn comes before that one's leads if it would have waited too long
    once that batch was served."""
    sizes, buckets = view.group.sizes, view.buckets
    fullest, best = buckets[0], (inf, inf)
    for each in buckets:
        place = -min(1.0, each.rows / sizes.target(each.edge)), each.turn
        if place < best:
            fullest, best = each, place
    long_ago = now + sizes.full_s(fullest.edge) - sizes.max_passed_s
    leading = fullest
    for each in buckets:
        if each.turn < leading.turn and each.since() <= long_ago:
            leading = each
    return leading


def _held_until(view: BatchView, bucket: BucketView, max_rows: int, now: float) -> float | None:
    """Until when to wait for the bucket's next arrival; None: do not wait. Only the last idle
    replica waits, and no other replica takes those rows meanwhile."""
    group, edge, rows = view.group, bucket.edge, bucket.rows
    if view.late or view.idle is view.others_idle or group.settings.hold != "auto":
        return None
    gap = view.gaps.get(edge)
    if gap is None or gap.last is None or gap.mean_s == inf or rows >= max_rows:
        return None
    until = gap.last + 2.0 * gap.mean_s  # a row that has not come by then is not expected any more
    cost = group.cost
    in_time = until + cost.predict(rows + 1, edge, quantile=0.99) <= bucket.deadline()
    if now >= until or not in_time:
        return None
    alone_s, now_s = cost.predict(1, edge), cost.predict(rows, edge)
    waits = pays_to_wait(rows, gap.mean_s, alone_s, now_s, cost.predict(rows + 1, edge))
    return until if waits else None


def _turnaround_s(view: BatchView, bucket: BucketView, max_rows: int) -> float:
    """Predicted seconds, at the 99th percentile, to the end of a batch of most of the rows that it
    could hold. A row that is in time only in a smaller batch would keep the others waiting."""
    rows = max(1, int(_EARLY_DROP * min(max_rows, bucket.rows)))
    return view.starts_in_s + view.group.cost.predict(rows, bucket.edge, view.replica_id, 0.99)


def _saved_s(
    view: BatchView, edge: int, waiting: int, mean: int, count: int, meanwhile_s: float
) -> float:
    """Seconds by which the next batch of the `waiting` rows of that length, `mean` tokens each, is
    expected to shrink without `count` of them, if that batch comes after `meanwhile_s`. Its fixed
    part is saved only if no more rows come meanwhile, so buckets merge when little arrives and part
    when much does."""
    group = view.group
    width, cost = edge if group.sizes.pads else mean, group.cost
    own = min(waiting, group.sizes.target(edge))
    own_s = cost.predict(own, width)
    if waiting > count:
        return own_s - cost.predict(max(1, own - count), width)
    fixed_s = max(0.0, 2.0 * cost.predict(1, width) - cost.predict(2, width))
    others_come = 1.0 - exp(-meanwhile_s / gap_s(view.gaps, edge))
    return own_s - others_come * fixed_s
