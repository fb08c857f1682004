"""Rates from counters that several gateways tell, and what is unknown."""

import random

import pytest

from autoscaling.demand import WINDOWS_S, Demand, DemandView
from autoscaling.types import DemandReading


def tell(demand, gateway, rate, since, until, start=0.0, every_s=1.0, request_s=0.1):
    """A gateway whose counters stood at `start` and grow by that much work a second."""
    for n in range(round((until - since) / every_s) + 1):
        work = rate * n * every_s
        reading = DemandReading(
            start + work, (start + work) * request_s, round((start + work) / request_s)
        )
        demand.on_report(gateway, reading, since + n * every_s)


def rate(demand, window_s, now):
    return demand.view((window_s,), now).rate(window_s)


def test_first_reading_is_where_counting_begins():
    demand = Demand()
    tell(demand, "a", 0.0, 0.0, 0.0, start=1e6)
    view = demand.view((8.0,), 0.0)
    assert view.fresh
    assert (view.span_s, view.rate(8.0)) == (0.0, 0.0)


@pytest.mark.parametrize("window_s", [2.0, 8.0, 64.0])
def test_even_work_has_the_same_rate_in_every_window(window_s):
    demand = Demand()
    tell(demand, "a", 3.0, 0.0, 200.0)
    assert rate(demand, window_s, 200.0) == pytest.approx(3.0)


def test_window_longer_than_what_is_known_counts_what_is_known():
    demand = Demand()
    tell(demand, "a", 3.0, 0.0, 5.0)
    assert rate(demand, 64.0, 5.0) == pytest.approx(3.0)


def test_burst_shows_in_short_windows_first():
    demand = Demand()
    tell(demand, "a", 1.0, 0.0, 100.0)
    tell(demand, "a", 9.0, 100.0, 104.0, start=100.0)
    assert rate(demand, 4.0, 104.0) == pytest.approx(9.0)
    assert rate(demand, 8.0, 104.0) == pytest.approx(5.0)
    assert rate(demand, 64.0, 104.0) == pytest.approx((60.0 + 36.0) / 64.0)


def test_gateways_add_up():
    demand = Demand()
    tell(demand, "a", 2.0, 0.0, 20.0)
    tell(demand, "b", 3.0, 0.3, 20.3, every_s=0.5)
    assert rate(demand, 8.0, 20.3) == pytest.approx(5.0)


def test_lost_message_loses_no_work():
    demand = Demand()
    tell(demand, "a", 2.0, 0.0, 20.0)
    demand.on_report("a", DemandReading(48.0, 4.8, 480), 24.0)
    assert rate(demand, 8.0, 24.0) == pytest.approx(2.0)


def test_silent_gateway_holds_ten_seconds_and_is_unknown_then():
    demand = Demand()
    tell(demand, "a", 2.0, 0.0, 100.0)
    tell(demand, "b", 3.0, 0.0, 90.0)
    held = demand.view((8.0,), 100.0)
    assert held.rate(8.0) == pytest.approx(5.0)
    assert not held.partial
    tell(demand, "a", 2.0, 101.0, 101.0, start=202.0)
    unknown = demand.view((8.0,), 101.0)
    assert unknown.partial
    assert unknown.rate(8.0) == pytest.approx(2.0)


def test_gateway_that_stays_silent_is_forgotten():
    demand = Demand()
    tell(demand, "b", 3.0, 0.0, 10.0)
    tell(demand, "a", 2.0, 0.0, 100.0)
    view = demand.view((8.0,), 100.0)
    assert not view.partial


def test_gateway_known_to_be_gone_is_not_held():
    demand = Demand()
    tell(demand, "a", 2.0, 0.0, 20.0)
    tell(demand, "b", 3.0, 0.0, 20.0)
    demand.gone("b")
    view = demand.view((8.0,), 20.0)
    assert view.rate(8.0) == pytest.approx(2.0)
    assert not view.partial


def test_nothing_heard_for_five_seconds_is_not_fresh_and_has_no_rate():
    demand = Demand()
    tell(demand, "a", 2.0, 0.0, 20.0)
    assert demand.view((8.0,), 25.0).fresh
    view = demand.view((8.0,), 25.1)
    assert not view.fresh
    assert view.rates == ()


