"""Bench: does the simulator predict the latencies of a real server?

`python -m loadtests.benches.simulated_against_real`: runs a scenario (`steady`: the ragged mix at
65 % of a synthetic device of 168/s) on `headrace serve` and in the simulator, with the same
arrivals, lengths and settings. The simulator cannot know the times of HTTP and of the call between
gateway and replica, so these are measured on each server first, with one request at a time, and
passed as `network_ms` and `transport_ms`. Repeats have different seeds. Promise: the medians of p50
and p99 differ by at most 15 %.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtests.benches import metrics_page
from loadtests.benches.launched import RunningServer
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs, say
from loadtests.benches.scenario_load import (
    MODEL,
    BenchScenario,
    ids_request,
    measured,
    piece,
    played,
    simulated,
)
from loadtests.benches.server import headrace
from loadtests.client.closed_loop import run
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load
from loadtests.client.player import PlayedRequest
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.report_table import BenchVerdict, Cell, Table
from loadtests.traffic.workload import infer_body, token_ids

MAX_OFF = 0.15
PERCENTS = (50, 90, 99)
PROBE_S = 4.0
PROBE_LENGTH = 24
_Page = list[metrics_page.MetricSample]


@dataclass(frozen=True, slots=True)
class UnloadedOverhead:
    """The time of a request outside queue and device, without load."""

    network_ms: float  # between client and gateway, both ways
    transport_ms: float  # between gateway and replica, both ways


@dataclass(frozen=True, slots=True)
class Side:
    p_ms: dict[int, float]
    in_slo: float
    answered: int
    batches: float


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """Real and simulated results of one seed. `cost_ratio`: mean of measured over predicted batch
    times on the real server."""

    seed: int
    ways: UnloadedOverhead
    real: Side
    simulated: Side
    cost_ratio: float
    lag_p99_ms: float
    client_cpu_us: float

    def off(self, percent: int) -> float:
        """The relative error of a percentile: simulated over real, less 1."""
        return self.simulated.p_ms[percent] / self.real.p_ms[percent] - 1.0


# ---- measuring ---------------------------------------------------------------------------------


def ways_of(running: RunningServer) -> UnloadedOverhead:
    """Measures the overhead with one client that waits for each answer."""
    target = Target.parse(f"{running.url}/v2/models/{MODEL}/infer")
    body = infer_body("ids", token_ids(PROBE_LENGTH, random.Random(1)))
    load = Load(target, (Call(render(target, body)),), seconds=PROBE_S, warmup_s=0.0)
    run(load)  # warms up connections, caches and the cost model
    before = metrics_page.fetch(running.url)
    result = run(load)
    after = metrics_page.fetch(running.url)
    total_s = mean_s(before, after, "headrace_request_seconds")
    device_s = mean_s(before, after, "headrace_service_seconds")
    stages = metrics_page.mean_by_label(before, after, "headrace_stage_seconds", "stage")
    gateway_s = sum(stages[name][1] for name in ("parse", "tokenize", "queue", "reply"))
    network_s = float(result.latencies_ms.mean()) / 1e3 - total_s
    transport_s = total_s - device_s - gateway_s
    # The gateway's own time counts as network, since the simulator has no gateway.
    own_s = gateway_s - stages["queue"][1]
    return UnloadedOverhead((network_s + own_s) * 1e3, transport_s * 1e3)


def mean_s(before: _Page, after: _Page, histogram: str) -> float:
    (_, mean) = metrics_page.mean_by_label(before, after, histogram, "model")[MODEL]
    return mean


def real_side(of: BenchScenario, ends: Sequence[PlayedRequest], batches: float) -> Side:
    histogram = LatencyHistogram()
    for end in ends:
        if end.ok:
            histogram.add(end.latency_s)
    within = sum(end.ok and end.latency_s <= of.slo_s for end in ends)
    p_ms = {percent: (histogram.percentile_s(percent) or 0.0) * 1e3 for percent in PERCENTS}
    return Side(p_ms, within / len(ends), histogram.total, batches)


def simulated_side(found: dict[str, Any]) -> Side:
    p_ms = {percent: float(found[f"p{percent}_ms"]) for percent in PERCENTS}
    return Side(p_ms, found["in_slo"], found["answered"], found["batches"])


def compared(name: str, seed: int, changes: Sequence[str]) -> SeedComparison:
    of = piece(name, [f"seed={seed}", *changes])
    with headrace(of.settings, name="simulated_against_real") as running:
        ways = ways_of(running)
        before = metrics_page.fetch(running.url)
        ends, cpu_s = played(of, running.url, ids_request)
        after = metrics_page.fetch(running.url)
    found = simulated(
        of, [f"network_ms={ways.network_ms:.4f}", f"transport_ms={ways.transport_ms:.4f}"]
    )
    counted = measured(of, ends)
    batches = metrics_page.mean_by_label(before, after, "headrace_batch_size", "model")[MODEL][0]
    lags = LatencyHistogram()
    for end in counted:
        lags.add(end.left_s - end.planned.at_s)
    return SeedComparison(
        seed,
        ways,
        real_side(of, counted, batches * len(counted) / len(ends)),
        simulated_side(found),
        mean_s(before, after, "headrace_cost_ratio"),
        (lags.percentile_s(99) or 0.0) * 1e3,
        cpu_s / len(ends) * 1e6,
    )


def tell(done: SeedComparison) -> None:
    sides = "; ".join(
        f"p{percent} {done.real.p_ms[percent]:.1f} real, {done.simulated.p_ms[percent]:.1f} "
        f"simulated ({done.off(percent):+.1%})"
        for percent in PERCENTS
    )
    say(
        f"seed {done.seed}: {sides}; transport {done.ways.transport_ms:.2f} ms, network "
        f"{done.ways.network_ms:.2f} ms, lag p99 {done.lag_p99_ms:.1f} ms"
    )


def runs(options: Options) -> Iterator[BenchRun]:
    for seed in options.seeds:
        done = compared(options.scenario, seed, options.set)
        tell(done)
        yield BenchRun(options.scenario, done, seed)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    in_slo = (done.median("real.in_slo"), done.median("simulated.in_slo"))
    yield Table(
        f"`{options.scenario}`, {len(done)} seeds, medians",
        ("", "real", "simulated", "off", "off by seed"),
        (*(percentile_row(done, p) for p in PERCENTS), ("in SLO, share", *in_slo, "", "")),
    )
    yield Table(
        "What the simulator was told, measured before each run with one request at a time",
        ("seed", "network ms", "transport ms", "client's lag p99 ms"),
        tuple(
            (each.seed, each.ways.network_ms, each.ways.transport_ms, each.lag_p99_ms)
            for each in done.results
        ),
    )


def percentile_row(done: Runs, percent: int) -> tuple[Cell, ...]:
    real, simulated = medians_ms(done, percent)
    by_seed = ", ".join(f"{each.off(percent):+.1%}" for each in done.results)
    return f"p{percent}, ms", real, simulated, f"{simulated / real - 1.0:+.1%}", by_seed


def medians_ms(done: Runs, percent: int) -> tuple[float, float]:
    """The medians of a percentile, real and simulated."""
    return (
        done.median(lambda each: each.real.p_ms[percent]),
        done.median(lambda each: each.simulated.p_ms[percent]),
    )


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for percent in (50, 99):
        real, simulated = medians_ms(done, percent)
        off = simulated / real - 1.0
        yield BenchVerdict(f"p{percent} within 15 %", f"{off:+.1%}", abs(off) <= MAX_OFF)


BENCH = Bench(
    name="simulated_against_real",
    about=__doc__,
    title="The simulator against a real server",
    options={
        "scenario": Option("steady", "in loadtests/scenarios"),
        "seeds": Option([1, 2, 3]),
        "set": Option((), "path=value of the scenario; repeatable"),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
