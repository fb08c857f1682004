"""Which row does a stream replica take next, one that batches by itself and takes rows singly?

The flow with the lowest start tag, and of its buckets the one whose turn it is, as for batches. A
row for which there is no room waits, and room is saved for it: of what is freed at one replica,
half. Rows that fit beside what has been saved pass it meanwhile, so that neither waits for the
other: a chat not for the cache that a document needs, nor a document until no chat comes any more.
A long prompt waits while others as long are being read; nothing is saved for it, since it needs no
room but its turn.
"""

from __future__ import annotations

from routers.buckets import Bucket
from routers.lanes import Lane
from routers.offers import Offer
from routers.requests import Requests
from routers.tickets import Row
from routers.types import Action, Reason

_FLOWS = 4  # whose rows may pass one that has no room, the lowest tags


def next_row(
    requests: Requests, lane: Lane, offer: Offer, now: float, actions: list[Action]
) -> Row | None:
    """Still queued; None when the replica may take none of those that were asked. Sets
    `requests.wants_room` to the first one, where room is what it lacks."""
    queue = lane.order.first()
    if queue is None:
        return None
    row = _head(requests, queue.in_turn(), now, actions)
    if row is None:  # it left: whose turn it is now is another question
        return next_row(requests, lane, offer, now, actions)
    if _takes(requests, offer, row):
        return row
    if row.ticket.plan is None:
        return None
    if not offer.has_room(row):
        requests.wants_room = requests.wants_room or row
    return _that_passes(requests, lane, offer, now, actions)


def _that_passes(
    requests: Requests, lane: Lane, offer: Offer, now: float, actions: list[Action]
) -> Row | None:
    for queue in lane.order.firsts(_FLOWS):
        for bucket in queue.by_turn():
            row = _head(requests, bucket, now, actions) if bucket.rows else None
            if row is not None and _takes(requests, offer, row):
                return row
    return None


def _head(requests: Requests, bucket: Bucket, now: float, actions: list[Action]) -> Row | None:
    """Its first row, or None if that had to leave just now."""
    row = bucket.head()
    assert row is not None
    ticket = row.ticket
    if not ticket.late and requests.sheds(ticket, now, actions):
        return None
    plan, most = ticket.plan, requests.largest
    if plan is not None and plan.room > most > 0.0:
        if plan.prompt >= most:
            requests.evict(ticket, Reason.TOO_LONG, actions)
            return None
        plan.reserve = most - plan.prompt  # the replica that would have held more is gone
    return row


def _takes(requests: Requests, offer: Offer, row: Row) -> bool:
    generations = requests.generations
    if generations is None or row.ticket.plan is None:
        return offer.fits(row)
    settings = generations.settings
    return offer.fits(row) and offer.reads(row, settings.long_tokens, settings.max_long_tokens)
