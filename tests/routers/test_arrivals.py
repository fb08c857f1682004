"""Requests become rows in the buckets of now, and leave behind how often they come."""

from math import inf

import pytest

from routers.api.requests import Request
from routers.api.settings import BucketSettings, DispatcherSettings, PolicyNames
from routers.estimates.batch_size import gap_s
from routers.estimates.groups import ReplicaGroups
from routers.policies.order import FairQueueing
from routers.shared.arrivals import Arrivals
from routers.state.flows import Flows
from routers.state.request_queue import RequestQueue

EDGES = (16, 64)
FOLLOWS = BucketSettings(adaptive=True, solve_every_s=1.0)


def arrivals(**settings):
    told = DispatcherSettings(EDGES, initial_cost_s=0.01, **settings)
    return Arrivals(told, RequestQueue(EDGES, Flows(FairQueueing())), ReplicaGroups(told))


def a_request(*lengths, **more):
    return Request(1, lengths, arrival=0.0, deadline=1.0, expires=5.0, **more)


def admitted(comes, *lengths, **more):
    tracked = comes.track(a_request(*lengths, **more), 0.0)
    comes.add_rows(tracked)
    return tracked


def test_each_row_stands_in_the_bucket_of_its_own_length():
    tracked = admitted(arrivals(), 16, 17, 64)
    assert [row.edge for row in tracked.rows] == [16, 64, 64]
    assert [row.index for row in tracked.rows] == [0, 1, 2]
    assert tracked.open == 3
    assert tracked.queued == 0


def test_rows_are_numbered_across_requests_in_the_order_they_came():
    comes = arrivals()
    first, second = (admitted(comes, 10, 10) for _ in range(2))
    orders = [row.order for row in (*first.rows, *second.rows)]
    assert orders == sorted(set(orders))


def test_latest_start_leaves_time_for_the_longest_row():
    comes = arrivals()
    for _ in range(50):
        comes._groups.reference.turnaround.observe(64, 0.4)
    short, long = comes.track(a_request(10), 0.0), comes.track(a_request(10, 60), 0.0)
    assert long.latest_start < short.latest_start < 1.0


def test_packed_rows_are_priced_by_their_own_length():
    padded, packed = arrivals(), arrivals(pads=False)
    whole = admitted(packed, 64).rows[0].cost_s
    assert admitted(packed, 32).rows[0].cost_s == pytest.approx(whole / 2)
    assert admitted(padded, 32).rows[0].cost_s == pytest.approx(whole)


@pytest.mark.parametrize("lengths", [(10,), (64,), (10, 64), (64, 10, 10)])
@pytest.mark.parametrize("pads", [True, False])
def test_request_is_priced_as_its_rows_are(lengths, pads):
    tracked = admitted(arrivals(pads=pads), *lengths)
    assert tracked.cost_s == pytest.approx(sum(row.cost_s for row in tracked.rows))
    assert tracked.edge == tracked.rows[0].edge


def test_gap_is_known_from_the_second_arrival_on():
    comes = arrivals()
    comes.note(16, 1.0)
    assert gap_s(comes.gaps, 16) == inf
    comes.note(16, 1.5)
    assert gap_s(comes.gaps, 16) == pytest.approx(0.5)
    assert gap_s(comes.gaps, 64) == inf


def test_edges_follow_the_lengths_that_come():
    comes = arrivals(buckets=FOLLOWS, policies=PolicyNames(edges="padding"))
    comes._groups.capacity = 1.0
    comes.follow((10,) * 600 + (60,) * 600, 0.0)
    assert comes._waiting.edges == EDGES
    comes.follow((10,), 1.0)
    assert 10 in comes._waiting.edges
    assert comes._waiting.edges[-1] == 64
