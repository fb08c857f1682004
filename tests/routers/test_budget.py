"""What copies and retries may cost, and what is paid back."""

import pytest

from routers.placement.hedging import Budget


def earned(batches, share=0.05, cost_s=0.01):
    budget = Budget(share)
    for _ in range(batches):
        budget.earn(cost_s)
    return budget


def test_nothing_can_be_spent_before_anything_was_served():
    assert not Budget(0.05).affords(0.01)


def test_the_first_batch_brings_a_little_to_start_with():
    budget = earned(1)
    assert budget.affords(0.02)
    assert not budget.affords(0.021)


def test_twenty_batches_earn_one_at_five_percent():
    budget = earned(1)
    before = budget.level_s
    for _ in range(20):
        budget.earn(0.01)
    assert budget.level_s - before == pytest.approx(0.01)


def test_a_long_calm_is_worth_twenty_batches_at_most():
    assert earned(100_000).level_s == pytest.approx(20 * 0.01)


def test_what_is_never_refused_may_overdraw_it_but_not_without_bound():
    budget = earned(1)
    for _ in range(1000):
        budget.pay(0.01)
    assert budget.level_s == pytest.approx(-20 * 0.01)


def test_a_refund_restores_what_was_paid():
    budget = earned(100)
    before = budget.level_s
    budget.pay(0.01)
    budget.refund(0.01)
    assert budget.level_s == pytest.approx(before)


def test_without_a_share_nothing_is_ever_affordable():
    assert not earned(1000, share=0.0).affords(0.001)


def test_unmeasured_batches_earn_nothing():
    assert earned(10, cost_s=0.0).level_s == 0.0
