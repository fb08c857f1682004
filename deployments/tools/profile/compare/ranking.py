"""Which candidate is fastest, by how much, and might that be chance?

Rates of runs, the first of which did not count. The distance to the best is a ratio of means with
an interval of 95 % by bootstrap: runs of the same round are drawn together, because what disturbs
the machine disturbs neighbours, and then passes within each run. Where the interval reaches 1 the
difference is within noise. Source: Efron & Tibshirani, "An Introduction to the Bootstrap" (1993).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from deployments.tools.profile.compare.process import Ran

DRAWS = 2000
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Ranked:
    """`tokens_per_s`: mean of runs, from `least` to `most`; seconds a batch; `ratio`: its rate to
    the best one's, from `low` to `high`."""

    name: str
    runs: int
    tokens_per_s: float
    least: float
    most: float
    mean_s: float
    p99_s: float
    ratio: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """It may as well be as fast as the best."""
        return self.high >= 1.0


def ranking(runs: Mapping[str, Sequence[Ran]], rng: Random) -> list[Ranked]:
    """By rate, the best first, whose ratio is 1. Of each candidate as many runs, by round; the
    first ones are those that count."""
    means = {name: _mean(each) for name, each in runs.items()}
    ordered = sorted(means, key=lambda name: -means[name])
    return [_ranked(name, runs[name], runs[ordered[0]], rng, best=name == ordered[0])
            for name in ordered]  # fmt: skip


def _ranked(
    name: str, own: Sequence[Ran], first: Sequence[Ran], rng: Random, *, best: bool
) -> Ranked:
    rates, took = [fmean(run.rates) for run in own], sorted(s for run in own for s in run.took)
    low, high = (1.0, 1.0) if best else _interval(own, first, rng)
    return Ranked(
        name, len(own), fmean(rates), min(rates), max(rates), fmean(took),
        took[min(len(took) - 1, round(0.99 * len(took)))], _mean(own) / _mean(first), low, high,
    )  # fmt: skip


def _mean(runs: Sequence[Ran]) -> float:
    return fmean(fmean(run.rates) for run in runs)


def _interval(own: Sequence[Ran], first: Sequence[Ran], rng: Random) -> tuple[float, float]:
    rounds = range(min(len(own), len(first)))
    ratios = []
    for _ in range(DRAWS):
        drawn = rng.choices(rounds, k=len(rounds))
        mine, theirs = (
            fmean(
                fmean(rng.choices(runs[place].rates, k=len(runs[place].rates))) for place in drawn
            )
            for runs in (own, first)
        )
        ratios.append(mine / theirs)
    ratios.sort()
    return ratios[int(_TAIL * DRAWS)], ratios[int((1 - _TAIL) * DRAWS) - 1]
