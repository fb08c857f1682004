"""When a number follows what is wanted."""

import json
from itertools import pairwise

from autoscaling.hysteresis import Hysteresis, Terms, Wants
from autoscaling.settings import PolicySettings

TERMS = Terms(down_window_s=600.0, pause_s=60.0, down_step=0.1, hold_s=30.0)


def settled(want, until=1_000.0):
    """One that has wanted the same for as long."""
    own = Hysteresis(0.0)
    for second in range(0, int(until), 10):
        own.record(wants(want), TERMS, float(second))
    return own


def wants(planned, firm=None, relaxed=None, spike=0):
    return Wants(planned, planned if firm is None else firm, relaxed or planned, spike)


def test_up_at_once_when_a_little_less_work_needs_it_too():
    assert Hysteresis(0.0).up(3, wants(5), 0.0) == 5


def test_within_the_dead_band_nothing_goes_up():
    assert Hysteresis(0.0).up(3, wants(4, firm=3), 0.0) == 3


def test_spike_goes_up_whatever_the_band_says():
    assert Hysteresis(0.0).up(3, wants(3, spike=7), 0.0) == 7


def test_down_waits_for_the_largest_want_of_the_window():
    own = settled(8)
    for second in range(1_000, 2_000, 10):
        own.record(wants(4), TERMS, float(second))
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
    own.record(wants(1), TERMS, 0.0)
    assert own.down(5, wants(1), TERMS, 599.0) == 5


def test_what_a_spike_added_goes_with_the_spike_and_at_once():
    own = settled(4)
    targets = [4]
    for second, spike in enumerate([15] * 20 + [8] * 40 + [0] * 60, 1_000):
        now, want = float(second), wants(4, relaxed=5, spike=spike)
        own.record(want, TERMS, now)
        target = own.down(own.up(targets[-1], want, now), want, TERMS, now)
        if target != targets[-1]:
            own.changed(now)
        targets.append(target)
    assert targets[1:21] == [15] * 20
    assert targets[49:52] == [15, 15, 8]
    assert targets[89:92] == [8, 8, 5]
    assert targets[-1] == 5


def followed(own, spikes, target=4, since=1_000.0):
    """Targets of a second each, while spikes want so many."""
    targets = []
    for second, spike in enumerate(spikes):
        now, want = since + second, wants(4, relaxed=5, spike=spike)
        own.record(want, TERMS, now)
        target = own.down(own.up(target, want, now), want, TERMS, now)
        targets.append(target)
    return targets


def test_while_a_spike_lasts_small_falls_change_nothing():
    targets = followed(settled(4), [16] * 10 + [13] * 100)
    assert set(targets) == {16}


def test_a_spike_that_followed_one_whose_replicas_had_gone_keeps_its_own_for_the_next():
    own, pulse = settled(4), [12] * 20 + [0] * 100
    targets = followed(own, 6 * pulse)
    falls = [n for n, (a, b) in enumerate(pairwise(targets)) if b < a]
    assert falls == [49]  # when the first one's hold is over, and then no more
    assert own.gap_s == 120.0


def test_a_spike_long_after_another_is_let_go_as_soon_as_the_first():
    own = settled(4)
    followed(own, [12] * 20 + [0] * 1_000)
    targets = followed(own, [12] * 20 + [0] * 100, since=2_500.0)
    assert targets[-1] == 5


def test_a_gap_is_known_after_the_deciders_death():
    own, other = settled(4), Hysteresis(0.0)
    followed(own, [12] * 20 + [0] * 100 + [12] * 20)
    other.load(json.loads(json.dumps(own.save(1_139.0))), 0.0)
    assert followed(other, [0] * 100, target=12, since=0.0)[-1] == 12


def test_pause_follows_the_time_to_capacity():
    assert Terms.of(PolicySettings(), 300.0) == Terms(1_200.0, 600.0, 0.1, 10.0)
    assert Terms.of(PolicySettings(down_window_s=30.0), 1.0).pause_s == 30.0


def test_saved_window_still_holds():
    own, other = settled(8), Hysteresis(50.0)
    own.record(wants(3), TERMS, 1_000.0)
    other.load(json.loads(json.dumps(own.save(1_000.0))), 50.0)
    assert other.down(8, wants(3), TERMS, 100.0) == 8
    assert own.down(8, wants(3), TERMS, 1_050.0) == 8
