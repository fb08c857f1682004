"""Which batch starts next at a replica: ranks across gateways, room within one, answers."""

import pytest

from routers.batch.staging import Staged, Staging
from routers.shared.staging import DEMAND_HOLDS_S, FORGET_S, REPORT_EVERY_S


def batch(gateway="a", lease_id=1, tag=0.0, priority=0, late=0, **more):
    return Staged(gateway, lease_id, (late, priority, tag), **more)


def running(slots=2, **first):
    """A replica whose device works on lease 1 of gateway `a`, unless told otherwise."""
    staging = Staging(slots)
    assert staging.arrive(batch(**first), (), 0.0).start is not None
    return staging


def test_first_batch_starts_at_once():
    staging, first = Staging(1), batch()
    turn = staging.arrive(first, (), 0.0)
    assert (turn.start, turn.returned) == (first, ())
    assert staging.running is first


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_gateway_stages_one_less_than_the_slots(slots):
    staging = running(slots)
    for lease_id in range(2, slots + 1):
        assert staging.arrive(batch(lease_id=lease_id), (), 0.0).returned == ()
    too_many = batch(lease_id=9)
    assert staging.arrive(too_many, (), 0.0).returned == (too_many,)
    assert staging.inflight == slots


def test_each_gateway_has_its_own_room():
    staging = running()
    for gateway in "abc":
        assert staging.arrive(batch(gateway, 2), (), 0.0).returned == ()
    assert staging.inflight == 4


def test_lowest_rank_starts_and_other_gateways_get_theirs_back():
    staging = running()
    mine, theirs = batch("a", 2, tag=5.0), batch("b", 1, tag=3.0)
    staging.arrive(mine, (), 0.0)
    staging.arrive(theirs, (), 0.1)
    turn = staging.finish(1.0, 1.0)
    assert (turn.start, turn.returned) == (theirs, (mine,))
    assert (staging.running, staging.inflight) == (theirs, 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [({"late": 1}, {"priority": 2}), ({"priority": 1}, {"tag": 9.0}), ({"tag": 2.0}, {"tag": 1.0})],
)
def test_late_ones_go_last_then_priority_then_tag_decides(first, second):
    staging = running()
    staging.arrive(batch("a", 2, **first), (), 0.0)
    staging.arrive(batch("b", 1, **second), (), 0.0)
    assert staging.finish(1.0, 1.0).start == batch("b", 1, **second)


def test_equal_ranks_start_in_order_of_arrival():
    staging = running()
    for gateway in "ba":
        staging.arrive(batch(gateway, 2), (), 0.0)
    assert staging.finish(1.0, 1.0).start == batch("b", 2)


def led_by(tenant, gateway, lease_id, **more):
    return batch(gateway, lease_id, charges=((more.get("priority", 0), tenant, 1.0),), **more)


def test_gateways_take_turns_with_one_flow_whatever_their_accounts_of_it_say():
    staging = Staging(2)
    staging.arrive(led_by("x", "a", 1), (), 0.0)
    started = []
    for lease_id in range(2, 8):
        for gateway, tag in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
            staging.arrive(led_by("x", gateway, lease_id, tag=tag), (), 0.0)
        started.append(staging.finish(1.0, 1.0).start.gateway)
    assert started == ["b", "c", "a", "b", "c", "a"]


@pytest.mark.parametrize(
    "other",
    [
        led_by("y", "b", 1, tag=2.0),
        led_by("x", "b", 1, tag=2.0, late=1),
        led_by("x", "b", 1, tag=2.0, priority=1),
        batch("b", 1, tag=2.0),
    ],
)
def test_turns_are_taken_within_a_flow_alone(other):
    staging = running()
    staging.arrive(led_by("x", "a", 2, tag=1.0), (), 0.0)
    staging.arrive(other, (), 0.0)
    assert staging.finish(1.0, 1.0).start.gateway == "a"


def test_flow_that_goes_first_does_so_by_its_lowest_tag_anywhere():
    staging = running()
    staging.arrive(led_by("x", "a", 2, tag=1.0), (), 0.0)
    staging.arrive(led_by("y", "c", 1, tag=2.0), (), 0.0)
    staging.arrive(led_by("x", "b", 1, tag=3.0), (), 0.0)
    assert staging.finish(1.0, 1.0).start.gateway == "b"


def test_what_the_same_gateway_staged_further_stays():
    staging = running(slots=3)
    for lease_id in (2, 3):
        staging.arrive(batch("a", lease_id), (), 0.0)
    turn = staging.finish(1.0, 1.0)
    assert (turn.start, turn.returned, staging.inflight) == (batch("a", 2), (), 2)


def test_urgent_batch_takes_the_place_of_the_same_gateways_bulk_one():
    staging = running()
    bulk, urgent = batch(lease_id=2, priority=2), batch(lease_id=3, priority=0, tag=9.0)
    staging.arrive(bulk, (), 0.0)
    assert staging.arrive(urgent, (), 0.1).returned == (bulk,)
    assert staging.finish(1.0, 1.0).start == urgent


def test_no_gateway_pushes_out_anothers_batch():
    staging = running()
    staging.arrive(batch("b", 1, priority=2), (), 0.0)
    staging.arrive(batch("a", 2), (), 0.0)
    again = batch("a", 3, priority=0, tag=1.0)
    assert staging.arrive(again, (), 0.0).returned == (again,)


