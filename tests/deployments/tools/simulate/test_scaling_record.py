"""Hours, changes and times to capacity of a simulated run."""

from __future__ import annotations

import pytest

from autoscaling.types import GroupTarget, ModelDecision, Reason
from deployments.tools.simulate.fleet import Fleet
from deployments.tools.simulate.scaling import ScalingRecord
from routers.simulation.devices import SimDevice


class Run:
    """A fleet and its record, second by second."""

    def __init__(self, begin_s=0.0, end_s=1000.0):
        self.fleet = Fleet(self._make, lambda: 10.0)
        self.record = ScalingRecord(begin_s, end_s)
        self.now = 0.0
        list(self.fleet.begin("", 1))

    @staticmethod
    def _make(group, name, number, serves_s):
        return SimDevice(name, lambda rows, width: 0.01, joins_at=serves_s)

    def hold(self, target, seconds, decided=True):
        for _ in range(seconds):
            for order in self.fleet.follow("", target, self.now):
                if hasattr(order, "replica_id"):
                    self.fleet.left(order.replica_id)
            groups = (GroupTarget("", target, target),)
            decision = ModelDecision("m", groups, Reason.STEADY, "why", 1.5, 2.0)
            self.record.tick(self.now, decision if decided else None, self.fleet, None)
            self.now += 1.0
        return self


def test_replicas_count_from_their_order():
    run = Run().hold(1, 101).hold(2, 100)
    assert run.record.replica_hours == pytest.approx((100 + 200) / 3600, rel=0.01)


def test_only_the_measured_time_counts():
    run = Run(begin_s=100.0, end_s=200.0).hold(1, 100).hold(2, 300)
    assert run.record.replica_hours == pytest.approx(2 * 100 / 3600)
    assert len(run.record.moments) == 100


def test_time_to_capacity_is_from_the_rise_until_as_many_serve():
    run = Run().hold(1, 50).hold(3, 50)
    assert run.record.to_capacity_s == [10.0]
    assert run.record.as_json()["to_capacity_longest_s"] == 10.0


def test_a_run_without_a_rise_has_no_time_to_capacity():
    assert Run().hold(1, 50).record.as_json()["to_capacity_median_s"] is None


def test_a_change_against_the_one_before_is_a_reversal_for_ten_minutes():
    run = Run(end_s=5000.0).hold(1, 50).hold(2, 100).hold(3, 100).hold(2, 700).hold(3, 50)
    assert [each.target for each in run.record.changes] == [2, 3, 2, 3]
    assert run.record.reversals == 1  # 700 s later it is another matter


def test_moments_are_thinned_to_hundreds():
    run = Run(end_s=3000.0).hold(1, 3000)
    assert len(run.record.moments) == 600
    series = run.record.as_json()["time_series"]
    assert series["every_s"] == 5.0
    assert series["offered"][:2] == [1.5, 1.5]
    assert set(series["hot"]) == {1}


def test_time_without_a_decider_is_named():
    run = Run().hold(1, 10).hold(1, 5, decided=False)
    assert run.record.reasons == {"steady": 10, "nobody decides": 5}
    assert run.record.moments[-1].offered is None