def test_counters_that_run_back_begin_anew():
    demand = Demand()
    tell(demand, "a", 2.0, 0.0, 20.0)
    tell(demand, "a", 1.0, 21.0, 31.0)
    assert rate(demand, 8.0, 31.0) == pytest.approx(1.0)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_what_is_no_amount_of_work_is_refused(wrong):
    demand = Demand()
    with pytest.raises(ValueError, match="gateway a reports"):
        demand.on_report("a", DemandReading(offered_s=wrong), 0.0)
    assert not demand.view((8.0,), 0.0).fresh


def test_only_requests_count_as_called():
    demand = Demand()
    demand.on_report("a", DemandReading(5.0, 1.0, 50), 0.0)
    demand.on_report("a", DemandReading(5.0, 1.0, 50), 1.0)
    assert demand.view((8.0,), 1.0).requested_at is None
    demand.on_report("a", DemandReading(5.1, 1.0, 51), 2.0)
    assert demand.view((8.0,), 2.0).requested_at == 2.0


def test_what_waits_at_a_gateway_that_is_new_counts_as_called():
    demand = Demand()
    demand.on_report("a", DemandReading(0.1, 0.01, 1, backlog_s=0.1, urgent=True), 3.0)
    assert demand.view((8.0,), 3.0).requested_at == 3.0
    assert demand.view((8.0,), 3.0).waits


def test_work_of_requests_is_known_from_squares():
    demand = Demand()
    tell(demand, "a", 2.0, 0.0, 30.0, request_s=0.25)
    assert demand.view((8.0,), 30.0).request_work_s == pytest.approx(0.25)


def test_even_work_has_no_scatter_and_a_slow_rise_hardly_any():
    even, rising = Demand(), Demand()
    tell(even, "a", 2.0, 0.0, 100.0)
    for second in range(100):
        rising.on_report("a", DemandReading(0.01 * second**2), float(second))
    assert even.dispersion_s(100.0) == pytest.approx(0.0)
    assert rising.dispersion_s(99.0) < 0.01


def test_work_in_lumps_scatters():
    demand = Demand()
    for second in range(100):
        demand.on_report("a", DemandReading(float(second // 8 * 8)), float(second))
    assert demand.dispersion_s(99.0) > 2.0


# -- just now


WORK_S = 0.02


def rates(arrivals, now):
    """Of requests of `WORK_S` at these times."""
    return [(w, sum(now - w < at <= now for at in arrivals) * WORK_S / w) for w in WINDOWS_S]


def read(arrivals, now):
    view = DemandView(rates=tuple(rates(arrivals, now)), request_work_s=WORK_S)
    return view.recent_rate()


def every(seconds, begin, end):
    return [begin + n * seconds for n in range(int((end - begin) / seconds))]


def test_nothing_known_is_nothing_asked_for():
    assert DemandView().recent_rate() == 0.0
    assert read([], 100.0) == 0.0


def test_steady_demand_is_read_over_the_longest_window():
    assert read(every(0.125, 0.0, 100.0), 100.0) == pytest.approx(0.16, rel=0.02)


def test_demand_that_has_ended_is_read_as_ended_in_seconds():
    arrivals = every(0.125, 0.0, 100.0)
    assert read(arrivals, 100.5) > 0.1
    assert read(arrivals, 104.0) < 0.03


def test_demand_that_has_begun_is_read_as_begun_in_seconds():
    arrivals = every(0.125, 100.0, 110.0)
    assert read(arrivals, 100.5) < 0.05
    assert read(arrivals, 104.0) > 0.08


def test_a_single_request_is_no_demand_of_a_second():
    assert read([99.9], 100.0) < WORK_S / 4


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 2.0, 10.0])
def test_chance_moves_it_little(rate):
    rng, now, arrivals = random.Random(1), 0.0, []
    while (now := now + rng.expovariate(rate)) < 2000.0:
        arrivals.append(now)
    found = [read(arrivals, float(at)) for at in range(100, 2000, 7)]
    off = [each for each in found if not 0.5 * rate * WORK_S < each < 2.0 * rate * WORK_S]
    assert len(off) <= 0.06 * len(found)
