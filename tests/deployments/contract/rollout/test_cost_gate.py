"""Measured costs of a new version beside the live one's."""

from __future__ import annotations

from dataclasses import replace

from deployments.contract.rollout.cost_gate import too_costly
from deployments.contract.rollout.terms import RolloutTerms

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


def _with_slo(description, slo_s):
    return replace(description.scheduling.core, slo_s=slo_s)
