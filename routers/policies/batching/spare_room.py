"""May shorter or late rows be added to the room that a batch has left?

Shorter rows are added where that saves device seconds: what the batch grows by, as they are padded
to its longest row, against what their own batch would shrink by. The fixed part of their own batch
is saved only if no more rows come to their bucket meanwhile, so buckets merge when little arrives
and part when much does. Unit: predicted device seconds.

Source: spill-up and merge-when-idle (BucketServe, arXiv 2507.17120), decided by predicted cost.
"""

from __future__ import annotations

from math import exp, inf
from typing import Final

from routers.estimates.batch_size import gap_s
from routers.policies.batching.draft import Draft, Turns
from routers.policies.batching.view import QueueView
from routers.state.lanes import LengthClass, bucket_of

# Of the SLO: on-time work that waits, seconds a replica, up to which there is time
_LOW_LOAD: Final = 0.1


def shorter_riders(view: QueueView, draft: Draft) -> None:
    """Add rows of shorter length classes that the replica may take to the draft, the longest
    first."""
    length_classes, lengths = draft.lane.length_classes, draft.capacity.lengths
    if draft.room <= 0 or len(length_classes) < 2:
        return
    shorter = [
        edge
        for edge, length_class in length_classes.items()
        if length_class.rows and edge < draft.edge and (lengths is None or edge in lengths)
    ]
    for edge in sorted(shorter, reverse=True):
        length_class = length_classes[edge]
        count = _how_many(view, draft, length_class)
        if not count:
            continue
        turns = Turns(length_class.order, draft, view.order.ranking, bucket_of)
        for _ in range(count):
            row = turns.first()
            if row is None or not draft.holds(row):
                break
            turns.pass_by(row)
            draft.take(row)


def _how_many(view: QueueView, draft: Draft, length_class: LengthClass) -> int:
    """Rows to add of the length class: all of them, as many as fit, or none."""
    settings = draft.capacity.group.settings
    count = min(length_class.rows, draft.room)
    mean = -(-length_class.tokens // length_class.rows)
    rows = len(draft.rows) + count
    if settings.pads:
        count -= max(0, rows - settings.max_tokens // draft.longest)
    elif mean:
        count = min(count, (settings.max_tokens - draft.total) // mean)
    if count <= 0:
        return 0
    grown_s = draft.predicted_s(count, count * mean)
    if grown_s > draft.capacity.group.sizes.max_s():
        return 0
    saved_s = _saved_s(view, draft, length_class, count, grown_s)
    return count if grown_s - draft.predicted_s() <= saved_s else 0


def _saved_s(
    view: QueueView, draft: Draft, length_class: LengthClass, count: int, meanwhile_s: float
) -> float:
    """Seconds by which the length class's own next batch is expected to shrink without `count` of
    its rows, if that batch comes after `meanwhile_s`."""
    group = draft.capacity.group
    width = (
        length_class.edge if view.settings.pads else -(-length_class.tokens // length_class.rows)
    )
    predict = group.cost.predict
    own = min(length_class.rows, group.sizes.target(length_class.edge))
    if length_class.rows > count:
        return predict(own, width) - predict(max(1, own - count), width)
    fixed_s = max(0.0, 2.0 * predict(1, width) - predict(2, width))
    others_come = 1.0 - exp(-meanwhile_s / gap_s(view.gaps, length_class.edge))
    return predict(own, width) - others_come * fixed_s


def backfill(view: QueueView, draft: Draft, now: float) -> None:
    """Add late rows of the same bucket to the draft, while on-time work leaves time for them. A
    device that always has on-time rows, though it is not overloaded, would otherwise not serve late
    rows before they expire. Late rows of flows that are not above their share are also added while
    only flows above theirs keep the device busy."""
    waiting, lane = view.waiting, draft.lane
    if lane.late or draft.room <= 0 or len(waiting.late) <= lane.priority:
        return
    length_class = waiting.late[lane.priority].length_classes.get(draft.edge)
    if length_class is None or not length_class.rows:
        return
    if draft.max_start == inf and _load_s(view, draft) > _LOW_LOAD * view.settings.slo_s:
        return
    deadline = min([row.tracked.request.deadline for row in draft.rows])
    due_s = deadline - now - draft.capacity.starts_in_s
    turns = Turns(length_class.order, draft, view.order.ranking, bucket_of)
    while draft.room > 0 and (row := turns.first()) is not None:
        if not draft.holds(row) or draft.start(row.tracked.flow) > draft.max_start:
            return
        if draft.predicted_s(1, row.length, quantile=0.99) > due_s:
            return
        turns.pass_by(row)
        draft.take(row)


def _load_s(view: QueueView, draft: Draft) -> float:
    """Predicted seconds of on-time work that waits, for each running replica, once the rows of this
    draft have left."""
    riders_s = sum([row.cost_s for row in draft.rows if row.bucket is not None])
    return (view.waiting.on_time_s - riders_s) / (view.groups.capacity or 1.0)
