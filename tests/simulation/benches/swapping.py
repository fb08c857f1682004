"""Eight models over room for three: what do requests wait for, and how often is a model swapped?

`python -m tests.simulation.benches.swapping`. One pool replica (`pooled_models`), loads of 2 s, SLO
1 s, 10 s of patience, 20 requests/s, which keep the device about half busy. *Shifting*: one of
three groups (three, three and two models) is asked for at a time, for 10 minutes on average, then
another one; one request in 200 is for any model. *Stationary*: Zipf 1.2, where nothing beats the
static top three. Ours is `autoscaling.pool` told by the production demand windows
(`DemandView.recent_rate`); a minute's forecast says nothing about the next seconds, so none is
used. *Engines* sleep when they go, and are back within 0.2 s. Everything is decided by seeds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Options,
    Runs,
    median,
    spread,
    table,
)
from loadtests.results.report_table import BenchVerdict, Table, at_least, at_most
from tests.simulation.benches.pooled_models import LOAD_S, Outcome, PoolReplica, SwapPolicy
from tests.simulation.benches.swap_policies import Gdsf, Lfu, Lru, Ours, Static, last_8_s

MODELS = "abcdefgh"
GROUPS = ("abc", "def", "gh")
RATE = 20.0
TAIL = 1 / 200
MEAN_S, MIN_S = 600.0, 60.0
WARM_UP_S = 600.0
ZIPF = tuple(accumulate(1 / rank**1.2 for rank in range(1, len(MODELS) + 1)))
SHIFTING, STATIONARY = "shifting", "stationary"
OURS, STATIC = "ours", "static top 3"
STAY_S = 10 * LOAD_S
RIVALS: dict[str, Callable[[], SwapPolicy]] = {
    "LRU": Lru,
    "LFU": Lfu,
    "GDSF": Gdsf,
    f"LRU, stays {STAY_S:g} s": lambda: Lru(STAY_S),
    f"GDSF, stays {STAY_S:g} s": lambda: Gdsf(STAY_S),
    STATIC: lambda: Static(tuple(MODELS)),
}
WAKE_S = 0.2
WAKES, LOADS = "engines", "engines, priced by their loads"
ENGINES: dict[str, Callable[[], SwapPolicy]] = {
    WAKES: lambda: Ours(MODELS, wake_s=WAKE_S),
    LOADS: lambda: Ours(MODELS),
}
POLICIES: dict[str, Callable[[], SwapPolicy]] = {
    OURS: lambda: Ours(MODELS),
    "ours, told the last 8 s": lambda: Ours(MODELS, last_8_s),
    **RIVALS,
    **ENGINES,
}
Requests = Iterator[tuple[float, str]]


def shifting(seconds: float, seed: int) -> Requests:
    rng = random.Random(f"shifting {seed}")
    now, until, group = 0.0, 0.0, 0
    while (now := now + rng.expovariate(RATE)) < seconds:
        while now >= until:
            group = (group + rng.choice((1, 2))) % len(GROUPS)
            until += MIN_S + rng.expovariate(1.0 / (MEAN_S - MIN_S))
        yield now, rng.choice(MODELS if rng.random() < TAIL else GROUPS[group])


def stationary(seconds: float, seed: int) -> Requests:
    rng, now = random.Random(f"stationary {seed}"), 0.0
    while (now := now + rng.expovariate(RATE)) < seconds:
        yield now, rng.choices(MODELS, cum_weights=ZIPF)[0]


TRAFFIC = {SHIFTING: shifting, STATIONARY: stationary}


@dataclass(frozen=True, slots=True)
class Swapping:
    """One run. in_time: share of the requests within the SLO, 0..1; p99_s: of all of them, those
    that missed with their patience; last_swap_s: when, after the warm-up; 0: never."""

    in_time: float
    p99_s: float
    missed: int
    swaps_an_hour: float
    last_swap_s: float


def ran(traffic: str, policy: str, seed: int, seconds: float) -> Swapping:
    wake_s = WAKE_S if policy in ENGINES else LOAD_S
    replica = PoolReplica(POLICIES[policy](), MODELS, wake_s)
    found: Outcome = replica.run(TRAFFIC[traffic](WARM_UP_S + seconds, seed), WARM_UP_S)
    last_s = max((at - WARM_UP_S for at in found.swapped_at if at > WARM_UP_S), default=0.0)
    return Swapping(found.in_time, found.p99_s, found.missed, found.swaps_an_hour, last_s)


def runs(options: Options) -> Iterator[BenchRun]:
    for traffic in TRAFFIC:
        for policy in POLICIES:
            for seed in range(1, options.seeds + 1):
                yield BenchRun(policy, ran(traffic, policy, seed, 60.0 * options.minutes), traffic)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    columns = (
        ("in time", lambda mine: f"{100 * mine.median('in_time'):.2f} %"),
        ("least–most", lambda mine: mine.spread(lambda each: 100 * each.in_time)),
        ("p99 s", median("p99_s")),
        ("least–most s", spread("p99_s")),
        ("missed", median("missed")),
        ("swaps an hour", median("swaps_an_hour")),
    )
    for traffic in TRAFFIC:
        rows = {policy: done.of(policy, traffic) for policy in POLICIES}
        yield table(f"{traffic.capitalize()}", columns, rows, "policy")


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    ours = done.of(OURS, SHIFTING)
    for rival in RIVALS:
        theirs = done.of(rival, SHIFTING)
        p99_s, in_time = theirs.median("p99_s"), theirs.median("in_time")
        yield at_most(
            f"shifting: p99 at most {rival}'s, {p99_s:.2f} s", ours.median("p99_s"), p99_s, " s"
        )
        yield at_least(
            f"shifting: in time at least {rival}'s, {in_time:.4f}", ours.median("in_time"), in_time
        )
    wakes, loads = done.of(WAKES, SHIFTING), done.of(LOADS, SHIFTING)
    yield at_least(
        "shifting: engines that are priced by their waking, in time",
        wakes.median("in_time"),
        loads.median("in_time"),
    )
    ours, static = done.of(OURS, STATIONARY), done.of(STATIC, STATIONARY)
    # Within what three standard errors of so many requests are.
    yield at_least(
        "stationary: in time as static top 3, less 0.3 % of the requests",
        ours.median("in_time"),
        static.median("in_time") - 0.003,
    )
    yield at_most("stationary: swaps an hour", ours.median("swaps_an_hour"), 2.0)


BENCH = Bench(
    name="swapping",
    about=__doc__,
    title="Eight models over room for three: waits and swaps",
    options={"seeds": BenchOption(5), "minutes": BenchOption(60.0, "of traffic that count, a run")},
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=(
        "Medians over the seeds. A request that is not answered in 10 s has missed and counts with "
        "10 s in p99: with a static choice, those for every other model. In production such a "
        "request would start a replica of its model's own; here nobody has one.",
        "A stay of ten loads makes on-demand policies worse: they load the tail's models and must "
        "keep them.",
    ),
    record=lambda each: {
        "in_time": each.in_time,
        "p99_s": each.p99_s,
        "missed": each.missed,
        "swaps_an_hour": each.swaps_an_hour,
        "last_swap_s": each.last_swap_s,
    },
    package="tests.simulation.benches",
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
