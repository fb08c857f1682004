"""May shorter or late rows ride along in the room that a batch has left?

Shorter rows ride along where device seconds fall by it: what the batch grows by, padded to its
longest, against what their own batch would shrink by. Its fixed part is saved only if no more rows
come to that bucket meanwhile, so buckets merge when little arrives and part when much does. Source:
spill-up and merge-when-idle (BucketServe, arXiv 2507.17120), decided by predicted cost.
"""

from __future__ import annotations

from math import exp, inf

from routers.estimates.batch_size import gap_s
from routers.policies.batching.draft import Draft, Turns
from routers.policies.batching.view import QueueView
from routers.state.lanes import LengthClass, bucket_of

_EASY = 0.1  # of the SLO: waiting on-time work, in seconds a replica, below which there is time


def shorter_riders(view: QueueView, draft: Draft) -> None:
    """Into the draft, the longest of the shorter rows first."""
    length_classes = draft.lane.length_classes
    if draft.room <= 0 or len(length_classes) < 2:
        return
    shorter = [
        edge
        for edge, length_class in length_classes.items()
        if length_class.rows and edge < draft.edge
    ]
    for edge in sorted(shorter, reverse=True):
        length_class = length_classes[edge]
        turns = Turns(length_class.order, draft, view.order.ranking, bucket_of)
        for _ in range(_how_many(view, draft, length_class)):
            row = turns.first()
            if row is None or not draft.holds(row):
                break
            turns.pass_by(row)
            draft.take(row)


def _how_many(view: QueueView, draft: Draft, length_class: LengthClass) -> int:
    """All rows of the length class, as many as fit, or none."""
    settings = view.settings
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
    if grown_s > draft.capacity.group.sizes.most_s():
        return 0
    saved_s = _saved_s(view, draft, length_class, count, grown_s)
    return count if grown_s - draft.predicted_s() <= saved_s else 0


def _saved_s(
    view: QueueView, draft: Draft, length_class: LengthClass, count: int, meanwhile_s: float
) -> float:
    """What the length class's own next batch is expected to take less without `count` of its rows,
    if it comes after `meanwhile_s`."""
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


def late_riders(view: QueueView, draft: Draft, now: float) -> None:
    """Late rows of the same bucket into the draft, while what waits on time leaves time for them: a
    device that is never without on-time rows, though not overloaded, would not serve them before
    they expire. Of flows that are not above their share, also while only those above theirs make it
    busy."""
    waiting, lane = view.waiting, draft.lane
    if lane.late or draft.room <= 0 or len(waiting.late) <= lane.priority:
        return
    length_class = waiting.late[lane.priority].length_classes.get(draft.edge)
    if length_class is None or not length_class.rows:
        return
    if draft.most_start == inf and _load_s(view, draft) > _EASY * view.settings.slo_s:
        return
    deadline = min([row.tracked.request.deadline for row in draft.rows])
    due_s = deadline - now - draft.capacity.starts_in_s
    turns = Turns(length_class.order, draft, view.order.ranking, bucket_of)
    while draft.room > 0 and (row := turns.first()) is not None:
        if not draft.holds(row) or draft.start(row.tracked.flow) > draft.most_start:
            return
        if draft.predicted_s(1, row.length, quantile=0.99) > due_s:
            return
        turns.pass_by(row)
        draft.take(row)


def _load_s(view: QueueView, draft: Draft) -> float:
    """Predicted seconds of on-time work that waits, for each running replica, once those who ride
    along have left."""
    riders_s = sum([row.cost_s for row in draft.rows if row.queue is not None])
    return (view.waiting.on_time_s - riders_s) / (view.groups.capacity or 1.0)
