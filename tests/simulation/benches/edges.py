"""What do bucket edges cost: how many requests do they keep within the SLO?

`python -m tests.simulation.benches.edges`: edges that `EdgeSolver` finds in a stream of rows, which
minimise seconds, against those that pad least, each kept fixed, and a plain FIFO; see `in_time`.
Seeds decide everything, whatever the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import mean

from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs
from loadtests.results.report_table import Table, number
from routers.api.settings import BucketSettings
from routers.policies.edges import EdgeSolver
from tests.simulation.benches.in_time import (
    FIFO,
    InTime,
    Traffic,
    in_time,
    service_s,
    settings_of,
    sorted_rate,
)
from tests.simulation.benches.lengths import (
    EXPONENTIAL,
    LOG_NORMAL,
    MIX,
    Lengths,
    exact_edges,
)

STREAM_ROWS = 20_000
IN_TIME = "in time"
COMPARED = (MIX, LOG_NORMAL, EXPONENTIAL)
ROUNDS = 5  # each solves anew from the edges found before, as every minute of traffic does


def solved(lengths: Lengths, most: int = 8, seed: int = 1) -> tuple[int, ...]:
    """Edges that the solver settles on after a stream of rows, starting from a single bucket."""
    edges: tuple[int, ...] = (lengths.longest,)
    buckets = BucketSettings(adaptive=True, max_edges=most)
    solver, now = EdgeSolver(settings_of(lengths, edges, buckets)), 0.0
    for length in lengths.sample(STREAM_ROWS, seed):
        now += 0.01
        solver.observe(length, now)
    for _ in range(ROUNDS):
        edges = solver.solve(edges, service_s, now) or edges
    return edges


# -- within the SLO


def kinds(lengths: Lengths, given: list[int]) -> dict[str, tuple[int, ...]]:
    sample = lengths.sample(STREAM_ROWS, seed=1)
    found = {
        FIFO: (lengths.longest,),
        "least padding, 8 edges": tuple(exact_edges(sample, 8)),
        "least padding, 4 edges": tuple(exact_edges(sample, 4)),
        "least seconds, at most 8": solved(lengths),
    }
    return found | ({"given": tuple(given)} if given[-1:] == [lengths.longest] else {})


def compared(lengths: Lengths, options: Options) -> list[InTime]:
    full = sorted_rate(lengths)
    rates = options.rates if lengths is MIX else [float(f"{s * full:.2g}") for s in (0.7, 0.8, 0.9)]
    found = kinds(lengths, options.also)
    return [
        in_time(Traffic(lengths, rate, options.requests), kind, edges, options.seeds)
        for rate in rates
        for kind, edges in found.items()
    ]


# -- the report


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def in_time_table(lengths: Lengths, found: Sequence[InTime]) -> Table:
    rows = tuple(
        (
            each.rate,
            each.kind,
            "" if each.kind == FIFO else " ".join(map(str, each.edges)),
            f"{100 * mean(each.shares):.2f} %",
            f"{100 * min(each.shares):.2f}–{100 * max(each.shares):.2f}",
            each.p50_ms,
            each.p99_ms,
            each.rows_a_batch,
            percent(each.padding),
        )
        for each in found
        if each.lengths == lengths.name
    )
    headers = (
        "offered/s", "edges", "which", "in SLO", "least–most", "p50 ms", "p99 ms", "rows a batch",
        "padding",
    )  # fmt: skip
    caption = (
        f"{lengths.name}, SLO {number(1e3 * lengths.slo_s)} ms; sorted and always full the device "
        f"would serve {number(sorted_rate(lengths))} rows/s"
    )
    return Table(caption, headers, rows)


def runs(options: Options) -> Iterator[BenchRun]:
    for lengths in COMPARED:
        for each in compared(lengths, options):
            yield BenchRun(IN_TIME, each)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for lengths in COMPARED:
        yield in_time_table(lengths, done.of(IN_TIME).results)


BENCH = Bench(
    name="edges",
    about=__doc__,
    title="Bucket edges: the share within the SLO",
    options={
        "rates": Option([600.0, 800.0, 900.0]),
        "seeds": Option(5),
        "requests": Option(12_000, "a run"),
        "also": Option([], "edges to compare with", parse=int, metavar="EDGE"),
    },
    measure=runs,
    tables=tables,
    notes=(
        "Answered requests only in p50 and p99. Batches are padded to their longest row, so "
        "their padding is below that of rows padded to edges.",
    ),
    record=asdict,
    package="tests.simulation.benches",
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
