"""How many replicas a rate of work needs, also of several groups."""

import heapq
from random import Random

import pytest

from autoscaling.settings import GroupTerms, ModelTerms, Needs, PolicySettings
from autoscaling.sizing import Option, Service, Sizing, erlang_c
from autoscaling.types import GroupReading


def sizing(*groups, slo_s=0.5, services=(), dispersion_s=0.0, **policy):
    """groups: (name, least, most, price, reserve)."""
    terms = tuple(
        GroupTerms(name, least, most, reserve, Needs((), price))
        for name, least, most, price, reserve in groups
    )
    model = ModelTerms("m", slo_s, terms, policy=PolicySettings(**policy))
    known = [*services, *[Service()] * (len(terms) - len(services))]
    options = tuple(
        Option(each, service, each.max) for each, service in zip(terms, known, strict=True)
    )
    sized = Sizing()
    sized.dispersion_s = dispersion_s
    sized.adopt(model, options)
    return sized


ONE = ("", 1, 100, 0.0, False)


def test_no_work_needs_the_minimum():
    assert sizing(ONE).size(0.0) == {"": 1}


@pytest.mark.parametrize("work", [0.5, 1.0, 3.0, 10.0, 40.0])
def test_number_lies_between_the_knee_and_a_root_above_the_work(work):
    count = sizing(ONE).size(work)[""]
    assert work / 0.85 <= count <= work + 2.0 * work**0.5 + 1.0


def test_more_work_never_needs_fewer():
    sized = sizing(ONE)
    counts = [sized.size(0.1 * n)[""] for n in range(1, 300)]
    assert counts == sorted(counts)


def test_no_replica_is_planned_past_the_knee():
    assert sizing(ONE, slo_s=60.0, knee=0.5).size(10.0)[""] >= 20


def test_spike_is_sized_for_the_slo_and_not_for_room():
    sized = sizing(ONE, slo_s=5.0, knee=0.5)
    assert sized.size(10.0, in_spike=True)[""] < 13 < sized.size(10.0)[""]


def test_tight_slo_needs_more():
    assert sizing(ONE, slo_s=0.12).size(5.0)[""] > sizing(ONE, slo_s=1.0).size(5.0)[""]


def test_bursty_arrivals_need_more():
    even, bursty = sizing(ONE, slo_s=0.3), sizing(ONE, slo_s=0.3, dispersion_s=0.4)
    assert bursty.size(5.0)[""] > even.size(5.0)[""]


def test_one_may_be_lost():
    assert sizing(ONE, survive=1).size(3.0)[""] == sizing(ONE).size(3.0)[""] + 1


def test_spares_are_added_up_to_the_maximum():
    assert sizing(("", 1, 5, 0.0, False), spare=2).size(2.0)[""] == 5
    assert sizing(ONE, spare=2).size(2.0)[""] == sizing(ONE).size(2.0)[""] + 2


def test_number_never_exceeds_what_can_be_placed():
    assert sizing(("", 1, 4, 0.0, False)).size(50.0) == {"": 4}


def test_faster_replicas_are_fewer():
    fast = Service(speed=4.0)
    assert sizing(ONE, services=[fast]).size(8.0)[""] < sizing(ONE).size(8.0)[""] / 2


def test_cheapest_capacity_comes_first():
    groups = (("big", 0, 10, 4.0, False), ("small", 0, 10, 1.0, False))
    fast = Service(speed=8.0)
    assert sizing(*groups, services=[fast]).size(4.0)["small"] == 0
    slow = Service(speed=2.0)
    assert sizing(*groups, services=[slow]).size(4.0)["big"] == 0


def test_settings_order_decides_where_nothing_has_a_price():
    groups = (("first", 0, 10, 0.0, False), ("second", 0, 10, 0.0, False))
    assert sizing(*groups).size(4.0)["second"] == 0


def test_next_group_takes_what_the_first_has_no_room_for():
    groups = (("first", 0, 3, 0.0, False), ("second", 0, 10, 0.0, False))
    counts = sizing(*groups).size(5.0)
    assert counts["first"] == 3
    assert 2 <= counts["second"] <= 6


def test_reserve_is_used_only_when_the_others_are_at_their_most():
    groups = (("reserve", 0, 10, 0.0, True), ("own", 0, 5, 9.0, False))
    assert sizing(*groups).size(3.0)["reserve"] == 0
    full = sizing(*groups).size(8.0)
    assert full["own"] == 5
    assert full["reserve"] > 0


def test_what_waits_for_a_place_does_no_work():
    terms = (GroupTerms("own", 0, 10), GroupTerms("reserve", 0, 10, reserve=True))
    model = ModelTerms("m", 0.5, terms)
    sized = Sizing()
    waits = Option(terms[0], Service(), maximum=4, counts=2)
    sized.adopt(model, (waits, Option(terms[1], Service(), maximum=10)))
    counts = sized.size(3.0)
    assert counts["own"] == 4
    assert counts["reserve"] >= 2


@pytest.mark.parametrize("wrong", [0.0, 1e-9])
def test_reading_of_a_group_that_has_measured_nothing_is_sized(wrong):
    reading = GroupReading("", speed=wrong, batch_s=wrong, batch_p99_s=wrong, batch_scv=wrong)
    assert sizing(ONE, services=[Service.of(reading)]).size(1.0)[""] >= 1


def test_erlang_c_is_the_known_one():
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1.0 / 3.0)
    assert erlang_c(10, 8.0) == pytest.approx(0.409, abs=0.001)


def waits_beyond(servers, work, slack_s, clump, batch_s=0.1, batches=40_000):
    """Simulated share of batches that wait longer; they come in clumps, exponentially long."""
    random, now, late = Random(1), 0.0, 0
    free = [0.0] * servers
    for n in range(batches):
        if n % clump == 0:
            now += random.expovariate(work / batch_s / clump)
        start = max(now, free[0])
        heapq.heapreplace(free, start + random.expovariate(1.0 / batch_s))
        late += start - now > slack_s
    return late / batches


@pytest.mark.parametrize(  # every pair of two of the three
    ("clump", "slack_s", "work"),
    [(1, 0.1, 2.0), (1, 0.4, 8.0), (2, 0.1, 8.0), (2, 0.4, 2.0), (4, 0.1, 8.0), (4, 0.4, 2.0)],
)
def test_sized_number_keeps_the_slo_in_a_simulation_and_three_fewer_do_not(clump, slack_s, work):
    service = Service(batch_s=0.1, batch_p99_s=0.1, batch_scv=1.0)
    sized = sizing(
        ONE, slo_s=slack_s + 0.1, services=[service], knee=0.99, dispersion_s=0.1 * clump
    )
    count = sized.size(work)[""]
    assert waits_beyond(count, work, slack_s, clump) <= 0.0105
    fewer = count - 3
    assert fewer <= work or waits_beyond(fewer, work, slack_s, clump) > 0.01
