"""What runs, added up."""

from autoscaling.observation import Observation
from autoscaling.types import GroupReading

SLOW = GroupReading("slow", hot=4, speed=0.5, unplaced_s=70.0, missing="CPU: 4")
FAST = GroupReading("fast", hot=1, speed=3.0, batch_p99_s=0.2)


def told(*groups, names=("slow", "fast"), at=10.0):
    runs = Observation()
    runs.take(groups, names, at)
    return runs


def test_nothing_said_is_stale():
    assert Observation().is_stale(0.0)
    assert not told(SLOW).is_stale(15.0)
    assert told(SLOW).is_stale(15.1)


def test_hot_replicas_add_up_by_speed():
    runs = told(SLOW, FAST)
    assert (runs.hot, runs.speed) == (5, 5.0)


def test_group_that_is_not_listed_is_left_out():
    assert told(SLOW, FAST, names=("fast",)).hot == 1


def test_slack_is_what_the_slowest_batches_leave_and_never_negative():
    runs = told(FAST)
    assert runs.slack_s(0.5, "fast") == 0.3
    assert runs.slack_s(0.1, "fast") == 0.0
    assert runs.slack_s(0.5, "unknown") == 0.5


def test_longest_without_a_place_is_named_beyond_the_limit():
    runs = told(SLOW, FAST)
    assert runs.is_unplaced("slow", 60.0)
    assert not runs.is_unplaced("slow", 70.0)
    assert runs.longest_unplaced(60.0) is SLOW
    assert runs.longest_unplaced(70.0) is None
    assert Observation().longest_unplaced(0.0) is None
