"""How long starts take, by the state that they began in."""

import json

import pytest

from autoscaling.observation import DECISION_S, UNMEASURED_S, LadderStep, StartTimes
from autoscaling.types import StartReading, State


def start(seconds, began_in=State.COLD, phases=()):
    return StartReading("m", "", began_in, seconds, phases)


def test_unmeasured_start_has_a_default():
    assert StartTimes().time_to_capacity_s() == UNMEASURED_S + DECISION_S


def test_time_to_capacity_is_the_ninetieth_percentile():
    starts = StartTimes()
    for seconds in range(1, 21):
        starts.add(start(float(seconds)))
    assert starts.time_to_capacity_s() == 19.0 + DECISION_S
    assert starts.quantile_s(State.COLD, 0.5) == 11.0


def test_latest_state_is_the_one_that_counts():
    starts = StartTimes()
    starts.add(start(60.0))
    starts.add(start(2.0, State.STAGED))
    assert starts.time_to_capacity_s() == 2.0 + DECISION_S
    assert starts.quantile_s(State.COLD, 0.9) == 60.0


def test_only_the_last_thirty_two_count():
    starts = StartTimes()
    for seconds in [100.0] * 40 + [10.0] * 32:
        starts.add(start(seconds))
    assert starts.quantile_s(State.COLD, 0.99) == 10.0
    assert starts.ladder()[State.COLD].seen == 32


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), 1e6])
def test_what_is_no_start_is_left_out(wrong):
    starts = StartTimes()
    starts.add(start(wrong))
    assert starts.ladder() == {}


def test_phases_of_the_latest_are_kept_and_saved():
    starts, other = StartTimes(), StartTimes()
    starts.add(start(9.0, phases=(("process", 6.0), ("load", 3.0))))
    other.load(json.loads(json.dumps(starts.save())))
    phases = (("process", 6.0), ("load", 3.0))
    assert other.ladder() == {State.COLD: LadderStep(9.0, 9.0, 1, phases)}
    assert other.time_to_capacity_s() == starts.time_to_capacity_s()
