"""How many pool replicas recorded spikes are worth, and what they cost and saved."""

import json

import pytest

from autoscaling.pool import Excess, Pool, ResidentWant
from autoscaling.settings import PoolTerms
from autoscaling.types import PoolReading, ResidentReading

TERMS = PoolTerms(min=0, max=4)


def excess(work, model="m", price=100.0):
    return Excess(model, work, price, ResidentWant(model, rate=work))


def feed(pool, work, seconds, since=0.0, readings=None, terms=TERMS):
    """The last decision; one a second."""
    for second in range(int(seconds)):
        decision = pool.decide(readings or {}, [excess(work)], terms, since + second, False)
    return decision


def test_without_spikes_the_pool_is_as_small_as_it_may_be():
    assert feed(Pool(), 0.0, 7200).replicas == 0
    assert feed(Pool(), 0.0, 100, terms=PoolTerms(min=1, max=4)).replicas == 1


def test_spikes_worth_more_than_idle_time_get_a_replica():
    """100 s of missed work a second priced at 100: 36 s an hour pay for one."""
    pool = Pool()
    feed(pool, 0.0, 3600)
    assert feed(pool, 1.0, 30, since=3600.0).replicas == 0
    assert feed(pool, 1.0, 10, since=3630.0).replicas == 1


def test_second_one_needs_excess_that_one_could_not_have_served():
    pool = Pool()
    assert feed(pool, 1.0, 600).replicas == 1
    assert feed(pool, 2.5, 600, since=600.0).replicas == 3


def test_number_falls_only_at_half_of_what_it_cost():
    pool = Pool()
    feed(pool, 1.0, 40)
    assert feed(pool, 0.0, 5400, since=40.0).replicas == 1
    assert feed(pool, 0.0, 5400, since=5440.0).replicas == 0


def test_tight_percentile_makes_a_miss_dearer():
    loose, tight = Pool(), Pool()
    for second in range(120):
        loose.decide({}, [excess(1.0, price=10.0)], TERMS, float(second), False)
        tight.decide({}, [excess(1.0, price=1000.0)], TERMS, float(second), False)
    assert (loose.target, tight.target) == (0, 1)


def test_without_auto_the_number_is_the_maximum():
    decision = feed(Pool(), 0.0, 10, terms=PoolTerms(min=0, max=3, auto=False))
    assert decision.replicas == 3
    assert "as the settings say" in decision.text


def test_cost_and_savings_are_counted():
    held = ResidentReading("m", True, 10, 1.0, 0.0, True)
    readings = {"p": PoolReading("p", (held,), 0), "q": PoolReading("q", (), 0)}
    decision = feed(Pool(), 3.0, 3601, readings=readings)
    assert decision.cost_hours == pytest.approx(2.0)
    assert decision.saved_s == pytest.approx(3600.0)


def test_model_that_is_still_being_loaded_has_saved_nothing():
    held = ResidentReading("m", False, 10, 1.0, 0.0, False)
    assert feed(Pool(), 3.0, 60, readings={"p": PoolReading("p", (held,), 0)}).saved_s == 0.0


def test_time_without_decisions_counts_for_neither_side():
    pool = Pool()
    feed(pool, 1.0, 2, readings={"p": PoolReading("p")})
    decision = feed(pool, 1.0, 1, since=86_400.0, readings={"p": PoolReading("p")})
    assert decision.cost_hours * 3600.0 <= 11.0


def test_saved_accounts_go_on():
    pool, other = Pool(), Pool()
    feed(pool, 1.0, 600)
    other.load(json.loads(json.dumps(pool.save())))
    assert feed(other, 0.0, 1, since=5.0).replicas == 1
