"""Bench: do long prompts delay short chats, and do prompts reach the replica that has them cached?

`python -m loadtests.benches.generation_routing`: real servers with simulated engines (`runtime:
synthetic`: chunked prefill, a prefix cache, no computation), which get an open loop in turn.

Long prompts: 30 % of the requests have prompts of 2,000 to 3,000 tokens, the rest are chats with 30
tokens. Headrace with its defaults is compared with one first-in, first-out queue (one bucket, no
bound on long prompts, no deadline).

Shared prompts: requests begin with one of 24 system prompts of 1,000 tokens; neither of the two
replicas can cache all of them. Placement by cached prefixes is compared with placement by load
alone, under which replicas take turns. The bound for the share of cached tokens is that of one
replica with half of the load. The first part of every run is not counted.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.benches import metrics_page
from loadtests.benches.runner import (
    Bench,
    BenchRun,
    Column,
    Option,
    Options,
    Runs,
    median,
    say,
    spread,
    table,
)
from loadtests.benches.server import changed, headrace
from loadtests.benches.streams_client import MODEL, PlannedStream, open_loop, percentile
from loadtests.results.report_table import BenchVerdict, Table, at_least, at_most, ratio

CHAT, LONG = "chat", "long"
CONTEXT = 4096
SETTINGS = {
    f"models.{MODEL}.runtime": "synthetic",
    f"models.{MODEL}.task": "generate",
    f"models.{MODEL}.lengths": {"max": CONTEXT},
    f"models.{MODEL}.slo": {"ttft_ms": 1000},
    "gateway.host": "127.0.0.1",
}
ENGINE = {"base_ms": 10, "per_sequence_us": 50, "per_prefill_token_us": 40, "step_tokens": 512}
PATIENCE = {f"models.{MODEL}.slo": {"ttft_ms": 600_000}}
FIFO = {
    **PATIENCE,
    f"models.{MODEL}.lengths": {"max": CONTEXT, "buckets": [CONTEXT]},
    f"models.{MODEL}.generation.prompts.max_long_tokens": None,
    f"models.{MODEL}.generation.affinity.mode": "off",
    f"models.{MODEL}.admission.feasibility": "off",
}
BY_LOAD = {f"models.{MODEL}.generation.affinity.mode": "off"}
LONG_RATE, LONG_SHARE = 13.0, 0.3
SHARED_RATE, SYSTEM_PROMPTS, SYSTEM_TOKENS = 24.0, 24, 1000
MAX_OF_FIFO, MIN_HITS = 0.5, 0.9


@dataclass(frozen=True, slots=True)
class RoutingMode:
    """A way to route requests that is compared with others."""

    name: str
    changes: Mapping[str, Any]  # to the settings
    load: float = 1.0  # as a multiple of the study's rate


@dataclass(frozen=True, slots=True)
class Study:
    name: str
    ways: tuple[RoutingMode, ...]
    rate: float


@dataclass(frozen=True, slots=True)
class RoutingRun:
    """The result of one run."""

    first_s: Mapping[str, list[float]]  # times to the first token, by kind of request
    cached: float  # share of prompts' tokens that were in a replica's cache

    def first_ms(self, kind: str, percent: int) -> float:
        return percentile(self.first_s.get(kind, []), percent) * 1e3

    @property
    def chat_p99_ms(self) -> float:
        return self.first_ms(CHAT, 99)


_LONG_ENGINE = {**ENGINE, "max_sequences": 16, "cache_tokens": 65_536}
_SHARED_ENGINE = {**ENGINE, "max_sequences": 16, "cache_tokens": 20_480}
_TWO = {f"models.{MODEL}.options": _SHARED_ENGINE, f"models.{MODEL}.replicas.count": 2}
STUDIES = (
    Study(
        "long prompts",
        (
            RoutingMode("headrace", {f"models.{MODEL}.options": _LONG_ENGINE}),
            RoutingMode("first in, first out", {f"models.{MODEL}.options": _LONG_ENGINE, **FIFO}),
        ),
        LONG_RATE,
    ),
    Study(
        "shared prompts",
        (
            RoutingMode("headrace", _TWO),
            RoutingMode("by load alone", {**_TWO, **BY_LOAD}),
            RoutingMode(
                "one replica, half the load", {f"models.{MODEL}.options": _SHARED_ENGINE}, 0.5
            ),
        ),
        SHARED_RATE,
    ),
)


def planned(study: Study, way: RoutingMode, seconds: float, seed: int) -> Iterator[PlannedStream]:
    """Poisson arrivals, the same for all modes of a study but for their load. All seeds have the
    same system prompts."""
    shared = random.Random(0)
    systems = [_ids(shared, SYSTEM_TOKENS) for _ in range(SYSTEM_PROMPTS)]
    drawn, at_s = random.Random(seed), 0.0
    while (at_s := at_s + drawn.expovariate(study.rate * way.load)) < seconds:
        if study.name == "shared prompts":
            prompt = [*drawn.choice(systems), *_ids(drawn, 50)]
            yield PlannedStream(at_s, CHAT, prompt, 16)
        elif drawn.random() < LONG_SHARE:
            yield PlannedStream(at_s, LONG, _ids(drawn, drawn.randrange(2000, 3000)), 30)
        else:
            yield PlannedStream(at_s, CHAT, _ids(drawn, 30), 30)


def _ids(drawn: random.Random, count: int) -> list[int]:
    return [drawn.randrange(1000, 30_000) for _ in range(count)]


def runs(options: Options) -> Iterator[BenchRun]:
    for repeat in range(options.repeats):
        for study in STUDIES:
            for way in study.ways if repeat % 2 == 0 else reversed(study.ways):
                found = run(study, way, options, seed=repeat + 1)
                say(
                    f"{study.name}, {way.name}: chats' first token p50 "
                    f"{found.first_ms(CHAT, 50):.0f} p99 {found.chat_p99_ms:.0f} ms, cached "
                    f"{found.cached:.1%}"
                )
                yield BenchRun(way.name, found, study.name)


def run(study: Study, way: RoutingMode, options: Options, seed: int) -> RoutingRun:
    with headrace(changed(changed({}, SETTINGS), way.changes), name="routing") as running:
        asyncio.run(open_loop(running.url, list(planned(study, way, options.warmup, seed))))
        before = metrics_page.fetch(running.url)
        plan = list(planned(study, way, options.seconds, seed + 100))
        first_s = asyncio.run(open_loop(running.url, plan))
        after = metrics_page.fetch(running.url)
    read, cached = (
        metrics_page.total(after, name) - metrics_page.total(before, name)
        for name in ("headrace_input_tokens_total", "headrace_cached_tokens_total")
    )
    return RoutingRun(first_s, ratio(cached, read))


COLUMNS: tuple[Column, ...] = (
    ("chats' first token p50 ms", median(lambda each: each.first_ms(CHAT, 50))),
    ("p99 ms", median("chat_p99_ms")),
    ("least–most", spread("chat_p99_ms")),
    ("long ones' p99 ms", lambda mine: _long_p99_ms(mine)),
    ("prompt tokens cached", lambda mine: f"{mine.median('cached'):.1%}"),
)


def _long_p99_ms(mine: Runs) -> float | None:
    has_long = any(LONG in each.first_s for each in mine.results)
    return mine.median(lambda each: each.first_ms(LONG, 99)) if has_long else None


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for study in STUDIES:
        rows = {way.name: done.of(way.name, study.name) for way in study.ways}
        yield table(f"{study.name}, {study.rate:g} requests/s", COLUMNS, rows)


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    def of(way: str, study: str, value: str) -> float:
        return done.of(way, study).median(value)

    fifo = of("first in, first out", "long prompts", "chat_p99_ms")
    share = ratio(of("headrace", "long prompts", "chat_p99_ms"), fifo)
    yield at_most("chats' p99 beside long prompts, of first in, first out", share, MAX_OF_FIFO)
    one = of("one replica, half the load", "shared prompts", "cached")
    hits = ratio(of("headrace", "shared prompts", "cached"), one)
    yield at_least("cached over two replicas, of one replica's", hits, MIN_HITS, " ×")
    by_load = of("by load alone", "shared prompts", "chat_p99_ms")
    tail = ratio(of("headrace", "shared prompts", "chat_p99_ms"), by_load)
    yield at_most("chats' p99 over two replicas, of by load alone", tail, 1.0)


BENCH = Bench(
    name="generation_routing",
    about=__doc__,
    title="Where and when prompts are read",
    options={
        "seconds": Option(30.0, "a run (%(default)s)"),
        "warmup": Option(8.0, "s before it (%(default)s)"),
        "repeats": Option(3),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    notes=(
        "Engines of 10 ms a step, 50 us a sequence and 40 us a prompt token, 512 tokens a "
        "step, 16 sequences; one that holds 20,480 tokens has room for some 18 of the 24 "
        "system prompts.",
    ),
    record=lambda run: {"cached": run.cached},
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
