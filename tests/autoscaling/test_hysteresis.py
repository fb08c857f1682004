"""When a number follows what is wanted."""

import json

from autoscaling.hysteresis import Hysteresis, Terms, Wants
from autoscaling.settings import PolicySettings

TERMS = Terms(down_window_s=600.0, pause_s=60.0, down_step=0.1)


def settled(want, until=1_000.0):
    """One that has wanted the same for as long."""
    own = Hysteresis(0.0)
    for second in range(0, int(until), 10):
        own.record(want, TERMS.down_window_s, float(second))
    return own


def wants(planned, firm=None, relaxed=None, spike=0):
    return Wants(planned, planned if firm is None else firm, relaxed or planned, spike)


def test_up_at_once_when_a_little_less_work_needs_it_too():
    assert Hysteresis(0.0).up(3, wants(5)) == 5


def test_within_the_dead_band_nothing_goes_up():
    assert Hysteresis(0.0).up(3, wants(4, firm=3)) == 3


def test_spike_goes_up_whatever_the_band_says():
    assert Hysteresis(0.0).up(3, wants(3, spike=7)) == 7


def test_down_waits_for_the_largest_want_of_the_window():
    own = settled(8)
    for second in range(1_000, 2_000, 10):
        own.record(4, TERMS.down_window_s, float(second))
        target = own.down(8, wants(4), TERMS, float(second))
        if target < 8:
            break
    assert second - 990 >= TERMS.down_window_s
    assert target == 7


def test_steps_are_a_share_of_what_runs():
    assert settled(10).down(50, wants(10), TERMS, 1_000.0) == 45
    assert settled(1).down(5, wants(1), TERMS, 1_000.0) == 4


def test_pause_after_a_change():
    own = settled(1)
    own.changed(990.0)
    assert own.down(5, wants(1), TERMS, 1_049.0) == 5
    assert own.down(5, wants(1), TERMS, 1_050.0) == 4


def test_nothing_goes_that_a_little_more_work_would_need():
    assert settled(1).down(2, wants(1, relaxed=2), TERMS, 1_000.0) == 2


def test_young_one_has_not_seen_a_window_yet():
    own = Hysteresis(0.0)
    own.record(1, TERMS.down_window_s, 0.0)
    assert own.down(5, wants(1), TERMS, 599.0) == 5


def test_what_a_spike_added_goes_at_once_down_to_what_plans_wanted():
    own = settled(4)
    target = own.up(4, wants(4, spike=15))
    own.changed(1_000.0)
    assert target == 15
    assert own.down(15, wants(4, relaxed=5), TERMS, 1_060.0) == 5
    own.changed(1_060.0)
    assert own.down(5, wants(4), TERMS, 1_061.0) == 5


def test_pause_follows_the_time_to_capacity():
    assert Terms.of(PolicySettings(), 300.0) == Terms(1_200.0, 600.0, 0.1)
    assert Terms.of(PolicySettings(down_window_s=30.0), 1.0).pause_s == 30.0


def test_saved_window_still_holds():
    own, other = settled(8), Hysteresis(50.0)
    own.record(3, TERMS.down_window_s, 1_000.0)
    other.load(json.loads(json.dumps(own.save(1_000.0))), 50.0)
    assert other.down(8, wants(3), TERMS, 100.0) == 8
    assert own.down(8, wants(3), TERMS, 1_050.0) == 8


def test_window_is_kept_in_few_values():
    own = Hysteresis(0.0)
    for second in range(5_000):
        own.record(5 + second % 3, TERMS.down_window_s, float(second))
    assert len(own._peaks) <= 3
