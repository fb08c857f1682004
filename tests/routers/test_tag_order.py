"""Items by tag, and a walk that takes their rows and charges their flows on the way."""

from __future__ import annotations

import random

import pytest

from routers.api.requests import Request
from routers.state.flows import Flow
from routers.state.lanes import Bucket, Lane
from routers.state.rows import Row, TrackedRequest

EDGE = 16


class Waiting:
    """A lane in which flows have so many rows each, all due at different times."""

    def __init__(self, *rows: int) -> None:
        self.lane = Lane(late=False, priority=0)
        self.flows = [Flow(f"t{number}", 0) for number in range(len(rows))]
        self.came = 0
        for flow, count in zip(self.flows, rows, strict=True):
            for _ in range(count):
                self.comes(flow)

    def comes(self, flow: Flow) -> None:
        self.came += 1
        request = Request(self.came, (3,), 0.0, self.came, self.came)
        tracked = TrackedRequest(request, flow, 0.0, self.came)
        self.lane.push(Row(tracked, 0, 3, self.came, EDGE, 0.5), 0.0)

    @property
    def order(self):
        return self.lane.length_classes[EDGE].order

    def take(self, row: Row, charge_s: float = 0.0) -> str:
        bucket = row.bucket
        assert isinstance(bucket, Bucket)
        bucket.discard(row)
        self.lane.left(row, bucket)
        row.tracked.flow.start += charge_s
        return row.tracked.flow.tenant

    def walk(self, rows: int, charge_s: float = 1.0) -> list[str]:
        """Tenants of the rows that are taken, each charged so much."""
        order, found = self.order, []
        order.begin_walk()
        while len(found) < rows and (row := order.next_row()) is not None:
            found.append(self.take(row, charge_s))
        order.end_walk()
        return found


def test_a_walk_follows_charges_on_the_way():
    waiting = Waiting(3, 3, 3)
    waiting.flows[1].start = 1.5
    waiting.lane.reorder(waiting.flows[1])
    assert waiting.walk(7) == ["t0", "t2", "t0", "t2", "t1", "t0", "t2"]
    assert waiting.walk(9) == ["t1", "t1"]
    assert waiting.walk(9) == []


def test_a_flow_without_rows_for_a_moment_keeps_its_place_among_equal_tags():
    waiting = Waiting(1, 2)
    assert waiting.walk(1, charge_s=0.0) == ["t0"]
    waiting.comes(waiting.flows[0])
    assert waiting.walk(3, charge_s=0.0) == ["t0", "t1", "t1"]


def test_a_flow_whose_charge_is_taken_back_keeps_its_place_among_equal_tags():
    waiting = Waiting(2, 2)
    order = waiting.order
    order.begin_walk()
    waiting.take(order.next_row(), 1.0)
    assert order.next_row().tracked.flow.tenant == "t1"
    order.end_walk()
    waiting.flows[0].start = 0.0
    waiting.lane.reorder(waiting.flows[0])
    assert waiting.walk(1) == ["t0"]


def test_next_items_stand_in_order_and_stay():
    waiting = Waiting(1, 1, 1)
    waiting.flows[0].start = 2.0
    order = waiting.order
    order.begin_walk()
    assert [each.flow.tenant for each in order.next_items(2)] == ["t1", "t2"]
    assert [each.flow.tenant for each in order.next_items(9)] == ["t1", "t2", "t0"]
    order.end_walk()
    assert order.first().flow.tenant == "t1"


@pytest.mark.parametrize("seed", range(20))
def test_walks_give_rows_of_the_lowest_tag_whatever_comes_between(seed):
    rng = random.Random(seed)
    waiting = Waiting(*[rng.randrange(4) for _ in range(8)])
    for flow in waiting.flows:
        flow.start = float(rng.randrange(3))
    for _ in range(30):
        for _ in range(rng.randrange(6)):
            waiting.comes(rng.choice(waiting.flows))
        order = waiting.order if EDGE in waiting.lane.length_classes else None
        if order is None:
            continue
        order.begin_walk()
        for _ in range(rng.randrange(8)):
            row = order.next_row()
            queues = waiting.lane.queues.items()
            lowest = min((flow.start for flow, queue in queues if queue.rows), default=None)
            assert (None if row is None else row.tracked.flow.start) == lowest
            if row is None:
                break
            waiting.take(row, rng.choice((0.0, 1.0, 1.0)))
        order.end_walk()
