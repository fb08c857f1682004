"""Which new requests are judged late, and how wrong forecasts are corrected."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from routers.api.settings import AdmissionParameters
from routers.policies.admission.feasibility import PROBE_S, Feasibility, ForecastError
from routers.policies.admission.types import ADMIT
from tests.routers import newcomers
from tests.routers.newcomers import ask, found, tuned

SLACK_S = 0.08


def learnt(actual, forecasts=lambda rng: rng.uniform(0.0, SLACK_S), samples=4000, rate=500):
    error, rng = ForecastError(), random.Random(3)
    for n in range(samples):
        wait_s = forecasts(rng)
        error.learn(wait_s, SLACK_S, actual(wait_s, rng), n / rate)
    return error


def test_nothing_learnt_corrects_nothing():
    assert ForecastError().corrected_s(0.05, SLACK_S) == 0.05


def test_right_forecasts_stay_as_they_are():
    error = learnt(lambda wait_s, rng: wait_s)
    assert error.corrected_s(0.05, SLACK_S) == pytest.approx(0.05, rel=0.02)


@pytest.mark.parametrize("factor", [0.4, 1.5])
def test_proportional_error_is_corrected(factor):
    error = learnt(
        lambda wait_s, rng: factor * wait_s, forecasts=lambda rng: rng.uniform(0.04, 0.08)
    )
    assert error.scale == pytest.approx(factor, rel=0.15)
    assert error.corrected_s(0.06, SLACK_S) == pytest.approx(factor * 0.06, rel=0.15)


@pytest.mark.parametrize("factor", [0.01, 50.0])
def test_correction_has_bounds(factor):
    error = learnt(lambda wait_s, rng: factor * wait_s)
    assert 0.2 <= error.scale <= 2.0


@pytest.mark.parametrize("rate", [5, 500, 20_000])
def test_margin_covers_all_but_one_in_fifty_at_any_rate(rate):
    def actual(wait_s, rng):
        return wait_s + rng.uniform(0.0, 0.02)

    error = learnt(actual, samples=20_000, rate=rate)
    rng, missed = random.Random(4), 0
    for _ in range(2000):
        wait_s = rng.uniform(0.0, SLACK_S)
        missed += actual(wait_s, rng) > error.scale * wait_s + error.margin_s
    assert 0.0 < missed / 2000 < 0.06


def test_small_forecasts_move_the_margin_not_the_scale():
    """A flow with little waiting still waits for the batch that runs."""
    error = learnt(lambda wait_s, rng: 0.02, forecasts=lambda rng: 0.001)
    assert error.scale == pytest.approx(1.0, abs=0.1)
    assert error.margin_s > 0.015


def test_empty_queue_is_never_forecast_late():
    error = learnt(lambda wait_s, rng: 10.0)
    assert error.corrected_s(0.0, SLACK_S) <= SLACK_S / 2
    assert error.corrected_s(0.0, 0.0) == 0.0


def test_margin_falls_again_once_forecasts_are_right():
    error = learnt(lambda wait_s, rng: wait_s + 0.03)
    high = error.margin_s
    for n in range(5000):
        error.learn(0.03, SLACK_S, 0.03, 8.0 + n / 500)
    assert error.margin_s < high / 4


def test_burst_of_misses_does_not_overshoot():
    """A thousand requests turn late in the same instant, as after a hiccup: one step, not many."""
    error = learnt(lambda wait_s, rng: wait_s + 0.001)
    for _ in range(1000):
        error.learn(0.03, SLACK_S, 0.05, 8.0)
    assert error.margin_s < 0.05


A, B, BULK = (0, "a"), (0, "b"), (2, "a")


def claim(flow=A, *, ahead_s=0.0, weight=1.0, competing_weight=None, urgent_s=0.0, replicas=1):
    """One that comes with so much slack, at the time that it is called with."""
    own = weight if ahead_s else 0.0

    def comes(slack_s, now, before_s=ahead_s):
        return found(
            newcomers.came(flow, now, weight=weight, slack_s=slack_s), now, before_s=before_s,
            urgent_s=urgent_s, capacity=replicas,
            competing_weight=own if competing_weight is None else competing_weight,
        )  # fmt: skip

    return comes


def judged(feasibility, given, slack_s, now=0.0):
    return ask(feasibility, given(slack_s, now), now)


def late(feasibility, given, slack_s=0.08, now=0.0):
    """Judged with the probe of this second already spent."""
    ask(feasibility, given(1e-6, now, 1e9), now)
    return judged(feasibility, given, slack_s, now).late_by_s > 0.0


def leaves(feasibility, given, wait_s, now=0.0, slack_s=0.08):
    """It comes, and is taken from the queue after `wait_s`; all in one moment."""
    newcomer = given(slack_s, now)
    newcomer.request.forecast_s = ask(feasibility, newcomer, now).forecast_s
    feasibility.waited(newcomer.flow, newcomer.request, wait_s, now, taken=True)


def serve(feasibility, shares, seconds=3.0, batch_s=0.02):
    """Flows are given these shares of one replica, in batches, until `seconds`."""
    now = 0.0
    while now < seconds:
        now += batch_s
        for flow, share in shares.items():
            feasibility.served(((*flow, share * batch_s),), now, late=False)
    return now


def test_nothing_ahead_is_on_time():
    assert not late(Feasibility(), claim())


def test_only_flow_waits_for_its_own_work():
    feasibility = Feasibility()
    assert not late(feasibility, claim(ahead_s=0.07))
    assert late(feasibility, claim(ahead_s=0.09))


@pytest.mark.parametrize("slack_s", [0.0, -0.001])
def test_of_one_whose_latest_start_has_passed_it_says_and_learns_nothing(slack_s):
    feasibility = Feasibility()
    assert judged(feasibility, claim(ahead_s=9.0), slack_s) is ADMIT
    assert not list(feasibility.flows(0.0))


def test_more_replicas_serve_more():
    assert not late(Feasibility(), claim(ahead_s=0.3, replicas=4))
    assert late(Feasibility(), claim(ahead_s=0.34, replicas=4))


def test_wait_and_lateness_are_told():
    feasibility = Feasibility()
    assert judged(feasibility, claim(ahead_s=9.0), 0.1).is_probe
    answer = judged(feasibility, claim(ahead_s=0.5), 0.1)
    assert answer.forecast_s == pytest.approx(0.5)
    assert answer.late_by_s == pytest.approx(0.4)


def test_flow_gets_its_weighted_share_beside_others():
    feasibility = Feasibility()
    assert not late(feasibility, claim(ahead_s=0.05, weight=3.0, competing_weight=4.0))
    assert late(Feasibility(), claim(B, ahead_s=0.05, weight=1.0, competing_weight=4.0))


def test_aggressor_is_given_what_its_neighbours_leave():
    """Nine neighbours wait at this moment, but the aggressor was lately given three quarters."""
    feasibility = Feasibility()
    now = serve(feasibility, {A: 0.75, B: 0.25})
    assert not late(feasibility, claim(ahead_s=0.055, competing_weight=10.0), now=now)
    assert late(feasibility, claim(ahead_s=0.07, competing_weight=10.0), now=now)


def test_neighbours_count_by_the_time_they_wait():
    """Eight of ten are idle nine tenths of the time: a burst of the ninth is not ten times slower
    for finding them all at work just now."""
    feasibility = Feasibility()
    now = 0.0
    for _ in range(60):
        judged(feasibility, claim(B, competing_weight=1.0), 1.0, now)
        now += 0.018
        judged(feasibility, claim(B, competing_weight=9.0), 1.0, now)
        now += 0.002
    assert not late(feasibility, claim(ahead_s=0.02, competing_weight=9.0), now=now)
    assert late(Feasibility(), claim(ahead_s=0.02, competing_weight=9.0), now=now)


def test_less_urgent_flow_is_given_what_the_urgent_leave():
    feasibility = Feasibility()
    now = serve(feasibility, {A: 0.8})
    assert not late(feasibility, claim(BULK, ahead_s=0.012), now=now)
    assert late(feasibility, claim(BULK, ahead_s=0.025), now=now)
    assert not late(feasibility, claim(A, ahead_s=0.07), now=now)


def test_less_urgent_flow_waits_for_urgent_work_too():
    assert late(Feasibility(), claim(BULK, urgent_s=0.09))
    assert not late(Feasibility(), claim(BULK, urgent_s=0.07))


def test_urgent_work_that_has_ended_is_forgotten():
    feasibility = Feasibility()
    now = serve(feasibility, {A: 1.0})
    assert late(feasibility, claim(BULK, ahead_s=0.03), now=now)
    assert not late(feasibility, claim(BULK, ahead_s=0.03), now=now + 2.0)


def test_one_newcomer_a_second_is_let_in_against_the_forecast():
    feasibility, hopeless = Feasibility(), claim(ahead_s=100.0)
    on_time = [n for n in range(50) if not judged(feasibility, hopeless, 0.01, n / 10).late_by_s]
    assert on_time == [0, 10, 20, 30, 40]
    assert feasibility.probes == 5
    assert PROBE_S == 1.0


def test_each_flow_has_probes_of_its_own():
    feasibility = Feasibility()
    for flow in (A, B):
        assert judged(feasibility, claim(flow, ahead_s=100.0), 0.1).late_by_s == 0.0
        assert judged(feasibility, claim(flow, ahead_s=100.0), 0.1).late_by_s > 0.0


def test_forecasts_that_were_too_long_are_shortened():
    feasibility = Feasibility()
    now = 0.0
    for _ in range(2000):
        leaves(feasibility, claim(ahead_s=0.06), 0.02, now)
        now += 0.002
    assert not late(feasibility, claim(ahead_s=0.12), now=now)
    (flow,) = feasibility.flows(now)
    assert flow.flow == A
    assert flow.scale < 0.6


def test_requests_that_turned_late_while_waiting_make_it_careful():
    feasibility = Feasibility()
    now = 0.0
    for n in range(1000):
        leaves(feasibility, claim(ahead_s=0.04 + 0.01 * (n % 4)), 0.08, now)
        now += 0.002
    assert late(feasibility, claim(ahead_s=0.06), now=now)
    assert not late(feasibility, claim(), now=now)


def test_frozen_state_stays_and_judges_on():
    feasibility = Feasibility()
    now = serve(feasibility, {A: 0.6, B: 0.4})
    tuned(feasibility, frozen=True)
    before = list(feasibility.flows(now))
    feasibility.served(((*A, 5.0),), now, late=False)
    leaves(feasibility, claim(ahead_s=0.05), 9.0, now)
    assert list(feasibility.flows(now + 100.0)) == before
    assert late(feasibility, claim(ahead_s=1.0), now=now + 100.0)


def test_fixed_margin_is_added_and_nothing_is_learnt():
    feasibility = Feasibility()
    tuned(feasibility, AdmissionParameters(margin_s=0.03))
    for n in range(500):
        leaves(feasibility, claim(ahead_s=0.04), 0.079, 0.002 * n)
    assert not late(feasibility, claim(ahead_s=0.049), now=1.0)
    assert late(feasibility, claim(ahead_s=0.051), now=1.0)


def test_other_settings_keep_what_was_learnt():
    feasibility = Feasibility()
    now = serve(feasibility, {A: 0.6})
    before = list(feasibility.flows(now))
    feasibility.tune(replace(newcomers.SETTINGS, slo_s=3.0))
    assert list(feasibility.flows(now)) == before


@pytest.mark.parametrize("gateways", [1, 2, 4])
def test_every_gateway_draws_the_line_at_the_same_work(gateways):
    """What waits elsewhere is ahead too, so which gateway is asked does not matter."""
    ahead = 0.09
    forecasts = []
    for here in range(gateways):
        feasibility = Feasibility()
        waiting = [ahead / gateways] * gateways
        elsewhere = sum(waiting) - waiting[here]
        judged(feasibility, claim(ahead_s=9.0), 0.1)
        forecasts.append(judged(feasibility, claim(ahead_s=waiting[here] + elsewhere), 0.08))
    assert all(each.late_by_s == pytest.approx(0.01) for each in forecasts)


def test_batch_of_two_flows_counts_for_each_and_for_their_priority_once():
    together, apart = Feasibility(), Feasibility()
    together.served(((*A, 0.3), (*B, 0.1)), 1.0, late=False)
    for flow, seconds in ((A, 0.3), (B, 0.1)):
        apart.served(((*flow, seconds),), 1.0, late=True)
    for feasibility in (together, apart):
        assert [flow.given for flow in feasibility.flows(1.0)] == pytest.approx([0.6, 0.2])
