"""What do the core's policies do for generation, beside requests that go straight to the engines?

The real dispatcher, simulated: engines whose step takes 8 ms + 0.1 ms a sequence + 50 µs a token
read, 2,048 tokens a step, 128 sequences, a cache of 120,000 tokens in blocks of 16; Poisson
arrivals, open loop, the first 10 s not counted. "In turn": each request goes to the next engine at
once and waits there, first come, first served. Times are means over the seeds, which decide all.

    python -m tests.simulation.benches.generation [--seeds 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from statistics import mean

from tests.simulation.generation_load import ENGINE, Kind, Ran, jain, play, weighted

CHAT = Kind("chat", 18, (30, 300), (20, 200), slo_s=1.0)
DOCUMENTS = Kind("documents", 1.35, (2000, 12_000), (20, 200), slo_s=4.0)
Seeds = range


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def _s(runs: Iterable[Ran], quantile: float, *tenants: str) -> str:
    return f"{mean(ran.first_token_s(quantile, *tenants) for ran in runs):.3f}"


def beside_long_prompts(seeds: Seeds) -> None:
    row("load", "replicas", "way", "chat first p50 s", "p99", "documents p50", "p99")
    for share, replicas in ((0.78, 1), (1.0, 1), (0.78, 2), (1.0, 2)):
        kinds = [replace(each, rate=each.rate * share * replicas) for each in (CHAT, DOCUMENTS)]
        for way, in_turn in (("in turn", True), ("headrace", False)):
            runs = [play(kinds, replicas, 60, seed=seed, in_turn=in_turn) for seed in seeds]
            chat = (_s(runs, 0.5, "chat"), _s(runs, 0.99, "chat"))
            documents = (_s(runs, 0.5, "documents"), _s(runs, 0.99, "documents"))
            row(share, replicas, way, *chat, *documents)


def long_prompts_at_once(seeds: Seeds) -> None:
    kinds = [replace(CHAT, rate=30.6), replace(DOCUMENTS, rate=0.99, prompt=(2000, 30_000))]
    row("max_long_tokens", "chunk", "chat first p99 s", "documents p50", "p99", "chat token p99 ms")
    for most, chunk in ((inf, 0), (16_384, 0), (4096, 0), (4096, 512)):
        engine = replace(ENGINE, chunk_tokens=chunk)
        told = {"max_long_tokens": most}
        runs = [play(kinds, 2, 90, seed=seed, engine=engine, generation=told) for seed in seeds]
        token_ms = 1e3 * mean(ran.token_s(0.99, "chat") for ran in runs)
        documents = (_s(runs, 0.5, "documents"), _s(runs, 0.99, "documents"))
        row(most, chunk or "none", _s(runs, 0.99, "chat"), *documents, f"{token_ms:.0f}")


def shares(seeds: Seeds) -> None:
    kinds = [
        Kind("long", 30, (50, 150), (600, 1000), most=2048, timeout_s=100),
        Kind("short", 120, (50, 150), (10, 60), most=2048, timeout_s=100),
    ]
    row("way", "least Jain of 10 s", "long, weighted tokens/s", "short")
    for way, in_turn in (("in turn", True), ("headrace", False)):
        runs = [
            play(kinds, 1, 60, seed=seed, in_turn=in_turn, max_queue_rows=100_000) for seed in seeds
        ]
        least = min(
            jain(weighted(ran.of(each.tenant), begin, begin + 10.0) for each in kinds)
            for ran in runs
            for begin in (30.0, 40.0, 50.0)
        )
        rates = [
            f"{mean(weighted(ran.of(each.tenant), 30.0, 60.0) for ran in runs) / 30.0:,.0f}"
            for each in kinds
        ]
        row(way, f"{least:.3f}", *rates)


def beginnings(seeds: Seeds) -> None:
    engine = replace(ENGINE, cache_tokens=90_000)
    kinds = [
        Kind(
            f"app{n}", 0.32, (1040, 1200), (20, 80), 256,
            shared=tuple(range(n << 20, (n << 20) + 63)),
        )
        for n in range(1, 101)
    ]  # fmt: skip
    halves = [replace(each, rate=each.rate / 2) for each in kinds]
    names = [each.tenant for each in kinds]
    ways: tuple[tuple[str, Callable[[int], Ran]], ...] = (
        ("one replica, half the load", lambda n: play(halves, 1, 60, seed=n, engine=engine)),
        ("two, in turn", lambda n: play(kinds, 2, 60, seed=n, engine=engine, in_turn=True)),
        (
            "two, affinity off",
            lambda n: play(kinds, 2, 60, seed=n, engine=engine, generation={"affinity": "off"}),
        ),
        ("two, affinity prefix", lambda n: play(kinds, 2, 60, seed=n, engine=engine)),
    )
    row("way", "share of prompts cached", "first p50 s", "p99")
    for way, ran in ways:
        runs = [ran(seed) for seed in seeds]
        cached = mean(each.hit_rate() for each in runs)
        row(way, f"{cached:.2f}", _s(runs, 0.5, *names), _s(runs, 0.99, *names))


def overload(seeds: Seeds) -> None:
    row("load", "way", "chat in time /s", "share", "documents in time /s", "share")
    for load in (1.0, 1.5, 3.0):
        kinds = [
            replace(CHAT, rate=22 * load, timeout_s=20.0),
            Kind("documents", load, (2000, 8000), (20, 200), slo_s=2.0, timeout_s=20.0),
        ]
        for way, in_turn in (("in turn", True), ("headrace", False)):
            runs = [play(kinds, 1, 60, seed=seed, in_turn=in_turn) for seed in seeds]
            cells = []
            for each in kinds:
                outcomes = [ran.of(each.tenant, after=10.0) for ran in runs]
                in_time = mean(sum(outcome.in_slo for outcome in some) for some in outcomes)
                cells += [f"{in_time / 50:.1f}", f"{in_time / mean(map(len, outcomes)):.2f}"]
            row(load, way, *cells)


def time_a_token(seeds: Seeds) -> None:
    kinds = [Kind("chat", 40, (30, 100), (100, 300), slo_s=5.0)]
    row("tpot_ms", "token p50 ms", "token p90 ms", "first p99 s")
    for tpot_s in (inf, 0.015, 0.012):
        runs = [play(kinds, 1, 40, seed=n, generation={"tpot_s": tpot_s}) for n in seeds]
        tokens = [f"{1e3 * mean(ran.token_s(q, 'chat') for ran in runs):.1f}" for q in (0.5, 0.9)]
        row("none" if tpot_s == inf else f"{1e3 * tpot_s:g}", *tokens, _s(runs, 0.99, "chat"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(1, parser.parse_args().seeds + 1)
    parts = (
        beside_long_prompts, long_prompts_at_once, shares, beginnings, overload, time_a_token,
    )  # fmt: skip
    for part in parts:
        print(f"\n{part.__name__.replace('_', ' ')}\n", flush=True)
        part(seeds)


if __name__ == "__main__":
    main()
