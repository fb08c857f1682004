"""What do bucket edges cost: how much they pad, and how many requests they keep within the SLO?

`python -m tests.simulation.benches.edges`. Padding: edges that `EdgeSolver` finds in a stream of
rows, against the exact optimum of another, fresh sample, and against FIFO batches. In time: those
edges against the ones that minimise seconds, each kept fixed, and a plain FIFO; see `in_time`.
Promise: at most 1.1 times the exact optimum's padding. All but the milliseconds of solving is
decided by seeds, whatever the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median

from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs
from loadtests.results.report_table import BenchVerdict, Table, at_most, number
from routers.api.settings import BucketSettings
from routers.policies.registry import EDGES
from routers.shared.edges import EdgeSolver
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
    ALL,
    EXPONENTIAL,
    FRESH_ROWS,
    LOG_NORMAL,
    MIX,
    Lengths,
    exact_edges,
    fifo_padding,
    padding,
)

STREAM_ROWS = 20_000
MAX_OF_EXACT = 1.1
PADDING, IN_TIME = "padding", "in time"
COMPARED = (MIX, LOG_NORMAL, EXPONENTIAL)
ROUNDS = 5  # each solves anew from the edges found before, as every minute of traffic does


@dataclass(frozen=True, slots=True)
class Solved:
    edges: tuple[int, ...]
    solve_ms: float


def solved(lengths: Lengths, policy: str, most: int, seed: int = 1) -> Solved:
    """Edges that the solver settles on after a stream of rows, starting from a single bucket."""
    edges: tuple[int, ...] = (lengths.longest,)
    buckets = BucketSettings(adaptive=True, max_edges=most)
    solver = EdgeSolver(settings_of(lengths, edges, buckets), EDGES[policy]())
    now, took = 0.0, []
    for length in lengths.sample(STREAM_ROWS, seed):
        now += 0.01
        solver.observe(length, now)
    for _ in range(ROUNDS):
        began = time.perf_counter()
        found = solver.solve(edges, service_s, now)
        took.append(1e3 * (time.perf_counter() - began))
        edges = found or edges
    return Solved(edges, median(took))


# -- padding


@dataclass(frozen=True, slots=True)
class Padded:
    lengths: str
    fifo: float
    exact: float
    ours: float
    edges: tuple[int, ...]
    solve_ms: float

    @property
    def of_exact(self) -> float:
        return self.ours / self.exact


def padded(lengths: Lengths) -> Padded:
    fresh = lengths.sample(FRESH_ROWS, seed=2)
    ours = solved(lengths, "padding", 8)
    return Padded(
        lengths.name,
        fifo_padding(fresh),
        padding(fresh, exact_edges(fresh, 8)),
        padding(fresh, ours.edges),
        ours.edges,
        ours.solve_ms,
    )


# -- within the SLO


def kinds(lengths: Lengths, given: list[int]) -> dict[str, tuple[int, ...]]:
    found = {
        FIFO: (lengths.longest,),
        "least padding, 8 edges": solved(lengths, "padding", 8).edges,
        "least padding, 4 edges": solved(lengths, "padding", 4).edges,
        "least seconds, at most 8": solved(lengths, "seconds", 8).edges,
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


def padding_table(found: Sequence[Padded]) -> Table:
    rows = tuple(
        (
            each.lengths,
            percent(each.fifo),
            percent(each.exact),
            percent(each.ours),
            each.of_exact,
            " ".join(map(str, each.edges)),
            each.solve_ms,
        )
        for each in found
    )
    headers = (
        "lengths", "FIFO, batches of 32", "exact 8 edges", "solved 8 edges", "solved is ×",
        "solved edges", "solve ms",
    )  # fmt: skip
    return Table("Padding over real tokens, every row padded to its bucket's edge", headers, rows)


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
    for lengths in ALL:
        yield BenchRun(PADDING, padded(lengths))
    for lengths in COMPARED:
        for each in compared(lengths, options):
            yield BenchRun(IN_TIME, each)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    yield padding_table(done.of(PADDING).results)
    for lengths in COMPARED:
        yield in_time_table(lengths, done.of(IN_TIME).results)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for each in done.of(PADDING).results:
        claim = f"{each.lengths}: at most {MAX_OF_EXACT} × the exact padding"
        yield at_most(claim, each.of_exact, MAX_OF_EXACT, " ×")


BENCH = Bench(
    name="edges",
    about=__doc__,
    title="Bucket edges: padding, and the share within the SLO",
    options={
        "rates": BenchOption([600.0, 800.0, 900.0]),
        "seeds": BenchOption(5),
        "requests": BenchOption(12_000, "a run"),
        "also": BenchOption([], "edges to compare with", parse=int, metavar="EDGE"),
    },
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=(
        "Answered requests only in p50 and p99. Batches are padded to their longest row, so "
        "their padding is below that of rows padded to edges.",
    ),
    record=asdict,
    package="tests.simulation.benches",
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