def test_dropped_batch_never_starts_and_running_one_goes_on():
    staging = running()
    staging.arrive(batch(lease_id=2), (), 0.0)
    assert staging.drop("a", 2)
    assert not staging.drop("a", 1)
    assert not staging.drop("b", 2)
    assert staging.finish(1.0, 1.0).start is None
    assert staging.inflight == 0


def test_device_that_has_nothing_staged_is_free_for_the_next():
    staging = running()
    assert staging.finish(1.0, 1.0).start is None
    assert staging.arrive(batch("b", 7), (), 2.0).start == batch("b", 7)


def test_answer_says_what_is_held_and_seen():
    staging = running()
    staging.arrive(batch("a", 4), (), 0.0)
    staging.arrive(batch("b", 9), (), 0.0)
    report = staging.report("a", 0.5, service_s=0.25)
    assert (report.held, report.seen, report.inflight) == (2, 4, 3)
    assert report.service_s == 0.25
    assert (staging.report("b", 0.5).held, staging.report("b", 0.5).seen) == (1, 9)


def test_refused_batch_is_not_seen():
    staging = running(slots=1)
    staging.arrive(batch(lease_id=2), (), 0.0)
    assert staging.report("a", 0.0).seen == 1


def test_time_left_counts_from_the_start_for_others_and_oneself():
    staging = running(predicted_s=1.0)
    staging.arrive(batch("b", 1), (), 0.2)
    assert staging.report("b", 0.25).free_in_s == staging.report("b", 0.25).retry_in_s == 0.75
    assert staging.report("a", 0.25).free_in_s == 0.0
    assert staging.report("a", 0.25).retry_in_s == 0.75


def test_overrun_batch_is_waited_for_ever_longer():
    staging = running(predicted_s=1.0)
    waits = [staging.report("a", at).retry_in_s for at in (1.0, 2.0, 9.0)]
    assert waits == sorted(waits)
    assert waits[0] == 0.0 < waits[1]


def test_virtual_time_is_the_highest_tag_started_in_each_priority():
    staging = running(tag=4.0, priority=1)
    seen = []
    for lease_id, tag, priority in ((2, 2.0, 1), (3, 7.0, 1), (4, 1.0, 2)):
        staging.arrive(batch("a", lease_id, tag, priority), (), 0.0)
        staging.finish(1.0, 1.0)
        seen.append(staging.report("a", 1.0).virtual_time)
    assert seen == [(0.0, 4.0), (0.0, 7.0), (0.0, 7.0, 1.0)]


def test_seconds_served_are_told_once_to_everyone_else_as_measured():
    staging = running(charges=((0, "x", 1.0), (1, "y", 3.0)))
    staging.arrive(batch("b", 1), (), 0.0)
    staging.finish(8.0, 8.0)
    assert staging.report("a", 8.0).served == ()
    assert sorted(staging.report("b", 8.0).served) == [(0, "x", 2.0), (1, "y", 6.0)]
    assert staging.report("b", 8.0).served == ()


def test_what_waits_elsewhere_is_summed_by_flow():
    staging = running()
    staging.arrive(batch("b", 1), ((0, "x", 2.0),), 0.0)
    staging.arrive(batch("c", 1), ((0, "x", 1.0), (2, "z", 4.0)), 0.0)
    assert sorted(staging.report("a", 0.0).waiting) == [(0, "x", 3.0), (2, "z", 4.0)]
    assert staging.report("b", 0.0).waiting == ((0, "x", 1.0), (2, "z", 4.0))


def test_what_waits_elsewhere_is_not_summed_anew_for_every_answer():
    staging = running()
    staging.arrive(batch("b", 1), ((0, "x", 2.0),), 0.0)
    first = staging.report("a", 0.0).waiting
    staging.arrive(batch("b", 2), ((0, "x", 5.0),), 0.0)
    assert staging.report("a", REPORT_EVERY_S / 2).waiting is first
    assert staging.report("a", REPORT_EVERY_S).waiting == ((0, "x", 5.0),)


def test_batch_that_says_nothing_of_what_waits_means_what_was_said_before():
    staging = running()
    staging.arrive(batch("b", 1), ((0, "x", 2.0),), 0.0)
    staging.arrive(batch("b", 2), None, 0.0)
    assert staging.report("a", 0.0).waiting == ((0, "x", 2.0),)


def test_gateway_that_was_never_heard_of_gets_a_report_all_the_same():
    assert running().report("b", 0.0).seen == 0


def test_what_a_silent_gateway_said_is_forgotten_once_it_has_nothing_here():
    staging = running()
    staging.arrive(batch("b", 1), ((0, "x", 2.0),), 0.0)
    assert staging.report("a", 2 * DEMAND_HOLDS_S).waiting == ((0, "x", 2.0),)
    staging.finish(1.0, 2 * DEMAND_HOLDS_S)
    staging.finish(1.0, 2 * DEMAND_HOLDS_S)
    assert staging.report("a", 3 * DEMAND_HOLDS_S).waiting == ()


def test_gateway_that_is_gone_keeps_nothing():
    staging = running()
    staging.finish(1.0, 1.0)
    staging.arrive(batch("new", 1, charges=((0, "x", 1.0),)), (), 2.0 + FORGET_S)
    staging.finish(1.0, 3.0 + FORGET_S)
    assert set(staging._gateways) == {"new"}
