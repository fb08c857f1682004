"""What every hedging policy must keep, whichever is chosen, and when each one asks for a copy."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from routers.api.actions import Dispatch
from routers.api.events import Reconfigure
from routers.api.settings import HedgeParameters, PolicyNames
from routers.estimates.ratio_histogram import RatioHistogram
from routers.policies.hedging import MultipleDelay, QuantileDelay
from routers.policies.registry import HEDGINGS
from routers.stream.first_tokens import FirstTokenWait, race_at
from tests.routers.invariants import check

TAKES_S = 0.01
SETTINGS = HedgeParameters(max_utilisation=1.0, min_samples=4, budget=1.0)
OVER_ALL = pytest.mark.parametrize("name", HEDGINGS)


def measured(count=100):
    """Of a bucket whose batches take 1 to 2 times what was predicted."""
    ratios = RatioHistogram()
    for number in range(count):
        ratios.observe(1.0 + number / count)
    return ratios


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


def pool(start, name, **hedge):
    """Replicas that have each answered four batches in the 10 ms that were predicted."""
    core = start(
        hedge=replace(SETTINGS, **hedge),
        policies=PolicyNames(hedging=name),
        initial_cost_s=TAKES_S,
        profile=((1, 10, TAKES_S),),
    )
    core.replicas("a", "b", capacity=1)
    for request_id in range(-8, 0):
        (lease,) = sent(core.arrive(request_id, at=core.now))
        core.close(lease, at=core.now + TAKES_S, service_s=TAKES_S)
    core.now = 0.5
    return core


# ---- each of them


@OVER_ALL
def test_asking_changes_no_answer(name):
    policy, ratios = HEDGINGS[name](SETTINGS), measured()
    first = policy.delay_s(TAKES_S, ratios)
    assert [policy.delay_s(TAKES_S, ratios) for _ in range(5)] == [first] * 5
    assert ratios.samples == 100


@OVER_ALL
def test_what_was_predicted_to_take_longer_is_given_longer(name):
    policy, ratios = HEDGINGS[name](SETTINGS), measured()
    delays = [policy.delay_s(seconds, ratios) for seconds in (0.001, 0.01, 0.1)]
    assert delays == sorted(set(delays))
    assert delays[0] > 0.001
    assert delays[-1] > 0.1


@OVER_ALL
def test_of_an_unmeasured_bucket_without_a_prediction_nothing_is_said(name):
    assert HEDGINGS[name](SETTINGS).delay_s(0.0, None) is None


@OVER_ALL
def test_a_straggler_is_copied_once_and_the_answer_counts_once(start, name):
    core = pool(start, name)
    (lease,) = sent(core.arrive(1))
    assert sent(core.tick(0.5 + TAKES_S)) == [], "it may still be on time"
    (copy,) = sent(core.tick(0.5 + 2.5 * TAKES_S))
    assert (copy.rows, copy.copy_of) == (lease.rows, lease.lease_id)
    assert sent(core.tick(2.0)) == []
    core.close(copy, at=2.0, service_s=TAKES_S)
    core.close(lease, at=2.1, service_s=1.6)
    assert core.dispatcher.snapshot(2.1).hedges_won == 1
    check(core.dispatcher)


@OVER_ALL
@pytest.mark.parametrize("held", [{"mode": "off"}, {"budget": 0.0}, {"max_utilisation": 0.01}])
def test_where_hedging_may_not_act_no_policy_makes_it(start, name, held):
    core = pool(start, name, **held)
    core.arrive(1)
    assert sent(core.tick(0.8)) == []


@OVER_ALL
def test_first_tokens_have_the_same_delay_as_batches(name):
    policy, wait = HEDGINGS[name](SETTINGS), FirstTokenWait(7.0, 0.2, measured())
    assert race_at(wait, SETTINGS, policy) == 7.0 + policy.delay_s(0.2, wait.ratios)
    assert race_at(replace(wait, predicted_s=1e-9), SETTINGS, policy) == 7.001
    assert race_at(replace(wait, is_long=True), SETTINGS, policy) == inf
    assert race_at(wait, replace(SETTINGS, mode="off"), policy) == inf


@pytest.mark.parametrize("before", HEDGINGS)
@pytest.mark.parametrize("after", HEDGINGS)
def test_the_policy_may_change_while_a_batch_runs_and_what_was_measured_stays(start, before, after):
    core = pool(start, before)
    core.arrive(1)
    core.step(
        Reconfigure(
            replace(core.dispatcher._requests.settings, policies=PolicyNames(hedging=after))
        )
    )
    assert type(core.dispatcher._hedger.slowness.policy) is type(HEDGINGS[after](SETTINGS))
    assert len(sent(core.tick(0.5 + 2.5 * TAKES_S))) == 1
    check(core.dispatcher)


# ---- when each one asks


@pytest.mark.parametrize(("samples", "says"), [(0, False), (3, False), (4, True)])
def test_a_quantile_waits_for_its_samples_and_a_multiple_for_none(samples, says):
    ratios = measured(samples)
    assert (QuantileDelay.of(SETTINGS).delay_s(TAKES_S, ratios) is not None) is says
    assert MultipleDelay.of(SETTINGS).delay_s(TAKES_S, ratios) == 2.0 * TAKES_S


def test_a_quantile_follows_what_batches_take_and_a_multiple_does_not():
    even = RatioHistogram()
    for _ in range(100):
        even.observe(1.0)
    delays = [QuantileDelay.of(SETTINGS).delay_s(1.0, each) for each in (even, measured())]
    assert delays == pytest.approx([1.0, 1.95], rel=0.06)
    settings = replace(SETTINGS, multiple=3.0)
    assert [MultipleDelay.of(settings).delay_s(1.0, each) for each in (even, measured())] == [3, 3]


def test_a_fixed_delay_stands_for_the_quantile():
    policy = QuantileDelay.of(replace(SETTINGS, fixed_delay_s=0.03))
    assert [policy.delay_s(1.0, each) for each in (None, measured())] == [0.03, 0.03]
