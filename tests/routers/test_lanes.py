"""What stands in a lane: how much of a flow goes before a newcomer."""

import pytest

from routers.flows import Flow
from routers.lanes import FlowQueue, Lane


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
