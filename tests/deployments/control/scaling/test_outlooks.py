"""What gateways and people are told of decisions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autoscaling.settings import GroupTerms, ModelTerms
from autoscaling.types import (
    Decisions,
    GroupReading,
    GroupTarget,
    ModelDecision,
    PoolDecision,
    Reason,
)
from deployments.control.scaling.decider import as_plain, changes, outlook

TERMS = ModelTerms("a", 0.1, (GroupTerms("", 0, 3),))
STEADY = ModelDecision("a", (GroupTarget("", 2, 2),), Reason.STEADY, "as wanted.", 1.5, 1.6)
RUNS = (GroupReading("", target=2, hot=1, starting=1),)


def of(*decisions: ModelDecision, pool: PoolDecision | None = None) -> Decisions:
    return Decisions({each.model: each for each in decisions}, pool or PoolDecision())


def test_a_model_wakes_only_where_nothing_runs_or_starts():
    asleep = replace(STEADY, groups=(GroupTarget("", 0, 0),), reason=Reason.ASLEEP)
    assert outlook(TERMS, asleep, ()).wakes
    assert not outlook(TERMS, asleep, RUNS).wakes
    assert outlook(TERMS, STEADY, RUNS).starting == 1
    shown = outlook(TERMS, replace(asleep, observed=True), ())
    assert (shown.may_sleep, shown.wakes) == (False, False)  # nobody would wake it


@pytest.mark.parametrize(("begun_s", "left_s"), [(0.0, 12.0), (5.0, 7.0), (12.0, 0.0), (20.0, 0.0)])
def test_what_has_passed_since_the_order_is_no_longer_to_come(begun_s, left_s):
    starts = replace(STEADY, time_to_capacity_s=12.0)
    assert outlook(TERMS, starts, RUNS, begun_s).ready_in_s == left_s
    assert outlook(TERMS, starts, (), begun_s).ready_in_s == 12.0  # an order of which nobody knows


def test_a_changed_target_is_said_once_with_both_numbers():
    spike = replace(STEADY, groups=(GroupTarget("", 3, 3),), reason=Reason.SPIKE, text="a spike.")
    assert changes(of(), of(STEADY)) == ["a: ? -> 2 replicas, steady: as wanted."]
    assert changes(of(STEADY), of(STEADY)) == []
    assert changes(of(STEADY), of(replace(STEADY, text="other numbers."))) == []
    assert changes(of(STEADY), of(spike)) == ["a: 2 -> 3 replicas, spike: a spike."]
    held = replace(STEADY, reason=Reason.HELD)
    assert changes(of(STEADY), of(held)) == ["a: 2 replicas, held: as wanted."]
    shown = replace(spike, observed=True)
    assert changes(of(STEADY), of(shown)) == [
        "a: 2 -> 3 replicas, spike (observed, not done): a spike."
    ]


def test_groups_are_named_and_the_pool_says_its_own():
    two = (GroupTarget("gpu", 1, 1), GroupTarget("cpu", 0, 0))
    grouped = replace(STEADY, groups=two)
    assert changes(of(STEADY), of(grouped))[0].startswith("a: 2 -> gpu 1, cpu 0 replicas")
    assert changes(of(), of(pool=PoolDecision(2, text="worth it."))) == ["pool: 0 -> 2: worth it."]


def test_status_is_plain():
    plain = as_plain(STEADY, RUNS)
    (group,) = plain["groups"]
    assert (group["wanted"], group["target"], group["serve_target"]) == (2, 2, 2)
    assert (group["running"], group["starting"], group["draining"]) == (1, 1, 0)
    assert json.loads(json.dumps(plain))["reason"] == "steady"


@pytest.mark.parametrize(
    ("reason", "target", "may"),
    [
        (Reason.ASLEEP, 0, True), (Reason.BUDGET, 0, True), (Reason.UNKNOWN, 0, True),
        (Reason.FROZEN, 1, True), (Reason.FROZEN, 0, False), (Reason.MANUAL, 0, False),
    ],
)  # fmt: skip
def test_what_is_held_at_none_is_no_model_that_a_request_would_wake(reason, target, may):
    held = replace(STEADY, reason=reason, groups=(GroupTarget("", 0, target),))
    said = outlook(replace(TERMS, groups=(GroupTerms("", 0, 4),)), held, ())
    assert (said.may_sleep, said.wakes) == (may, may)
