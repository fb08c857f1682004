"""Which row does a stream replica take next, and which replica should that row go to?

An engine batches by itself, so a replica takes rows one by one. As for batches, the flow with the
lowest start tag comes first, with the bucket whose turn it is.
- A row that has no room waits. One replica saves room for it: half of what is freed there.
- Meanwhile other rows that fit into the rest pass it. So a chat does not wait for the cache space
  that a document needs, and a document does not wait until no more chats come.
- A long prompt waits while other long prompts are being read. No room is saved for it.
The row goes to the replica with the least predicted seconds for it, counting only what differs: a
replica that knows its prompt or has its adapter is preferred by as much as that saves.
Source: Mooncake's conductor (FAST'25), Preble's E2 (ICLR'25).
"""

from __future__ import annotations

from typing import Final

from routers.api.actions import Action
from routers.api.requests import Reason
from routers.estimates.generations import GenerationPlan, Generations
from routers.state.lanes import Bucket, Lane, bucket_of
from routers.state.rows import Row
from routers.stream.lease import StreamReplica, StreamReplicas, StreamRoom, plan_of
from routers.stream.requests import StreamRequests

_FLOWS: Final = 4  # flows, of the lowest tags, whose rows may pass a row that has no room


class Turns:
    """The rows' turns. `row_without_room`: the first row for which the replica that was asked last
    had no room."""

    def __init__(self, requests: StreamRequests) -> None:
        self._requests = requests
        self.row_without_room: Row | None = None

    def next_row(
        self, room: StreamRoom, now: float, actions: list[Action]
    ) -> tuple[Row, Lane] | None:
        """The row that the replica takes, still queued, and the lane whose turn it is; None: it may
        take none of the rows that were tried. Evicts rows that no running replica can hold, and
        rows that the controllers shed at their turn."""
        requests, lengths = self._requests, room.lengths
        requests.waiting.reorder()
        self.row_without_room = None
        for lane in requests.waiting.lanes_in_turn(requests.settings.ageing_s, now):
            alone = lane.isolated.head() if lengths is None else lane.first_alone(lengths)
            if alone is not None and room.allows(alone):
                if room.has_room(alone):
                    lane.since = now
                    return alone, lane
                if plan_of(alone).room <= room.whole:
                    self.row_without_room = alone
            if lane.rows == lane.isolated.rows:
                continue  # nothing waits here but retried rows
            chosen = requests.waiting.lane_in_turn(lane, room.group, lengths)
            row = self._row_of(chosen, room, now, actions)
            if row is not None:
                bucket = bucket_of(row)
                bucket.queue.took_turn(bucket, row.cost_s)
                lane.since = now
                return row, chosen
            if self.row_without_room is not None:
                return None  # less urgent rows wait for the room that it lacks
        return None

    def _row_of(
        self, lane: Lane, room: StreamRoom, now: float, actions: list[Action]
    ) -> Row | None:
        lengths = room.lengths
        while (queue := lane.first(lengths)) is not None:
            row = self._head_or_evict(queue.in_turn(lengths), actions)
            if row is None:
                continue  # its request was evicted, so the next flow may be another one
            if not self._may_take(room, row):
                return self._row_that_passes(lane, room, row, now, actions)
            if not self._is_shed(row, now, actions):
                return row
        return None

    def _row_that_passes(
        self, lane: Lane, room: StreamRoom, row: Row, now: float, actions: list[Action]
    ) -> Row | None:
        """A row that may pass `row`, which the replica may not take; None: there is none."""
        if not room.has_room(row) and plan_of(row).room <= room.whole:
            self.row_without_room = self.row_without_room or row
        for queue in lane.order.firsts(_FLOWS):
            for bucket in queue.by_turn(room.lengths):
                other = self._head_or_evict(bucket, actions) if bucket.rows else None
                if other is None or not self._may_take(room, other):
                    continue
                if not self._is_shed(other, now, actions):
                    return other
        return None

    def _head_or_evict(self, bucket: Bucket, actions: list[Action]) -> Row | None:
        """The bucket's first row; None: no running replica can hold even its prompt, and it was
        evicted."""
        row = bucket.head()
        assert row is not None
        plan, most = plan_of(row), self._requests.largest
        if plan.room > most > 0.0:
            if plan.prompt >= most:
                self._requests.evict(row.tracked, Reason.TOO_LONG, actions)
                return None
            plan.reserve = most - plan.prompt  # the larger replica that admitted it is gone
        return row

    def _is_shed(self, row: Row, now: float, actions: list[Action]) -> bool:
        """Whether the controllers shed the row's request now that its turn has come."""
        return not row.tracked.late and self._requests.sheds(row.tracked, now, actions)

    def _may_take(self, room: StreamRoom, row: Row) -> bool:
        """Whether there is room for the row, and its prompt may be read beside other long ones."""
        settings = self._requests.generations.settings
        return room.has_room(row) and room.reads(
            row, settings.long_tokens, settings.max_long_tokens
        )


def preferred(
    replicas: StreamReplicas,
    generations: Generations,
    row: Row,
    best: StreamReplica,
    session: str | None,
) -> StreamReplica:
    """The replica to use. `best`: the one that its load puts first; `session`: id of the one that
    served the row's session last, None if there is none."""
    plan, settings = plan_of(row), generations.settings
    if (settings.affinity == "off" and not plan.adapter) or row.isolated:
        return best
    found, min_s = best, _seconds(generations, plan, best, session, best)
    names = _candidates(generations, plan, None if settings.affinity == "off" else session)
    if plan.adapter:
        holders = generations.adapters.holders(plan.adapter)
        if not any(_is_ready(replicas, name) for name in holders):
            holders = list(replicas.by_id)  # one of them loads it: the one that loses least by it
        names |= dict.fromkeys(holders)
    for name in names:
        replica = replicas.by_id.get(name)
        if replica is None or replica is best or not _is_ready(replicas, name):
            continue
        if row.edge > replica.group.longest:
            continue
        seconds = _seconds(generations, plan, replica, session, best)
        if seconds < min_s:
            room = replicas.room_of(replica)
            reads = room.reads(row, settings.long_tokens, settings.max_long_tokens)
            if reads and room.has_room(row):
                found, min_s = replica, seconds
    return found


def _is_ready(replicas: StreamReplicas, name: str) -> bool:
    replica = replicas.by_id.get(name)
    return replica is not None and not replica.unhealthy and replica in replicas.ready


def _candidates(
    generations: Generations, plan: GenerationPlan, session: str | None
) -> dict[str, None]:
    """Ids of the replicas that may know some of the prompt."""
    names = dict.fromkeys(generations.tree.matches(plan.blocks))
    if session:
        names[session] = None
    return names


def _seconds(
    generations: Generations,
    plan: GenerationPlan,
    replica: StreamReplica,
    session: str | None,
    best: StreamReplica,
) -> float:
    """Predicted seconds for this row on the replica, of the parts that differ between it and
    `best`."""
    apart_s = 0.0
    if replica.group is not best.group:
        apart_s = replica.engine.alone_s - best.engine.alone_s
    known = generations.known(
        plan, replica.spec.replica_id, session=replica.spec.replica_id == session
    )
    to_read = replica.reading + plan.prompt - known
    engine = replica.engine
    delay_by_others_s = engine.delay_by_others_s(len(replica.leases), replica.busy_share())
    steps = plan.output / plan.sequences
    has_s = generations.adapters.price_s(
        replica.spec.replica_id, plan.adapter, steps * engine.alone_s
    )
    return has_s + to_read * engine.prompt_s + steps * (delay_by_others_s + apart_s)
