"""Serve's part in a simulation: who starts, who goes first, and what a start takes."""

from __future__ import annotations

from random import Random

import pytest

from deployments.tools.simulate.fleet import Fleet, StartTime
from loadtests.traffic.scenario_scaling import StartPart
from routers.simulation.devices import SimDevice
from routers.simulation.running_set import Drain, Join

START_S = 10.0


def make(group, name, number, serves_s):
    return SimDevice(name, lambda rows, width: 0.01, joins_at=serves_s, group=group)


@pytest.fixture
def fleet():
    return Fleet(make, lambda: START_S)


def names(orders):
    return [
        ("join", each.device.replica_id) if isinstance(each, Join) else ("drain", each.replica_id)
        for each in orders
    ]


def test_those_at_the_start_serve_at_once(fleet):
    (order,) = fleet.begin("", 1)
    assert order.device.joins_at == 0.0
    assert fleet.counts("", 0.0).hot == 1
    assert fleet.newly_hot(0.0) == []  # nobody has seen that start


def test_more_are_started_at_once_and_serve_later(fleet):
    list(fleet.begin("", 1))
    orders = list(fleet.follow("", 3, 5.0))
    assert names(orders) == [("join", "r1"), ("join", "r2")]
    assert {each.device.joins_at for each in orders} == {5.0 + START_S}
    counts = fleet.counts("", 6.0)
    assert (counts.target, counts.hot, counts.starting) == (3, 1, 2)
    assert fleet.next_serves_s() == 15.0
    assert [life.name for life in fleet.newly_hot(15.0)] == ["r1", "r2"]
    assert fleet.newly_hot(16.0) == []
    assert fleet.counts("", 16.0).hot == 3


def test_no_change_is_no_order(fleet):
    list(fleet.begin("", 2))
    assert list(fleet.follow("", 2, 1.0)) == []


def test_of_too_many_the_newest_go_and_those_that_do_not_serve_first(fleet):
    list(fleet.begin("", 1))
    list(fleet.follow("", 2, 1.0))
    list(fleet.follow("", 3, 5.0))
    assert names(fleet.follow("", 2, 12.0)) == [("drain", "r2")]  # r1 serves by now
    assert names(fleet.follow("", 1, 30.0)) == [("drain", "r1")]
    assert names(fleet.follow("", 0, 31.0)) == [("drain", "r0")]


def test_one_that_drains_counts_until_it_has_left(fleet):
    list(fleet.begin("", 2))
    assert [type(each) for each in fleet.follow("", 1, 1.0)] == [Drain]
    assert fleet.counts("", 2.0).draining == 1
    assert len(fleet.all()) == 2
    assert list(fleet.follow("", 1, 2.0)) == []
    fleet.left("r1")
    assert fleet.counts("", 3.0).draining == 0


def test_one_that_drains_is_not_taken_back(fleet):
    list(fleet.begin("", 2))
    list(fleet.follow("", 1, 1.0))
    assert names(fleet.follow("", 2, 2.0)) == [("join", "r2")]


def test_one_that_was_lost_is_started_anew(fleet):
    list(fleet.begin("", 2))
    fleet.left("r0")
    assert names(fleet.follow("", 2, 4.0)) == [("join", "r2")]
    assert [life.name for life in fleet.serving(4.0)] == ["r1"]


def test_groups_are_counted_apart(fleet):
    list(fleet.begin("gpu", 1))
    list(fleet.begin("cpu", 2))
    assert names(fleet.follow("cpu", 3, 1.0)) == [("join", "cpu-3")]
    assert fleet.counts("gpu", 1.0).hot == 1


def test_start_times_have_the_given_median_and_90th_percentile():
    start_s = StartTime(StartPart(median_s=13, p90_s=20), Random(1))
    drawn = sorted(start_s() for _ in range(4001))
    assert drawn[2000] == pytest.approx(13, rel=0.05)
    assert drawn[3600] == pytest.approx(20, rel=0.05)


def test_a_start_time_without_scatter_is_its_median():
    start_s = StartTime(StartPart(median_s=5, p90_s=5), Random(1))
    assert [start_s() for _ in range(3)] == pytest.approx([5.0] * 3)


def test_a_90th_percentile_below_the_median_is_a_mistake():
    with pytest.raises(ValueError, match="at least the median"):
        StartPart(median_s=5, p90_s=4)
