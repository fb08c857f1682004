"""Rows in buckets, and what stands in a lane."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routers.api.requests import Request
from routers.state.flows import Flow
from routers.state.lanes import Bucket, FlowQueue, Lane
from routers.state.rows import Row, TrackedRequest

FLOW = Flow("a", 0)


def a_bucket():
    return Bucket(FlowQueue(Lane(late=False, priority=0), FLOW), FLOW, 16)


def a_row(order, deadline):
    request = Request(order, (3,), 0.0, deadline, deadline)
    return Row(TrackedRequest(request, FLOW, 0.0, deadline), 0, 3, order, 16, 0.5)


MOVES = st.one_of(
    st.tuples(st.just("push"), st.sampled_from((0.0, 1.0, 2.0, 3.0))),
    st.tuples(st.just("pop"), st.just(0.0)),
    st.tuples(st.just("leave"), st.sampled_from((0.0, 0.5, 1.0))),
    st.tuples(st.just("come back"), st.just(0.0)),
    st.tuples(st.just("tidy"), st.just(0.0)),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(MOVES, max_size=80))
def test_head_is_the_earliest_deadline_and_of_equal_ones_who_came_first(moves):
    bucket, waiting, taken = a_bucket(), [], []
    for order, (move, number) in enumerate(moves):
        if move == "push":
            waiting.append(a_row(order, number))
            bucket.push(waiting[-1])
        elif move == "pop" and waiting:
            assert bucket.head() is waiting[0]
            taken.append(waiting.pop(0))
            bucket.discard(taken[-1])
        elif move == "leave" and waiting:
            taken.append(waiting.pop(int(number * (len(waiting) - 1))))
            bucket.discard(taken[-1])
        elif move == "come back" and taken:
            waiting.append(taken.pop(0))
            bucket.push(waiting[-1])
        elif move == "tidy":
            bucket.tidy()
        waiting.sort(key=lambda row: (row.tracked.request.deadline, row.order))
        assert bucket.head() is (waiting[0] if waiting else None)
        assert bucket.live() == waiting
        assert (bucket.rows, bucket.tokens) == (len(waiting), 3 * len(waiting))
        assert bucket.waiting_s == 0.5 * len(waiting)


def test_bucket_remembers_no_more_than_twice_its_rows():
    bucket, rows = a_bucket(), [a_row(order, float(order % 7)) for order in range(1000)]
    for row in rows:
        bucket.push(row)
    for row in rows[:-1]:
        bucket.discard(row)
        assert len(bucket.line) + len(bucket.heap) <= 2 * bucket.rows + 32
    bucket.discard(rows[-1])
    assert not bucket.line
    assert not bucket.heap


def a_queue(**waiting_s):
    """One flow's buckets by edge, `e16=0.5`: so many seconds wait there."""
    queue = FlowQueue(Lane(late=False, priority=0), Flow("a", 0))
    for name, seconds in waiting_s.items():
        queue.bucket(int(name[1:])).waiting_s = seconds
    return queue


@pytest.mark.parametrize(
    ("newcomer_s", "waiting_s", "expected"),
    [
        (0.0, {}, 0.0),
        (0.0, {"e16": 5.0}, 0.0),
        (1.0, {}, 1.0),
        (1.0, {"e16": 0.2, "e64": 5.0}, 2.2),
        (1.0, {"e32": 2.0, "e64": 3.0}, 6.0),
        (1.0, {"e32": 2.0, "e64": 4.0}, 6.0),
    ],
)
def test_buckets_by_turn_put_as_much_of_each_other_ahead(newcomer_s, waiting_s, expected):
    assert a_queue(**waiting_s).before_s(32, newcomer_s) == pytest.approx(expected)
