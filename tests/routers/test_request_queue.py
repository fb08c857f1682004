"""What waits is told to other gateways at a cost that does not grow with the tenants."""

import pytest

from routers.policies.order import FairQueueing
from routers.state.flows import Flows
from routers.state.request_queue import RequestQueue


class Counted(dict):
    """Flows by key, and how many were looked at."""

    looked_at = 0

    def values(self):
        self.looked_at += len(self)
        return super().values()


def queue_of(flows, *, waiting=1):
    queue = RequestQueue((8,), Flows(FairQueueing()))
    queue.flows.alone = False
    queue.flows.by_key = Counted()
    for number in range(flows):
        flow = queue.flows.of(f"t{number}", 0, 1.0)
        flow.rows, flow.waiting_s = waiting, 0.5
    queue.rows = flows * waiting
    return queue


@pytest.mark.parametrize("flows", [1, 64])
def test_of_few_flows_what_waits_is_always_told_as_it_is(flows):
    queue = queue_of(flows)
    for seconds in (0.5, 0.25):
        for flow in queue.flows.by_key.values():
            flow.waiting_s = seconds
        assert queue.work() == tuple((0, f"t{n}", seconds) for n in range(flows))


def test_of_many_flows_few_are_looked_at_in_the_mean():
    queue = queue_of(6400)
    queue.flows.by_key.looked_at = 0
    for _ in range(1000):
        queue.work()
    assert queue.flows.by_key.looked_at <= 64 * 1000
    assert len(queue.work()) == 6400


def test_nothing_is_told_where_nothing_waits_or_nobody_hears():
    assert queue_of(6400, waiting=0).work() == ()
    alone = queue_of(3)
    alone.flows.alone = True
    assert alone.work() == ()
