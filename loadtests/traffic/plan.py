"""Which requests does a scenario make, and when?

The simulator and the load generator use the same plan. `TrafficPlan` returns requests one by one in
order of time, and says when a caller sends again after a refusal or after its request has ended.
All random numbers depend on the scenario's seed and the tenant's name; arrival times and contents
have generators of their own. So a change to one tenant changes no other tenant's requests. Times
are seconds from the start of the warm-up.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path

from loadtests.traffic.scenario import Scenario, TenantPart
from loadtests.traffic.scenario_traffic import ArrivalsPart, EmpiricalPart, LengthsPart
from loadtests.traffic.traces import (
    Columns,
    TraceRow,
    exact_s,
    read_lengths,
    read_trace,
    smeared,
)
from loadtests.traffic.workload import changing_rates, intervals, pause_s, renewal_times

MALFORMED_LEAVES_S = 1.0  # some of it is never answered


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of the plan."""

    at_s: float  # when it is meant to be sent
    tenant: str
    lengths: tuple[int, ...]  # of its rows, tokens
    gateway: int = 0
    session: str = ""  # "": none
    attempt: int = 1  # counted from 1
    in_loop: bool = False  # of a closed loop: when it ends, the loop's next request follows
    output: int = 0  # tokens asked for; 0: the request does not say
    leave_s: float | None = None  # seconds after it was sent at which its caller disconnects
    malformed: bool = False  # it is made wrong on purpose


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Every `of`th request, from number `number` on. All parts together are the whole plan."""

    number: int = 0
    of: int = 1


class TrafficPlan:
    """`folder`: what the scenario's files are relative to. `gateways`: how many there are. `part`:
    which of the requests are this one's. Raises TraceError where lengths are read from a file."""

    def __init__(
        self, scenario: Scenario, folder: Path, gateways: int = 1, part: PlanPart | None = None
    ) -> None:
        self.scenario = scenario
        self._part = part or PlanPart()
        self._callers = {
            name: _Tenant(scenario, name, tenant, _Place(folder, gateways, self._part))
            for name, tenant in scenario.callers()
        }

    def requests(self) -> Iterator[Planned]:
        """Everything that comes of itself, in order of time. Raises TraceError."""
        whole = heapq.merge(*(each.requests() for each in self._callers.values()), key=_when)
        return islice(whole, self._part.number, None, self._part.of)

    def again(self, request: Planned, now_s: float, retry_after_s: float) -> Planned | None:
        """The next try of a request that was refused or not answered in time, if its caller makes
        one; `retry_after_s`: what the refusal said, 0: nothing."""
        return self._callers[request.tenant].again(request, now_s, retry_after_s)

    def next_in_loop(self, request: Planned, now_s: float) -> Planned | None:
        """What follows in a closed loop once a request has ended for good."""
        return self._callers[request.tenant].next_in_loop(request, now_s)


@dataclass(frozen=True, slots=True)
class _Place:
    folder: Path
    gateways: int
    part: PlanPart


