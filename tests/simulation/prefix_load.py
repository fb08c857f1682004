"""Prompts that begin alike, on engines whose caches hold a part of the beginnings: for simulations.

`python -m tests.simulation.prefix_load` prints the table of docs/generation.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from math import inf
from random import Random
from statistics import fmean
from typing import Any

from routers.api.requests import Generation
from routers.simulation.simulator import World, run
from routers.simulation.traffic import Arrival, SimRecorder
from runtimes.synthetic.engine import EngineShape
from tests.simulation.generation_load import ENGINE, Ran, engines, settings

REPLICAS, GATEWAYS, RATE = 4, 4, 40.0
BEGINNINGS, SHARED_TOKENS, OWN_TOKENS = 240, 1024, 128
BLOCK = 16
SEEDS = (1, 2)
COALESCE_S = 0.05  # as `deployments.replica.told_blocks`


def shape(beginnings: int) -> EngineShape:
    """An engine whose cache holds so many beginnings."""
    return replace(ENGINE, cache_tokens=beginnings * (SHARED_TOKENS + OWN_TOKENS))


def arrivals(
    seed: object, until: float, gateways: int = 1, rate: float = RATE
) -> Iterator[Arrival]:
    """Zipf: the n-th beginning comes 1/n times as often as the first. To any gateway. Every 30 s
    half of the beginnings trade places, so that what was asked for often is not for ever."""
    rng, at, changes = Random(f"prefixes {seed}"), 0.0, 30.0
    order = list(range(BEGINNINGS))
    weights = list(accumulate(1.0 / n for n in range(1, BEGINNINGS + 1)))
    while (at := at + rng.expovariate(rate)) < until:
        if at > changes:
            changes += 30.0
            moved = rng.sample(range(BEGINNINGS), BEGINNINGS // 2)
            for one, other in zip(moved, [*moved[1:], moved[0]], strict=True):
                order[one], order[other] = order[other], order[one]
        (beginning,) = rng.choices(order, cum_weights=weights)
        first = beginning << 20
        own, count = rng.getrandbits(40) << 20, rng.randint(1, OWN_TOKENS)
        shared = tuple(range(first, first + SHARED_TOKENS // BLOCK))
        blocks = (*shared, *range(own, own + count // BLOCK))
        yield Arrival(
            at, (SHARED_TOKENS + count,), 2.0, 60.0, gateway=rng.randrange(gateways),
            generation=Generation(256, 1, blocks), output=rng.randint(20, 100),
        )  # fmt: skip


def play(
    engine: EngineShape,
    until: float,
    *,
    gateways: int = GATEWAYS,
    tells_blocks_s: float = COALESCE_S,
    transport_s: float = 0.001,
    seed: object = 1,
    **more: Any,
) -> Ran:
    """`more`: of the core's `GenerationParameters`."""
    recorder = SimRecorder()
    devices = engines(REPLICAS, engine, tells_blocks_s=tells_blocks_s, transport_s=transport_s)
    world = World(devices, gateways=gateways, built=[])
    run(settings(engine, generation=more), arrivals(seed, until, gateways), world, recorder)
    return Ran(recorder.outcomes, [], world.built or [])


ORACLE: dict[str, Any] = {"tells_blocks_s": 0.0, "transport_s": 0.0}
# By name: who knows what.
WAYS: dict[str, dict[str, Any]] = {
    "oracle: told at once": ORACLE,
    "told": {},
    "told after 1 s": {"tells_blocks_s": 1.0},
    "estimated": {"tells_blocks_s": inf},
    "one gateway, estimated": {"gateways": 1, "tells_blocks_s": inf},
    "by load alone": {"affinity": "off"},
}


def table(*sizes: int, until: float = 90.0) -> Iterator[str]:
    """`sizes`: beginnings that a cache holds."""
    yield "| caches | known | prompts cached | of the oracle | first token p50 ms | p99 ms |"
    yield "|---|---|---|---|---|---|"
    for held in sizes:
        best = 0.0
        for name, how in WAYS.items():
            rans = [play(shape(held), until, **how, seed=seed) for seed in SEEDS]
            rate = fmean(ran.hit_rate() for ran in rans)
            best = best or rate
            p50, p99 = (
                fmean(1000 * ran.first_token_s(q, "default") for ran in rans) for q in (0.5, 0.99)
            )
            yield (
                f"| {REPLICAS} × {held} of {BEGINNINGS} | {name} | {rate:.3f} | {rate / best:.3f} "
                f"| {p50:.0f} | {p99:.0f} |"
            )


if __name__ == "__main__":
    for line in table(*map(int, sys.argv[1:] or ("20", "40", "80"))):
        print(line, flush=True)
