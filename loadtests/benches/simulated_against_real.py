"""Bench: does the simulator predict the latencies of a real server?

`python -m loadtests.benches.simulated_against_real`: runs a scenario (`steady`: the ragged mix at
65 % of a synthetic device of 168/s) on `headrace serve` and in the simulator, with the same
arrivals, lengths and settings. What the simulator cannot know is measured on each server first:
with one request at a time, the times of HTTP and of the call between gateway and replica
(`network_ms`, `transport_ms`); with eight, what a replica takes for a batch besides the device,
which is added to the device's `base_ms`. Repeats have different seeds. Promise: the medians of p50,
p90, p99 and of the share in time differ by at most 5 %.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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

MAX_OFF = 0.05
PERCENTS = (50, 90, 99)
PROBE_S, EDGE_S = 4.0, 0.5  # measured, and before and after that
BUSY_CLIENTS = 8  # for each replica: a batch runs and the next one is staged
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
    batch_ms: float  # of a batch outside the device
    lag_p99_ms: float


@dataclass(frozen=True, slots=True)
class Overheads:
    """Milliseconds of a request outside queue and device, and of a batch outside the device."""

    network_ms: float  # between client and gateway, both ways, and the gateway's own time
    transport_ms: float  # between gateway and replica, both ways
    batch_ms: float  # the replica's own time for a batch, and until the next one runs


def overheads_of(running: RunningServer, replicas: int) -> Overheads:
    target = Target.parse(f"{running.url}/v2/models/{MODEL}/infer")
    calls = (Call(render(target, infer_body("ids", token_ids(PROBE_LENGTH, random.Random(1))))),)
    seconds = PROBE_S + 2 * EDGE_S
    run(Load(target, calls, seconds=PROBE_S))  # warms up connections, caches and the cost model
    clients = BUSY_CLIENTS * replicas
    busy = _Probe(running.url, Load(target, calls, clients=clients, seconds=seconds))
    batch_s = busy.wall_s * replicas / busy.batches - busy.device_s
    alone = _Probe(running.url, Load(target, calls, seconds=seconds))
    # The gateway's own time counts as network, since the simulator has no gateway.
    own_s = sum(alone.stages[name][1] for name in ("parse", "tokenize", "reply"))
    device_s = alone.device_s + batch_s
    transport_s = max(0.0, alone.request_s - device_s - own_s - alone.stages["queue"][1])
    network_s = alone.client_s - alone.request_s + own_s
    return Overheads(network_s * 1e3, transport_s * 1e3, batch_s * 1e3)


class _Probe:
    """A load, and what the server's metrics say of it while it runs: `stages` are (times, mean
    seconds)."""

    def __init__(self, url: str, load: Load) -> None:
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(run, load)
            time.sleep(EDGE_S)
            before, began = metrics_page.fetch(url), time.monotonic()
            time.sleep(PROBE_S)
            after = metrics_page.fetch(url)
            self.wall_s = time.monotonic() - began
            result = running.result()
        self.client_s = float(result.latencies_ms.mean()) / 1e3
        self.request_s = mean_s(before, after, "headrace_request_seconds")
        self.stages = metrics_page.mean_by_label(before, after, "headrace_stage_seconds", "stage")
        self.batches = self.stages["run"][0]
        self.device_s = sum(self.stages[name][1] for name in ("pad", "copy", "run", "post"))


def mean_s(before: list[MetricSample], after: list[MetricSample], histogram: str) -> float:
    (_, mean) = metrics_page.mean_by_label(before, after, histogram, "model")[MODEL]
    return mean


def compared(name: str, seed: int, changes: list[str]) -> SimulatedAndReal:
    of = shipped(name, [f"seed={seed}", *changes])
    device = of.settings["models"][MODEL]
    with headrace(of.settings, name="simulated_against_real") as running:
        known = overheads_of(running, device["replicas"]["count"])
        stand = speaking(OpenInference(Endpoint(running.url, MODEL)))
        real = played(running, of.scenario, stand, of.slo_s)
    base_ms = device["options"]["base_ms"] + known.batch_ms
    told = (
        f"network_ms={known.network_ms:.4f}", f"transport_ms={known.transport_ms:.4f}",
        f"settings.models.{MODEL}.options.base_ms={base_ms:.4f}",
    )  # fmt: skip
    found = simulate(of.path, [part for each in (*of.changes, *told) for part in ("--set", each)])
    return SimulatedAndReal(
        real_ms={percent: real.latency_ms(percent) for percent in PERCENTS},
        simulated_ms={percent: float(found[f"p{percent}_ms"]) for percent in PERCENTS},
        real_in_time=real.in_time / len(real.ends),
        simulated_in_time=float(found["in_slo"]),
        network_ms=known.network_ms,
        transport_ms=known.transport_ms,
        batch_ms=known.batch_ms,
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
    for percent in PERCENTS:
        found = off(done, percent)
        claim = f"p{percent} within 5 %, of the seeds' medians"
        yield BenchVerdict(claim, f"{found:+.1%}", abs(found) <= MAX_OFF)
    real = done.median(lambda each: each.real_in_time)
    found = ratio(done.median(lambda each: each.simulated_in_time), real) - 1.0
    yield BenchVerdict("in time within 5 %", f"{found:+.1%}", abs(found) <= MAX_OFF)


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
        *(
            (name.replace("_", " "), median(name))
            for name in ("network_ms", "transport_ms", "batch_ms")
        ),
        ("client's lag p99 ms", median("lag_p99_ms")),
    ),
    caption=lambda scenario, options: f"`{scenario}`",
    thresholds=thresholds,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
