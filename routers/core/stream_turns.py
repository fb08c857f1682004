"""Which row does a stream replica take next, one that batches by itself and takes rows singly?

The flow with the lowest start tag, and of its buckets the one whose turn it is, as for batches. A
row for which there is no room waits, and room is saved for it: of what is freed at one replica,
half. Rows that fit beside what has been saved pass it meanwhile, so that neither waits for the
other: a chat not for the cache that a document needs, nor a document until no chat comes any more.
A long prompt waits while others as long are being read; nothing is saved for it, since it needs no
room but its turn.
"""

from __future__ import annotations

from routers.api.actions import Action
from routers.api.requests import Reason
from routers.core.request_table import RequestTable
from routers.state.formed_batch import ReplicaCapacity
from routers.state.lanes import Bucket, Lane
from routers.state.rows import Row

_FLOWS = 4  # whose rows may pass one that has no room, the lowest tags


def next_row(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> Row | None:
    """Still queued; None when the replica may take none of those that were asked. Sets
    `requests.wants_room` to the first one, where room is what it lacks."""
    while (queue := lane.order.first()) is not None:
        row = _head(requests, queue.in_turn(), actions)
        if row is None:
            continue  # it left: whose turn it is now is another question
        if not _takes(requests, capacity, row):
            return _passes(requests, lane, capacity, row, now, actions)
        if not _sheds(requests, row, now, actions):
            return row
    return None


def _passes(
    requests: RequestTable,
    lane: Lane,
    capacity: ReplicaCapacity,
    row: Row,
    now: float,
    actions: list[Action],
) -> Row | None:
    """One that may go before this one, which cannot be taken."""
    if row.tracked.plan is None:
        return None
    if not capacity.has_room(row) and row.tracked.plan.room <= capacity.whole:
        requests.wants_room = requests.wants_room or row
    for queue in lane.order.firsts(_FLOWS):
        for bucket in queue.by_turn():
            other = _head(requests, bucket, actions) if bucket.rows else None
            if other is None or not _takes(requests, capacity, other):
                continue
            if not _sheds(requests, other, now, actions):
                return other
    return None


def _head(requests: RequestTable, bucket: Bucket, actions: list[Action]) -> Row | None:
    """Its first row, or None if that had to leave: what no running replica can hold."""
    row = bucket.head()
    assert row is not None
    plan, most = row.tracked.plan, requests.largest
    if plan is not None and plan.room > most > 0.0:
        if plan.prompt >= most:
            requests.evict(row.tracked, Reason.TOO_LONG, actions)
            return None
        plan.reserve = most - plan.prompt  # the replica that would have held more is gone
    return row


def _sheds(requests: RequestTable, row: Row, now: float, actions: list[Action]) -> bool:
    return not row.tracked.late and requests.sheds(row.tracked, now, actions)


def _takes(requests: RequestTable, capacity: ReplicaCapacity, row: Row) -> bool:
    generations = requests.generations
    if generations is None or row.tracked.plan is None:
        return capacity.fits(row)
    settings = generations.settings
    return capacity.fits(row) and capacity.reads(
        row, settings.long_tokens, settings.max_long_tokens
    )
