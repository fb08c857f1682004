"""When a canary's counts abort its rollout, and how surely."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from deployments.contract.rollout.observations import (
    Observations,
    VersionObservations,
    seconds_of,
    step_of,
)
from deployments.contract.rollout.terms import AgreementTerms, RolloutTerms
from deployments.control.registry.rollout import at_least, at_most, complaint, median_s, whole

TERMS = RolloutTerms()


def version(answered: int = 0, failed: int = 0, took_s: float = 0.02) -> VersionObservations:
    latencies = {64: Counter({step_of(took_s): answered})} if answered else {}
    return VersionObservations(answered, failed, Counter({"boom": failed}), latencies)


def seen(**versions: VersionObservations) -> Observations:
    return Observations(1, 0, **versions)


def test_nothing_seen_is_nothing_wrong():
    assert complaint(Observations(1, 0), TERMS) == ""


def test_few_failures_fails_nobody_and_five_of_five_do():
    live = version(100)
    assert complaint(seen(live=live, canary=version(0, 4)), TERMS) == ""
    why = complaint(seen(live=live, canary=version(0, 5)), TERMS)
    assert why == ("5 of 5 requests failed (the live version: 0 of 100), most of them with boom")


def test_failures_that_the_live_version_has_too_are_no_ones():
    both = version(90, 10)
    assert complaint(seen(live=both, canary=both), TERMS) == ""


def test_failures_of_copies_count_as_well():
    assert "copied" in complaint(seen(live=version(50), copies=version(10, 10)), TERMS)


def test_the_more_there_are_the_smaller_a_share_counts():
    live = version(100_000)
    assert complaint(seen(live=live, canary=version(300, 5)), TERMS) == ""
    assert complaint(seen(live=live, canary=version(9_800, 200)), TERMS) != ""


def test_slower_by_more_than_asked_fails_and_by_less_does_not():
    live = version(200, took_s=0.02)
    assert complaint(seen(live=live, canary=version(200, took_s=0.027)), TERMS) == ""
    why = complaint(seen(live=live, canary=version(200, took_s=0.05)), TERMS)
    assert why.startswith("its p50 of requests is above")


def test_one_length_alone_fails_and_is_named():
    quick, slow = Counter({step_of(0.01): 1000}), Counter({step_of(0.2): 40})
    live = VersionObservations(1040, 0, Counter(), {8: quick, 512: Counter({step_of(0.05): 40})})
    canary = VersionObservations(1040, 0, Counter(), {8: quick, 512: slow})
    assert "requests up to 512 long" in complaint(seen(live=live, canary=canary), TERMS)


def generations(token_s: float) -> VersionObservations:
    """Of equal times to the first token."""
    found = version(200)
    found.token_s[step_of(token_s)] += 200
    return found


def test_slower_tokens_fails_a_version_whose_first_tokens_are_as_quick():
    live = generations(0.01)
    assert complaint(seen(live=live, canary=generations(0.013)), TERMS) == ""
    why = complaint(seen(live=live, canary=generations(0.03)), TERMS)
    assert why.startswith("its p50 of times from one token to the next is above")
    few = generations(0.0002)
    assert complaint(seen(live=few, canary=generations(0.0006)), TERMS) == ""


def test_a_millisecond_is_no_difference():
    live, canary = version(500, took_s=0.001), version(500, took_s=0.0024)
    assert complaint(seen(live=live, canary=canary), TERMS) == ""


@pytest.mark.parametrize(("agreed", "quarantined"), [(100, False), (98, False), (80, True)])
def test_rows_that_do_not_agree_fails_where_it_is_asked(agreed: int, quarantined: bool):
    both = Observations(1, 0, compared=100, agreed=agreed)
    assert complaint(both, TERMS) == ""
    asked = RolloutTerms(agreement=AgreementTerms(cosine=0.99))
    assert bool(complaint(both, asked)) is quarantined


def quarantined(draws: random.Random, slower: float, fails: float) -> bool:
    """Whether any look at 2,000 requests of three lengths, a quarter to the canary, does."""
    sums = Observations(1, 0)
    for number in range(2000):
        own = draws.random() < 0.25
        which = sums.canary if own else sums.live
        if draws.random() < (fails if own else 0.01):
            which.failed += 1
            continue
        which.answered += 1
        took_s = draws.lognormvariate(0, 0.7) * 0.02 * (slower if own else 1)
        histogram = which.latencies.setdefault(draws.choice((32, 128, 512)), Counter())
        histogram[step_of(took_s)] += 1
        if number % 50 == 0 and complaint(sums, TERMS):
            return True
    return False


@pytest.mark.parametrize(
    ("slower", "fails", "least", "most"),
    [(1, 0.01, 0, 1), (1.3, 0.01, 0, 1), (2, 0.01, 18, 20), (1, 0.2, 19, 20)],
    ids=["equal", "a third slower", "twice as slow", "fails often"],
)
def test_of_twenty_drawn_rollouts(slower: float, fails: float, least: int, most: int):
    draws = random.Random(11)
    assert least <= sum(quarantined(draws, slower, fails) for _ in range(20)) <= most


def histogram(latencies: list[float]) -> Counter[int]:
    return Counter(step_of(each) for each in latencies)


@pytest.mark.parametrize("latency_s", [0.0, 1e-4, 1.01e-4, 0.003, 0.5, 59.0])
def test_a_step_holds_what_is_in_it_within_a_tenth(latency_s: float):
    step = step_of(latency_s)
    assert latency_s <= seconds_of(step) * (1 + 1e-9)
    assert step == 0 or latency_s > seconds_of(step - 1) * (1 - 1e-9)


def test_too_few_bound_nothing():
    for few in ([], [0.1], [0.1] * 3):
        assert at_least(histogram(few), 0.9) is None or len(few) == 3
        assert at_most(histogram(few), 0.9) is None


def test_bounds_of_equal_latencies_are_their_steps_sides():
    same = histogram([0.1] * 100)
    assert at_least(same, 0.9) == pytest.approx(seconds_of(step_of(0.1) - 1))
    assert at_most(same, 0.5) == pytest.approx(seconds_of(step_of(0.1)))


@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_the_true_quantile_lies_between_the_bounds_nearly_always(quantile: float):
    """Of exponential latencies: 300 samples of 200, two sides of 95 % and a step wider."""
    draws, hits = random.Random(7), 0
    true = -0.05 * math.log(1 - quantile)
    for _ in range(300):
        seen = histogram([draws.expovariate(20) for _ in range(200)])
        low, high = at_least(seen, quantile), at_most(seen, quantile)
        assert low is not None
        assert high is not None
        hits += low <= true <= high
    assert hits >= 0.95 * 300


def test_all_lengths_are_summed_and_have_a_median():
    by_length = {8: histogram([0.1, 0.1]), 16: histogram([0.1, 0.9, 0.9])}
    assert sum(whole(by_length).values()) == 5
    assert median_s(whole(by_length)) == pytest.approx(seconds_of(step_of(0.1)))
    assert median_s({}) is None
