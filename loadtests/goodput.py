"""Finds the highest rate at which a server keeps its promise.

A rate holds when at least 99 % of what was *offered* at it was answered in time. Doubling brackets
the highest such rate, bisection narrows it down. One run proves little, so each rate is decided by
the majority of up to `repeats` runs, and at the end both bounds are run in turn until each has had
`repeats` runs. The answer is an interval: up to `holds` every run held; at `fails` most did not.

The search is pure but for `measure`, which plays a load at a rate, waits until the server is idle
again, and gives the share in time. `ScenarioTrials` is the one that plays a scenario, all of whose
callers call more or less often, in proportion.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf, sqrt
from pathlib import Path

from loadtests.results.record import Record
from loadtests.run import PreparedRun
from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario import Scenario
from loadtests.traffic.scenario_file import ScenarioErrors
from loadtests.traffic.scenario_traffic import ArrivalsPart

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


# ---- a scenario at a rate ------------------------------------------------------------------------


class GeneratorBehind(RuntimeError):
    """This machine cannot send at the rate, so the measurement does not tell about the server."""


@dataclass(slots=True)
class ScenarioTrials:
    """`measure` for `search`. Each run has another seed. Between runs the server gets time to
    become idle: after a run in which callers gave up, it may still work for them for as long as
    their timeout. A run in which the generator fell behind is repeated once. `told`: hears of each
    run's rate and record."""

    ready: PreparedRun
    pause_s: float = 2.0
    told: Callable[[float, Record], None] = lambda rate, record: None
    sleep: Callable[[float], None] = time.sleep
    _own_rate: float = field(init=False)
    _numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        """Raises ScenarioErrors and TraceError."""
        self._own_rate = rate_of(self.ready.scenario, self.ready.options.scenario.parent)

    def measure(self, rate: float) -> float:
        """Raises GeneratorBehind, TraceError and WorkerLost."""
        record = self._played(rate)
        if record.client.behind:
            record = self._played(rate)
        if record.client.behind:
            raise GeneratorBehind(f"at {rate:.4g}/s {record.client.behind}")
        total = record.total()
        self.told(rate, record)
        return total.in_slo / total.offered if total.offered else 0.0

    def _played(self, rate: float) -> Record:
        scenario = scaled(self.ready.scenario, rate / self._own_rate)
        scenario = scenario.model_copy(update={"seed": scenario.seed + next(self._numbers)})
        record = replace(self.ready, scenario=scenario).play()
        gave_up = "timeout" in record.total().reasons
        self.sleep(self.pause_s + (self.ready.options.timeout_s if gave_up else 0.0))
        return record


def rate_of(scenario: Scenario, folder: Path) -> float:
    """First tries a second of the measured time, so that bursts, ramps and recordings count as they
    are. Raises ScenarioErrors where nobody calls at a rate, and TraceError."""
    arrivals = [scenario.arrivals_of(tenant) for _, tenant in scenario.callers()]
    if any(each is not None and each.process == "closed" for each in arrivals):
        raise ScenarioErrors("a closed loop has no rate; give the scenario arrivals that have one")
    planned = TrafficPlan(scenario, folder).requests()
    count = sum(each.at_s >= scenario.warmup_s for each in planned)
    if not count:
        raise ScenarioErrors("the scenario sends nothing in its measured time")
    return count / scenario.duration_s


def scaled(scenario: Scenario, factor: float) -> Scenario:
    tenants = {
        name: tenant.model_copy(update={"arrivals": _scaled(tenant.arrivals, factor)})
        for name, tenant in scenario.tenants.items()
    }
    arrivals = _scaled(scenario.arrivals, factor)
    return scenario.model_copy(update={"arrivals": arrivals, "tenants": tenants})


def _scaled(arrivals: ArrivalsPart | None, factor: float) -> ArrivalsPart | None:
    if arrivals is None:
        return None
    steps = [s.model_copy(update={"rate": s.rate * factor}) for s in arrivals.steps]
    return arrivals.model_copy(
        update={
            "rate": None if arrivals.rate is None else arrivals.rate * factor,
            "speed": arrivals.speed * factor if arrivals.process == "trace" else arrivals.speed,
            "steps": tuple(steps),
            "plus": tuple(_scaled(each, factor) for each in arrivals.plus),
        }
    )
