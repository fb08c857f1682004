"""Measured costs of a new version beside the live one's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deployments.contract.rollout.observations import CostBounds, LiveCosts
from deployments.contract.rollout.terms import RolloutTerms
from deployments.process.cost_gate import late_rows, refusal, too_costly

TERMS = RolloutTerms()
LIVE = ((1, 8, 0.010), (4, 8, 0.030), (1, 64, 0.040), (4, 64, 0.100))


def scaled(by: float, length: int | None = None) -> tuple[tuple[int, int, float], ...]:
    return tuple((r, n, s * by if length in (None, n) else s) for r, n, s in LIVE)


def test_as_fast_or_a_little_slower_is_let_in(description):
    live = description(profile=LIVE)
    for by in (0.5, 1.0, 1.4):
        assert too_costly(live, description(profile=scaled(by)), TERMS) == ""


def test_slow_at_one_length_is_refused_and_the_length_is_named(description):
    why = too_costly(description(profile=LIVE), description(profile=scaled(2, 64)), TERMS)
    assert why == (
        "a batch of length 64 takes it 200 ms, the live version 100 ms: more than 1.5 times as long"
    )


def test_a_row_that_takes_longer_than_its_deadline_is_refused(description):
    new = description(profile=((1, 8, 0.010), (1, 64, 0.500)))
    slow = replace(new, scheduling=replace(new.scheduling, core=_with_slo(new, 0.3)))
    why = too_costly(description(profile=()), slow, TERMS)
    assert why == "1 row of length 64 takes it 500 ms, more than its deadline (300 ms)"


def test_one_batch_that_was_measured_badly_is_outvoted(description):
    new = description(profile=(*LIVE[:2], (1, 64, 0.040), (2, 64, 0.3), (4, 64, 0.100)))
    live = description(profile=(*LIVE, (2, 64, 0.060)))
    assert too_costly(live, new, TERMS) == ""


def test_nothing_measured_refuses_nothing(description):
    assert too_costly(description(), description(profile=LIVE), TERMS) == ""
    assert too_costly(description(profile=LIVE), description(), TERMS) == ""


# ---- a version that changes at once --------------------------------------------------------------

AT_ONCE = CostBounds(slo_s=10.0, max_ratio=5.0)


@pytest.mark.parametrize("by", [0.1, 1.0, 4.9])
def test_a_version_that_changes_at_once_may_be_some_times_slower(by):
    assert refusal(LiveCosts(LIVE), scaled(by), AT_ONCE) == ""


def test_many_times_slower_at_one_length_is_refused_and_the_bound_is_named():
    assert refusal(LiveCosts(LIVE), scaled(10, 64), AT_ONCE) == (
        "a batch of length 64 takes it 1000 ms, the live version 100 ms: more than 5 times as long"
    )


def test_without_a_bound_nothing_is_compared():
    unbounded = CostBounds(slo_s=0.001, max_ratio=0.0)
    assert refusal(LiveCosts(LIVE), scaled(1000), unbounded) == ""


def test_what_slows_the_live_version_by_now_excuses_the_new_one():
    as_slow_by_now = (0.0, 0.0, 10 * 0.040 / 64, 0.0)  # ten times what it measured, at length 64
    slowed = LiveCosts(LIVE, fits=((0.001, 0.0, 0.0, 0.0), as_slow_by_now))
    assert refusal(slowed, scaled(10, 64), AT_ONCE) == ""
    assert "a batch of length 64" in refusal(slowed, scaled(60, 64), AT_ONCE)


def test_a_row_that_has_become_too_slow_for_its_deadline_is_refused():
    bounds = replace(AT_ONCE, slo_s=0.100)
    assert refusal(LiveCosts(LIVE), scaled(3, 64), bounds) == (
        "1 row of length 64 takes it 120 ms, more than its deadline (100 ms); the live version "
        "takes 40 ms"
    )


def test_over_the_deadline_by_what_may_be_noise_is_let_in():
    bounds = replace(AT_ONCE, slo_s=0.041)
    assert refusal(LiveCosts(LIVE), scaled(1.5, 64), bounds) == ""


def test_a_deadline_that_the_live_version_misses_too_is_no_reason():
    bounds = replace(AT_ONCE, slo_s=0.039)
    assert refusal(LiveCosts(LIVE), scaled(4, 64), bounds) == ""


def test_a_length_that_the_live_version_never_had_is_judged_by_its_fit():
    new, bounds = (*LIVE, (1, 512, 0.9)), replace(AT_ONCE, slo_s=0.6)
    slower = (*LIVE, (1, 512, 1.2))
    assert refusal(LiveCosts(LIVE), new, bounds) == ""
    linear, square = (0.0, 0.0, 0.001, 0.0), (0.0, 0.0, 0.0, 0.000_01)
    assert refusal(LiveCosts(LIVE, (linear,)), slower, bounds).startswith("1 row of length 512 ")
    assert refusal(LiveCosts(LIVE, (square,)), new, bounds) == ""  # 2.6 s: it is late as well


def test_rows_that_nothing_is_compared_with_are_told_of():
    assert late_rows(LIVE, 0.040) == ""
    assert late_rows(LIVE, 0.039) == (
        "1 row of length 64 takes it 40 ms, more than its deadline (39 ms)"
    )


def _with_slo(description, slo_s):
    return replace(description.scheduling.core, slo_s=slo_s)
