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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from loadtests.benches import metrics_page
from loadtests.benches.metrics_page import MetricSample
from loadtests.benches.played import MODEL, played, shipped, speaking
from loadtests.benches.runner import Bench, BenchOption, BenchRun, Column, Options, Runs, median
from loadtests.benches.server import RunningServer, headrace, simulate
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, run
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.types import Endpoint
from loadtests.results.report_table import BenchVerdict, ratio
from loadtests.traffic.workload import infer_body, token_ids

MAX_OFF = 0.15
PERCENTS = (50, 90, 99)
JUDGED = (50, 99)
PROBE_S = 4.0
PROBE_LENGTH = 24


@dataclass(frozen=True, slots=True)
class SimulatedAndReal:
    """One seed: percentiles in ms, shares in time, and what the simulator was told."""

    real_ms: Mapping[int, float]
    simulated_ms: Mapping[int, float]
    real_in_time: float
    simulated_in_time: float
    network_ms: float  # between client and gateway, both ways
    transport_ms: float  # between gateway and replica, both ways
    lag_p99_ms: float


def ways_of(running: RunningServer) -> tuple[float, float]:
    """The milliseconds of a request outside queue and device, network and transport; measured with
    one client that waits for each answer."""
    target = Target.parse(f"{running.url}/v2/models/{MODEL}/infer")
    body = infer_body("ids", token_ids(PROBE_LENGTH, random.Random(1)))
    load = Load(target, (Call(render(target, body)),), seconds=PROBE_S)
    run(load)  # warms up connections, caches and the cost model
    before = metrics_page.fetch(running.url)
    result = run(load)
    after = metrics_page.fetch(running.url)
    total_s = mean_s(before, after, "headrace_request_seconds")
    device_s = mean_s(before, after, "headrace_service_seconds")
    stages = metrics_page.mean_by_label(before, after, "headrace_stage_seconds", "stage")
    # The gateway's own time counts as network, since the simulator has no gateway.
    own_s = sum(stages[name][1] for name in ("parse", "tokenize", "reply"))
    network_s = float(result.latencies_ms.mean()) / 1e3 - total_s
    transport_s = total_s - device_s - own_s - stages["queue"][1]
    return (network_s + own_s) * 1e3, transport_s * 1e3


def mean_s(before: list[MetricSample], after: list[MetricSample], histogram: str) -> float:
    (_, mean) = metrics_page.mean_by_label(before, after, histogram, "model")[MODEL]
    return mean


def compared(name: str, seed: int, changes: list[str]) -> SimulatedAndReal:
    of = shipped(name, [f"seed={seed}", *changes])
    with headrace(of.settings, name="simulated_against_real") as running:
        network_ms, transport_ms = ways_of(running)
        stand = speaking(OpenInference(Endpoint(running.url, MODEL)))
        real = played(running, of.scenario, stand, of.slo_s)
    told = (f"network_ms={network_ms:.4f}", f"transport_ms={transport_ms:.4f}")
    found = simulate(of.path, [part for each in (*of.changes, *told) for part in ("--set", each)])
    return SimulatedAndReal(
        real_ms={percent: real.latency_ms(percent) for percent in PERCENTS},
        simulated_ms={percent: float(found[f"p{percent}_ms"]) for percent in PERCENTS},
        real_in_time=real.in_time / len(real.ends),
        simulated_in_time=float(found["in_slo"]),
        network_ms=network_ms,
        transport_ms=transport_ms,
        lag_p99_ms=real.lag_ms(99),
    )


def runs(options: Options) -> Iterator[BenchRun]:
    for seed in options.seeds:
        found = compared(options.scenario, seed, options.set)
        yield BenchRun(f"seed {seed}", found, options.scenario)


def off(mine: Runs, percent: int) -> float:
    """The relative error of a percentile, of medians."""
    real = mine.median(lambda each: each.real_ms[percent])
    return ratio(mine.median(lambda each: each.simulated_ms[percent]), real) - 1.0


def of_percent(percent: int) -> tuple[Column, ...]:
    def at(field: str) -> Callable[[Runs], float]:
        return lambda mine: mine.median(lambda each: getattr(each, field)[percent])

    return (
        (f"p{percent} ms, real", at("real_ms")),
        ("simulated", at("simulated_ms")),
        ("off", lambda mine: f"{off(mine, percent):+.1%}"),
    )


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for percent in JUDGED:
        found = off(done, percent)
        claim = f"p{percent} within 15 %, of the seeds' medians"
        yield BenchVerdict(claim, f"{found:+.1%}", abs(found) <= MAX_OFF)


BENCH = Bench(
    name="simulated_against_real",
    about=__doc__,
    title="The simulator against a real server",
    options={
        "scenario": BenchOption("steady", "in loadtests/scenarios"),
        "seeds": BenchOption([1, 2, 3]),
        "set": BenchOption((), "path=value of the scenario; repeatable"),
    },
    measure=runs,
    columns=(
        *(column for percent in PERCENTS for column in of_percent(percent)),
        ("in time, real", median("real_in_time")),
        ("simulated", median("simulated_in_time")),
        *((name.replace("_", " "), median(name)) for name in ("network_ms", "transport_ms")),
        ("client's lag p99 ms", median("lag_p99_ms")),
    ),
    caption=lambda scenario, options: f"`{scenario}`",
    thresholds=thresholds,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
