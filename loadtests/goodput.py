"""Finds the highest rate at which a server keeps its promise.

A rate holds when at least 99 % of what was *offered* at it was answered in time. Doubling brackets
the highest such rate, bisection narrows it down. One run proves little, so each rate is decided by
the majority of up to `repeats` runs, and at the end both bounds are run in turn until each has had
`repeats` runs. The answer is an interval: up to `holds` every run held; at `fails` most did not.

Pure but for `measure`, which plays a load at a rate, waits until the server is idle again, and
gives the share in time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, sqrt

LEAST = 0.99
MAX_HALVINGS = 10


@dataclass(frozen=True, slots=True)
class RateTrial:
    """One run: requests a second, and the share of them that was answered in time."""

    rate: float
    in_slo: float


@dataclass(frozen=True, slots=True)
class GoodputInterval:
    """Requests a second. `holds`: the highest rate that held in every run, 0: none did. `fails`:
    the lowest that failed in most runs, infinite: none did. `trials`: every run, in order."""

    holds: float
    fails: float
    trials: tuple[RateTrial, ...] = ()

    def __str__(self) -> str:
        if self.fails == inf:
            return f"at least {self.holds:.4g}/s"
        return f"{self.holds:.4g} to {self.fails:.4g}/s"


@dataclass(frozen=True, slots=True)
class Search:
    """`low`: where it begins. `high`: no rate above it is tried. `within`: how far apart, as a
    share of the lower, the bounds may stay."""

    low: float
    high: float = inf
    least: float = LEAST
    repeats: int = 3
    within: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"low is {self.low:g}, high is {self.high:g}; needs 0 < low <= high")
        if self.repeats < 1 or self.within <= 0 or not 0 < self.least <= 1:
            raise ValueError("needs repeats >= 1, within > 0 and 0 < least <= 1")


def search(measure: Callable[[float], float], asked: Search) -> GoodputInterval:
    """`measure(rate)`: the share, 0..1, of what was offered that was answered in time."""
    runs = _Runs(measure, asked)
    held, failed = _bracket(runs, asked)
    while held > 0 and failed < inf and failed > held * (1 + asked.within):
        middle = sqrt(held * failed)
        if runs.holds(middle):
            held = middle
        else:
            failed = middle
    return GoodputInterval(_confirmed(runs, held, failed), failed, tuple(runs.trials))


def _bracket(runs: _Runs, asked: Search) -> tuple[float, float]:
    """The highest rate known to hold (0: none) and the lowest known not to (infinite: none)."""
    rate, held, failed = asked.low, 0.0, inf
    for _ in range(MAX_HALVINGS):
        if runs.holds(rate):
            held = rate
            break
        failed = rate
        rate /= 2
    while failed == inf and held < asked.high:
        rate = min(asked.high, held * 2)
        if runs.holds(rate):
            held = rate
        else:
            failed = rate
    return held, failed


def _confirmed(runs: _Runs, held: float, failed: float) -> float:
    """The highest rate, at most `held`, that holds in all of its runs."""
    candidates = sorted((rate for rate in runs.shares if rate <= held), reverse=True)
    for rate in candidates:
        runs.complete([rate] if failed == inf else [rate, failed])
        if runs.always_held(rate):
            return rate
    return 0.0


@dataclass(slots=True)
class _Runs:
    """What has been measured. Shares by rate, in the order that they were."""

    measure: Callable[[float], float]
    asked: Search
    shares: dict[float, list[float]] = field(default_factory=dict)
    trials: list[RateTrial] = field(default_factory=list)

    def holds(self, rate: float) -> bool:
        """What most runs say; no more of them than it takes to know."""
        while True:
            good, bad = self._count(rate)
            if max(good, bad) * 2 > self.asked.repeats:
                return good > bad
            if good + bad >= self.asked.repeats:  # as many of each
                return False
            self._run(rate)

    def complete(self, rates: list[float]) -> None:
        """Runs them in turn until each has had all repeats, so that what drifts hits both alike."""
        while short := [rate for rate in rates if len(self.shares[rate]) < self.asked.repeats]:
            for rate in short:
                self._run(rate)

    def always_held(self, rate: float) -> bool:
        return self._count(rate)[1] == 0

    def _count(self, rate: float) -> tuple[int, int]:
        shares = self.shares.get(rate, [])
        good = sum(share >= self.asked.least for share in shares)
        return good, len(shares) - good

    def _run(self, rate: float) -> None:
        share = self.measure(rate)
        self.shares.setdefault(rate, []).append(share)
        self.trials.append(RateTrial(rate, share))
