"""Which requests does a scenario make, and when?

The same for the simulator and the load generator: `Plan` gives them in order of time, one by one,
and says when a caller that was refused, or whose request has ended, sends again. Everything is
drawn from generators that hang on the scenario's seed and the tenant's name, arrivals apart from
what they are, so that a change to one tenant moves nothing of another's. Times are seconds from the
start of the warm-up.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from loadtests.traffic.scenario import Scenario, TenantPart
from loadtests.traffic.scenario_traffic import ArrivalsPart, LengthsPart
from loadtests.traffic.traces import read_trace
from loadtests.traffic.workload import changing_rates, pause_s, renewal_times


@dataclass(frozen=True, slots=True)
class Planned:
    """One request: `lengths` of its rows; `attempt` from 1; `session` "" for none; `in_loop`: a
    closed loop's, whose end lets the next one follow."""

    at_s: float
    tenant: str
    lengths: tuple[int, ...]
    gateway: int = 0
    session: str = ""
    attempt: int = 1
    in_loop: bool = False


class Plan:
    """`folder`: what the scenario's files are relative to. `gateways`: how many there are."""

    def __init__(self, scenario: Scenario, folder: Path, gateways: int = 1) -> None:
        self.scenario = scenario
        self._callers = {
            name: _Tenant(scenario, name, tenant, folder, gateways)
            for name, tenant in scenario.callers()
        }

    def requests(self) -> Iterator[Planned]:
        """Everything that comes of itself, in order of time. Raises TraceError."""
        return heapq.merge(*(each.requests() for each in self._callers.values()), key=_when)

    def again(self, request: Planned, now_s: float, retry_after_s: float) -> Planned | None:
        """The next try of a request that was refused or not answered in time, if its caller makes
        one; `retry_after_s`: what the refusal said, 0: nothing."""
        return self._callers[request.tenant].again(request, now_s, retry_after_s)

    def next_in_loop(self, request: Planned, now_s: float) -> Planned | None:
        """What follows in a closed loop once a request has ended for good."""
        return self._callers[request.tenant].next_in_loop(request, now_s)


class _Tenant:
    """One tenant's callers and their generators."""

    def __init__(
        self, scenario: Scenario, name: str, tenant: TenantPart, folder: Path, gateways: int
    ) -> None:
        arrivals = scenario.arrivals_of(tenant)
        assert arrivals is not None, "checked when the scenario was made"
        self._name = name
        self._tenant = tenant
        self._arrivals = arrivals
        self._lengths = scenario.lengths_of(tenant)
        self._slice = scenario.slice_of(name)
        self._warmup_s, self._run_s = scenario.warmup_s, scenario.run_s
        self._folder = folder
        shares = tenant.gateways or (1.0,) * gateways
        self._gateways = list(accumulate(shares))
        self._times, self._what, self._pauses = (
            random.Random(f"{scenario.seed} {name} {of}") for of in ("times", "what", "pauses")
        )
        self._parting = random.Random(f"{scenario.seed} parting")  # the same for every tenant
        self._draw = length_drawer(self._lengths)

    def requests(self) -> Iterator[Planned]:
        if self._arrivals.process == "trace":
            yield from self._recorded()
        elif self._arrivals.process == "closed":
            for _ in range(self._arrivals.clients):
                yield self._request(0.0, in_loop=True)
        else:
            share = self._slice[1] - self._slice[0]
            rates = rates_of(self._arrivals, share, self._warmup_s, self._run_s)
            cv = self._arrivals.cv if self._arrivals.process == "gamma" else 1.0
            for at_s in renewal_times(rates, self._run_s, self._times, cv):
                yield self._request(at_s)

    def again(self, request: Planned, now_s: float, retry_after_s: float) -> Planned | None:
        policy = self._tenant.retry
        if request.attempt >= policy.attempts:
            return None
        least_s = retry_after_s if policy.retry_after else 0.0
        rng = self._pauses if policy.jitter else None
        backoff_s, most_s = policy.backoff_ms / 1e3, policy.most_ms / 1e3
        at_s = now_s + pause_s(request.attempt, backoff_s, most_s, least_s, rng)
        return replace(request, at_s=at_s, attempt=request.attempt + 1)

    def next_in_loop(self, request: Planned, now_s: float) -> Planned | None:
        at_s = now_s + self._arrivals.think_s
        return self._request(at_s, in_loop=True) if request.in_loop and at_s < self._run_s else None

    def _recorded(self) -> Iterator[Planned]:
        path = self._folder / (self._arrivals.file or "")
        column = self._lengths.column
        for recorded_s, length in read_trace(path, self._arrivals.time_column, column or ""):
            at_s = recorded_s / self._arrivals.speed
            if at_s >= self._run_s:
                return
            if self._slice[0] <= self._parting.random() < self._slice[1]:
                yield self._request(at_s, length=None if column is None else length)

    def _request(self, at_s: float, *, in_loop: bool = False, length: int | None = None) -> Planned:
        tenant, rng = self._tenant, self._what
        if length is None:
            lengths = tuple([self._draw(rng) for _ in range(tenant.rows)])
        else:
            lengths = (_cut(length, self._lengths),) * tenant.rows
        gateways, gateway, session = self._gateways, 0, ""
        if len(gateways) > 1:
            drawn = rng.random() * gateways[-1]
            gateway = next(n for n, upto in enumerate(gateways) if drawn < upto)
        if tenant.sessions:
            session = f"{self._name}-{rng.randrange(tenant.sessions)}"
        return Planned(at_s, self._name, lengths, gateway, session, 1, in_loop)


def length_drawer(lengths: LengthsPart) -> Callable[[random.Random], int]:
    """A function that draws one row's length."""
    draw = _uncut(lengths)
    least, most = lengths.at_least, lengths.at_most
    if most is None and least == 1:
        return draw
    return lambda rng: _cut(draw(rng), lengths)


def rates_of(
    arrivals: ArrivalsPart, share: float, warmup_s: float, run_s: float
) -> list[tuple[float, float]]:
    """(from when on, requests a second) of a tenant that has this share of the arrivals."""
    steps = [(warmup_s + step.from_s, step.rate * share) for step in arrivals.steps]
    bursts: list[tuple[float, float]] = []
    if arrivals.bursts is not None:
        start = warmup_s + arrivals.bursts.first_s
        while start < run_s:
            bursts.append((start, start + arrivals.bursts.last_s))
            start += arrivals.bursts.every_s
    factor = 1.0 if arrivals.bursts is None else arrivals.bursts.factor
    return changing_rates((arrivals.rate or 0.0) * share, steps, bursts, factor)


def _uncut(lengths: LengthsPart) -> Callable[[random.Random], int]:
    if lengths.fixed is not None:
        fixed = lengths.fixed
        return lambda rng: fixed
    if lengths.bands is not None:
        bands = [(band.low, band.high) for band in lengths.bands]
        upto = list(accumulate(band.share for band in lengths.bands))
        return lambda rng: rng.randint(*rng.choices(bands, cum_weights=upto)[0])
    if lengths.lognormal is not None:
        mu, sigma = lengths.lognormal.mu, lengths.lognormal.sigma
        return lambda rng: max(1, round(rng.lognormvariate(mu, sigma)))
    if lengths.exponential is not None:
        rate = 1.0 / lengths.exponential.mean
        return lambda rng: max(1, round(rng.expovariate(rate)))
    return lambda rng: 1  # a trace's column says it


def _cut(length: int, lengths: LengthsPart) -> int:
    most = length if lengths.at_most is None else lengths.at_most
    return max(lengths.at_least, min(length, most))


def _when(request: Planned) -> float:
    return request.at_s
