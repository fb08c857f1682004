"""How many requests are answered in time with given bucket edges?

The real dispatcher, simulated, with fixed edges, or a plain FIFO; Poisson arrivals, open loop, one
device of 5 ms + 0.2 ms·B + 8 µs·B·L that works on one batch at a time and holds another. Shares are
of offered requests. Decided by the seeds alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean

from loadtests.traffic.workload import poisson_times
from routers.api.settings import BucketSettings, DispatcherSettings
from routers.batch.scheduler import BatchScheduler
from routers.simulation.baselines import Fifo
from routers.simulation.simulator import Arrival, SimDevice, World, run
from routers.simulation.traffic import SimLease, SimOutcome
from tests.simulation.benches.lengths import FRESH_ROWS, Lengths

FIFO = "FIFO"
FIXED = BucketSettings()


def service_s(rows: float, width: float) -> float:
    return 0.005 + 0.0002 * rows + 8e-6 * rows * width


def settings_of(
    lengths: Lengths, edges: tuple[int, ...], buckets: BucketSettings = FIXED
) -> DispatcherSettings:
    return DispatcherSettings(edges, slo_s=lengths.slo_s, buckets=buckets)


@dataclass(slots=True)
class Tallied:
    """A observer that counts; times in ms, of requests that were answered."""

    offered: int = 0
    in_slo: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    batches: int = 0
    rows: int = 0
    waits_ms: list[float] = field(default_factory=list)

    def arrived(self, outcome: SimOutcome, now: float) -> None:
        self.offered += 1

    def ended(self, outcome: SimOutcome, now: float) -> None:
        self.in_slo += outcome.in_slo
        if outcome.answered_at is not None:
            self.waits_ms.append(1e3 * (outcome.answered_at - outcome.arrival.at))

    def sent(self, sim_lease: SimLease, now: float) -> None:
        pass

    def served(self, sim_lease: SimLease, service_s: float, now: float) -> None:
        self.batches += 1
        self.rows += len(sim_lease.members)
        self.tokens += sim_lease.tokens
        self.padded_tokens += sim_lease.padded_tokens


@dataclass(frozen=True, slots=True)
class InTime:
    """`share` of offered requests within the SLO, over seeds; the rest are means over them."""

    lengths: str
    rate: float
    kind: str
    edges: tuple[int, ...]
    shares: tuple[float, ...]
    p50_ms: float
    p99_ms: float
    rows_a_batch: float
    padding: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Poisson arrivals of single rows; each seed gives others."""

    lengths: Lengths
    rate: float
    requests: int

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        rng, slo_s = random.Random(seed), self.lengths.slo_s
        for at in poisson_times(self.rate, self.requests / self.rate, rng):
            yield Arrival(at, (self.lengths.draw(rng),), slo_s, 10 * slo_s)


def tallied(traffic: Traffic, kind: str, edges: tuple[int, ...], seed: int) -> Tallied:
    tally = Tallied()
    world = World((SimDevice("a", service_s),), core=Fifo if kind == FIFO else BatchScheduler)
    run(settings_of(traffic.lengths, edges), traffic.arrivals(seed), world, tally)
    return tally


def in_time(traffic: Traffic, kind: str, edges: tuple[int, ...], seeds: int) -> InTime:
    tallies = [tallied(traffic, kind, edges, seed) for seed in range(1, seeds + 1)]
    return InTime(
        traffic.lengths.name,
        traffic.rate,
        kind,
        edges,
        tuple(each.in_slo / each.offered for each in tallies),
        mean(percentile(each.waits_ms, 0.5) for each in tallies),
        mean(percentile(each.waits_ms, 0.99) for each in tallies),
        mean(each.rows / each.batches for each in tallies),
        mean(each.padded_tokens / each.tokens - 1.0 for each in tallies),
    )


def percentile(values: Sequence[float], quantile: float) -> float:
    """NaN when there are none."""
    return sorted(values)[round(quantile * (len(values) - 1))] if values else float("nan")


def sorted_rate(lengths: Lengths) -> float:
    """Rows a second of the device when it is always full and its rows are sorted by length."""
    rows = sorted(lengths.sample(FRESH_ROWS, seed=3))
    bounds = settings_of(lengths, (lengths.longest,))
    longest_s, seconds, at = bounds.max_slo_share * bounds.slo_s, 0.0, 0
    while at < len(rows):
        size = 1
        while at + size < len(rows) and size < bounds.max_size:
            longest = rows[at + size]
            tokens, takes_s = (size + 1) * longest, service_s(size + 1, longest)
            if tokens > bounds.max_tokens or takes_s > longest_s:
                break
            size += 1
        seconds += service_s(size, rows[at + size - 1])
        at += size
    return len(rows) / seconds