class _Tenant:
    """One tenant's callers and their generators."""

    def __init__(self, scenario: Scenario, name: str, tenant: TenantPart, place: _Place) -> None:
        arrivals = scenario.arrivals_of(tenant)
        assert arrivals is not None, "checked when the scenario was made"
        self._name = name
        self._tenant = tenant
        self._arrivals = arrivals
        self._lengths = scenario.lengths_of(tenant)
        self._output = scenario.output_of(tenant)
        self._slice = scenario.slice_of(name)
        self._warmup_s, self._run_s = scenario.warmup_s, scenario.run_s
        self._folder = place.folder
        shares = tenant.gateways or (1.0,) * place.gateways
        self._gateways = list(accumulate(shares))
        self._seed = f"{scenario.seed} {name}"
        self._what = random.Random(f"{self._seed} what")
        self._conduct = random.Random(f"{self._seed} conduct")
        # What answers lead to differs from part to part, and may not be drawn alike.
        number = f" {place.part.number}" if place.part.number else ""
        self._pauses = random.Random(f"{self._seed} pauses{number}")
        self._next = random.Random(f"{self._seed} next{number}") if number else self._what
        self._parting = random.Random(f"{scenario.seed} parting")  # the same for every tenant
        self._draw = length_drawer(self._lengths, place.folder)
        self._draw_output = length_drawer(self._output, place.folder) if self._output else None

    def requests(self) -> Iterator[Planned]:
        if self._arrivals.process == "closed":
            for _ in range(self._arrivals.clients):
                yield self._request(TraceRow(0.0, 0), in_loop=True)
            return
        sources = enumerate(self._arrivals.sources)
        for coming in heapq.merge(*(self._source(n, of) for n, of in sources), key=_when):
            yield self._request(coming)

    def again(self, request: Planned, now_s: float, retry_after_s: float) -> Planned | None:
        policy = self._tenant.retry
        if request.attempt >= policy.attempts:
            return None
        min_s = retry_after_s if policy.retry_after else 0.0
        rng = self._pauses if policy.jitter else None
        backoff_s, max_s = policy.backoff_ms / 1e3, policy.max_ms / 1e3
        at_s = now_s + pause_s(request.attempt, backoff_s, max_s, min_s, rng)
        return replace(request, at_s=at_s, attempt=request.attempt + 1)

    def next_in_loop(self, request: Planned, now_s: float) -> Planned | None:
        at_s = now_s + self._arrivals.think_s
        if not request.in_loop or at_s >= self._run_s:
            return None
        return self._request(TraceRow(at_s, 0), in_loop=True, rng=self._next)

    def _source(self, number: int, of: ArrivalsPart) -> Iterator[TraceRow]:
        """When one source's requests come; lengths are 0 where they are not recorded."""
        rng = random.Random(f"{self._seed} times{number or ''}")
        if of.process == "trace":
            yield from self._recorded(of, rng)
            return
        rates = rates_of(of, self._slice[1] - self._slice[0], self._warmup_s, self._run_s)
        for at_s in renewal_times(rates, self._run_s, intervals(of.process, of.cv, rng)):
            yield TraceRow(at_s, 0)

    def _recorded(self, of: ArrivalsPart, rng: random.Random) -> Iterator[TraceRow]:
        path = self._folder / (of.file or "")
        output = self._output.column if self._output else None
        columns = Columns(of.time_column, self._lengths.column or "", output or "")
        rows = read_trace(path, columns, outputs=output is not None)
        by_s = exact_s(path) if of.smear_s is None else of.smear_s
        for row in smeared(rows, by_s, rng) if by_s else rows:
            at_s = row.at_s / of.speed
            if at_s >= self._run_s:
                return
            if self._slice[0] <= self._parting.random() < self._slice[1]:
                yield TraceRow(at_s, row.length, row.output)

    def _request(
        self, coming: TraceRow, *, in_loop: bool = False, rng: random.Random | None = None
    ) -> Planned:
        tenant, rng = self._tenant, rng or self._what
        if self._lengths.column is None:
            lengths = tuple([self._draw(rng) for _ in range(tenant.rows)])
        else:
            lengths = (_cut(coming.length, self._lengths),) * tenant.rows
        gateways, gateway, session = self._gateways, 0, ""
        if len(gateways) > 1:
            drawn = rng.random() * gateways[-1]
            gateway = next(n for n, upto in enumerate(gateways) if drawn < upto)
        if tenant.sessions:
            session = f"{self._name}-{rng.randrange(tenant.sessions)}"
        malformed = self._happens(tenant.malformed)
        return Planned(
            coming.at_s,
            self._name,
            lengths,
            gateway,
            session,
            in_loop=in_loop,
            output=self._output_of(coming, rng),
            leave_s=MALFORMED_LEAVES_S if malformed else self._leave_s(),
            malformed=malformed,
        )

    def _output_of(self, coming: TraceRow, rng: random.Random) -> int:
        if self._output is None or self._draw_output is None:
            return 0
        if self._output.column is not None:
            return _cut(coming.output, self._output)
        return self._draw_output(rng)

    def _leave_s(self) -> float | None:
        after_ms = self._tenant.leave_after_ms
        leaves = after_ms is not None and self._happens(self._tenant.leave_share)
        return after_ms / 1e3 if leaves and after_ms is not None else None

    def _happens(self, share: float) -> bool:
        return share >= 1.0 or (share > 0.0 and self._conduct.random() < share)


def length_drawer(lengths: LengthsPart, folder: Path = Path()) -> Callable[[random.Random], int]:
    """A function that draws one row's length. Raises TraceError where they are read from a file."""
    draw = _uncut(lengths, folder)
    least, most = lengths.at_least, lengths.at_most
    if most is None and least == 1:
        return draw
    return lambda rng: _cut(draw(rng), lengths)


def rates_of(
    arrivals: ArrivalsPart, share: float, warmup_s: float, run_s: float
) -> list[tuple[float, float]]:
    """(from when on, requests a second) of a tenant that has this share of the arrivals."""
    steps = [(0.0, (arrivals.rate or 0.0) * share, 0.0)]
    steps += [(warmup_s + s.from_s, s.rate * share, s.ramp_s) for s in arrivals.steps]
    bursts: list[tuple[float, float]] = []
    if arrivals.bursts is not None:
        start = warmup_s + arrivals.bursts.first_s
        while start < run_s:
            bursts.append((start, start + arrivals.bursts.last_s))
            start += arrivals.bursts.every_s
    factor = 1.0 if arrivals.bursts is None else arrivals.bursts.factor
    return changing_rates(steps, bursts, factor)


def _uncut(lengths: LengthsPart, folder: Path) -> Callable[[random.Random], int]:
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
    if lengths.empirical is not None:
        return _counted(lengths.empirical, folder)
    return lambda rng: 1  # a trace's column says it


def _counted(of: EmpiricalPart, folder: Path) -> Callable[[random.Random], int]:
    if of.file is None:
        lengths: Sequence[int] = of.lengths
        counts: Sequence[float] = of.counts or (1.0,) * len(of.lengths)
    else:
        found = Counter(read_lengths(folder / of.file, of.column))
        lengths, counts = list(found), list(found.values())
    upto = list(accumulate(counts))
    return lambda rng: rng.choices(lengths, cum_weights=upto)[0]


def _cut(length: int, lengths: LengthsPart) -> int:
    most = length if lengths.at_most is None else lengths.at_most
    return max(lengths.at_least, min(length, most))


def _when(request: Planned | TraceRow) -> float:
    return request.at_s
