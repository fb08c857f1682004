"""Is a difference called noise exactly where runs lie further apart than the candidates?"""

from __future__ import annotations

from random import Random

import pytest

from deployments.tools.profile.compare.command import Ranked, ranking, verdict
from deployments.tools.profile.compare.contest import Ran


def runs(*rates: float) -> list[Ran]:
    return [Ran((rate,), (0.01, 0.01, 0.05)) for rate in rates]


def ranked(**candidates: list[Ran]) -> dict[str, Ranked]:
    return {each.name: each for each in ranking(candidates, Random(0))}


def test_a_clear_difference_is_none_of_chance() -> None:
    found = ranked(slow=runs(100, 101, 99, 100), fast=runs(202, 200, 200, 198))
    assert list(found) == ["fast", "slow"]
    slow = found["slow"]
    assert slow.ratio == pytest.approx(0.5)
    assert 0.49 < slow.low < 0.5 < slow.high < 0.51
    assert not slow.is_noise
    assert (slow.mean_s, slow.p99_s) == (pytest.approx(0.07 / 3), 0.05)
    assert (slow.tokens_per_s, slow.least, slow.most) == (100, 99, 101)


def test_a_difference_smaller_than_runs_lie_apart_is_noise() -> None:
    found = ranked(a=runs(100, 140, 90, 120), b=runs(110, 95, 125, 110))
    assert [each.is_noise for each in found.values()] == [True, True]
    low, high = found["b"].low, found["b"].high
    assert low < 1.0 <= high


def test_what_disturbs_a_whole_round_disturbs_no_judgement() -> None:
    # Rounds differ threefold, the candidates by 5 % in each of them.
    found = ranked(a=runs(100, 300, 150, 200), b=runs(95, 285, 142.5, 190))
    assert found["b"].ratio == pytest.approx(0.95)
    assert not found["b"].is_noise


def test_passes_within_a_run_widen_the_interval() -> None:
    spread = [Ran((50.0, 150.0), (0.01,))] * 4
    found = ranked(steady=runs(105, 105, 105, 105), spread=spread)
    assert found["spread"].is_noise


def test_the_best_has_no_interval() -> None:
    (best,) = ranking({"only": runs(1, 2, 3, 4)}, Random(0))
    assert (best.ratio, best.low, best.high) == (1.0, 1.0, 1.0)
    assert list(verdict([best])) == ["Fastest for this model at these lengths: only."]


def test_the_verdict_names_ties_and_by_how_much_the_next_is_slower() -> None:
    found = ranking(
        {
            "a": runs(200, 201, 199, 200),
            "b": runs(199, 201, 200, 199),
            "c": runs(100, 100, 99, 101),
        },
        Random(0),
    )
    first, ties, slower = verdict(found)
    assert first.endswith(": a.")
    assert ties == "Within noise of it: b."
    assert slower.startswith("2.00 times as fast (")
    assert slower.endswith(" as c.")
    assert list(verdict([])) == []
