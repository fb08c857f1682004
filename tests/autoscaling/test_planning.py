"""Which minutes the forecast is told of."""

import pytest

from autoscaling.demand import Demand
from autoscaling.planning import Planning
from autoscaling.settings import PolicySettings
from autoscaling.types import DemandReading


class Story:
    """A gateway of even work, looked at each second."""

    def __init__(self):
        self.now, self.work = 0.0, 0.0
        self.demand, self.planning = Demand(), Planning(PolicySettings(), 0.0)

    def run(self, seconds, rate, silent=False, looked_at=True):
        for _ in range(seconds):
            self.now += 1.0
            self.work += rate
            if not silent:
                self.demand.on_report("a", DemandReading(self.work, self.work * 0.05), self.now)
            if looked_at:
                view = self.demand.view((8.0, 64.0), self.now)
                if view.fresh:
                    self.plan = self.planning.step(view, self.demand, 30.0, self.now)

    @property
    def known(self):
        return self.planning.forecast.save()["recent"]


def test_before_the_first_minute_the_plan_is_what_there_is():
    story = Story()
    story.run(30, 2.0)
    assert 2.0 < story.plan.planned_s < 2.3
    assert story.known == []


def test_each_minute_is_told_once():
    story = Story()
    story.run(301, 2.0)
    assert story.known == [pytest.approx(2.0)] * 5
    assert story.planning.forecast.minute == 5


def test_minute_of_silence_is_skipped_and_not_zero():
    story = Story()
    story.run(121, 2.0)
    story.run(180, 2.0, silent=True)
    story.run(180, 2.0)
    assert all(value == pytest.approx(2.0) for value in story.known)
    assert story.planning.forecast.minute == 8


def test_hour_without_decisions_moves_the_season_on():
    story = Story()
    story.run(61, 2.0)
    story.run(3600, 2.0, looked_at=False)
    story.run(1, 2.0)
    assert story.planning.forecast.minute == 61


def test_time_away_moves_the_season_on_too():
    story = Story()
    story.run(601, 2.0)
    other = Planning(PolicySettings(), 5_000.0)
    other.load(story.planning.save(story.now), 5_000.0 - 1_800.0)
    demand = Demand()
    for second in range(60):
        demand.on_report("b", DemandReading(2.0 * second), 5_000.0 + second)
    view = demand.view((8.0, 64.0), 5_059.0)
    other.step(view, demand, 30.0, 5_059.0)
    assert other.forecast.minute == 10 + 30 + 1
