"""What is asked of a model over hours: a synthetic day with bursts, a recorded trace, a flat load.

Everything is drawn once, by a seed, into arrays: when each request comes, the seconds that it takes
of one replica, and how long it may wait before it is started. Policies are compared on the very
same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadtests.traffic.traces import read_trace

MEAN_COST_S = 0.25
COST_CV = 0.5
MAX_COST_S = 1.0
SLO_S = 1.0
DAY_S, HOUR_S = 86_400.0, 3_600.0
SWING = 0.7
PREFILL_S, DECODE_S = 0.00025, 0.004  # of a token
FIRST_TOKEN_S = 2.0

Rate = Callable[[np.ndarray], np.ndarray]
"""Requests a second at these times."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Ascending `times`; `costs`: seconds of one replica; `waits`: the longest that each may wait
    for its start and still be in time. slo_s: from arrival to answer, or to the first token.
    learn_s: of its begin, that is played but not counted. busy_at: replicas that the true rate of
    each second keeps busy, where that is known."""

    name: str
    seconds: float
    slo_s: float
    times: np.ndarray
    costs: np.ndarray
    waits: np.ndarray
    learn_s: float = 0.0
    busy_at: np.ndarray | None = None

    @property
    def busy(self) -> float:
        """Replicas that it would keep busy on average."""
        return float(self.costs.sum()) / self.seconds

    def cut(self, begin_s: float, end_s: float) -> Load:
        """That part of it, its begin at 0."""
        a, b = np.searchsorted(self.times, (begin_s, end_s))
        part = (self.times[a:b] - begin_s, self.costs[a:b], self.waits[a:b])
        return Load(self.name, end_s - begin_s, self.slo_s, *part)


@dataclass(frozen=True, slots=True)
class Burst:
    at: float
    seconds: float
    times: float  # the rate's multiple


def poisson(name: str, rate: Rate, seconds: float, seed: int) -> Load:
    """Arrivals at a rate that is constant within each tenth of a second; log-normal costs, cut."""
    rng = np.random.default_rng(seed)
    starts = np.arange(0.0, seconds, 0.1)
    counts = rng.poisson(0.1 * rate(starts))
    times = np.repeat(starts, counts) + rng.uniform(0.0, 0.1, counts.sum())
    times.sort()
    sigma = np.sqrt(np.log(1.0 + COST_CV**2))
    costs = rng.lognormal(np.log(MEAN_COST_S) - sigma**2 / 2, sigma, len(times))
    costs = np.minimum(costs, 0.8 * MAX_COST_S)
    busy_at = MEAN_COST_S * rate(np.arange(0.0, seconds))
    return Load(name, seconds, SLO_S, times, costs, SLO_S - costs, busy_at=busy_at)


def flat(busy: float, seconds: float, seed: int) -> Load:
    rate = busy / MEAN_COST_S
    return poisson(f"flat {busy:g}", lambda at: np.full(len(at), rate), seconds, seed)


def sawtooth(busy: float, period_s: float, seconds: float, seed: int) -> Load:
    """Rises evenly from a third of the mean to five thirds of it, then falls at once."""
    rate = busy / MEAN_COST_S

    def shape(at: np.ndarray) -> np.ndarray:
        return rate * (1 / 3 + 4 / 3 * (at % period_s) / period_s)

    return poisson(f"sawtooth {period_s:g} s", shape, seconds, seed)


def pulses(busy: float, period_s: float, seconds: float, seed: int) -> Load:
    """Three times the rate for 20 s of each period, the rest flat; `busy` without them."""
    starts = np.arange(0.0, seconds, period_s)
    bursts = [Burst(float(at), 20.0, 3.0) for at in starts]
    return bursty(f"pulses each {period_s:g} s", busy, seconds, bursts, seed)


def bursts_of(seed: int, count: int, seconds: float) -> list[Burst]:
    """Evenly spread at random, 10 to 120 s long, 2 to 4 times the rate."""
    rng = np.random.default_rng(1000 + seed)
    slot = seconds / count
    return [
        Burst(
            place * slot + rng.uniform(0.0, slot - 120.0),
            rng.uniform(10.0, 120.0),
            rng.uniform(2.0, 4.0),
        )
        for place in range(count)
    ]


def day(seed: int, busy: float = 8.0, count: int = 16) -> Load:
    """A mean of `busy`, 70 % up and down within the day, and bursts on top."""
    bursts, rate = bursts_of(seed, count, DAY_S), busy / MEAN_COST_S

    def shape(at: np.ndarray) -> np.ndarray:
        wave = 1.0 - SWING * np.cos(2 * np.pi * at / DAY_S)
        return rate * wave * times_of(bursts, at)

    return poisson("day", shape, DAY_S, seed)


def hourly(seed: int, busy: float = 8.0, hours: int = 12, learn_h: int = 4) -> Load:
    """A burst at the full hour, give or take 10 s, as timed jobs make it, and half as many at
    random besides."""
    rng = np.random.default_rng(2000 + seed)
    seconds = HOUR_S * hours
    timed = [
        Burst(HOUR_S * n + rng.uniform(-10.0, 10.0), rng.uniform(30.0, 90.0), rng.uniform(2.0, 4.0))
        for n in range(1, hours)
    ]
    bursts = timed + bursts_of(seed, hours // 2, seconds)
    return replace(bursty("hourly", busy, seconds, bursts, seed), learn_s=HOUR_S * learn_h)


def bursty(name: str, busy: float, seconds: float, bursts: Sequence[Burst], seed: int) -> Load:
    """Flat but for these bursts."""
    rate = busy / MEAN_COST_S
    return poisson(name, lambda at: rate * times_of(bursts, at), seconds, seed)


def times_of(bursts: Sequence[Burst], at: np.ndarray) -> np.ndarray:
    """What the rate is multiplied with; of bursts that meet, the last one's."""
    times = np.ones(len(at))
    for burst in bursts:
        times[(at >= burst.at) & (at < burst.at + burst.seconds)] = burst.times
    return times


def recorded(path: Path, seed: int) -> Load:
    """A trace of prompts and answers, each arrival moved by up to 1 s. A request costs by both, and
    must be prefilled within 2 s. Its first ten minutes are not counted: in production there would
    have been an hour before. Raises TraceError."""
    rng = np.random.default_rng(seed)
    rows = list(read_trace(path, outputs=True))
    times = np.array([row.at_s for row in rows]) + rng.uniform(0.0, 1.0, len(rows))
    prefill = PREFILL_S * np.array([float(row.length) for row in rows])
    costs = prefill + DECODE_S * np.array([float(row.output) for row in rows])
    order = np.argsort(times)
    waits = np.maximum(0.1, FIRST_TOKEN_S - prefill)
    seconds = float(np.ceil(times.max()))
    parts = (times[order], costs[order], waits[order])
    return Load(path.stem, seconds, FIRST_TOKEN_S, *parts, learn_s=min(600.0, seconds / 2))
