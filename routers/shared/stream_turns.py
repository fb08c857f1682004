"""Which row does a stream replica take next?

A stream replica runs an engine that batches by itself, so it takes rows one by one. As for batches,
the flow with the lowest start tag comes first, with the bucket whose turn it is.

- A row that has no room waits. One replica saves room for it: half of what is freed there.
- Meanwhile other rows that fit into the rest pass it. So a chat does not wait for the cache space
  that a document needs, and a document does not wait until no more chats come.
- A long prompt waits while other long prompts are being read. No room is saved for it, since it
  lacks only its turn.

`batcher` calls `next_row`.
"""

from __future__ import annotations

from routers.api.actions import Action
from routers.api.requests import Reason
from routers.shared.requests import RequestTable
from routers.state.formed_batch import ReplicaCapacity
from routers.state.lanes import Bucket, Lane
from routers.state.rows import Row

_FLOWS = 4  # flows, of the lowest tags, whose rows may pass a row that has no room


def next_row(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> Row | None:
    """The row to send, still queued; None: the replica may take none of the rows that were tried.
    Sets `requests.row_without_room` to the first row that lacked room. Evicts rows that no running
    replica can hold, and rows that the controllers shed at their turn."""
    lengths = capacity.lengths
    while (queue := lane.first(lengths)) is not None:
        row = _head_or_evict(requests, queue.in_turn(lengths), actions)
        if row is None:
            continue  # its request was evicted, so the next flow may be another one
        if not _may_take(requests, capacity, row):
            return _row_that_passes(requests, lane, capacity, row, now, actions)
        if not _is_shed(requests, row, now, actions):
            return row
    return None


def _row_that_passes(
    requests: RequestTable,
    lane: Lane,
    capacity: ReplicaCapacity,
    row: Row,
    now: float,
    actions: list[Action],
) -> Row | None:
    """A row that may pass `row`, which the replica may not take; None: there is none."""
    if row.tracked.plan is None:
        return None
    if not capacity.has_room(row) and row.tracked.plan.room <= capacity.whole:
        requests.row_without_room = requests.row_without_room or row
    for queue in lane.order.firsts(_FLOWS):
        for bucket in queue.by_turn(capacity.lengths):
            other = _head_or_evict(requests, bucket, actions) if bucket.rows else None
            if other is None or not _may_take(requests, capacity, other):
                continue
            if not _is_shed(requests, other, now, actions):
                return other
    return None


def _head_or_evict(requests: RequestTable, bucket: Bucket, actions: list[Action]) -> Row | None:
    """The bucket's first row; None: no running replica can hold even its prompt, and it was
    evicted."""
    row = bucket.head()
    assert row is not None
    plan, most = row.tracked.plan, requests.largest
    if plan is not None and plan.room > most > 0.0:
        if plan.prompt >= most:
            requests.evict(row.tracked, Reason.TOO_LONG, actions)
            return None
        plan.reserve = most - plan.prompt  # the larger replica that it was admitted for is gone
    return row


def _is_shed(requests: RequestTable, row: Row, now: float, actions: list[Action]) -> bool:
    """Whether the controllers shed the row's request now that its turn has come."""
    return not row.tracked.late and requests.sheds(row.tracked, now, actions)


def _may_take(requests: RequestTable, capacity: ReplicaCapacity, row: Row) -> bool:
    """Whether the replica has room for the row, and may read its prompt beside other long ones."""
    generations = requests.generations
    if generations is None or row.tracked.plan is None:
        return capacity.fits(row)
    settings = generations.settings
    return capacity.fits(row) and capacity.reads(
        row, settings.long_tokens, settings.max_long_tokens
    )
