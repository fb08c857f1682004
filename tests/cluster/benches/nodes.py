"""Bench: three worker nodes against one, and tenants' shares over gateways on different nodes.

`python -m tests.cluster.benches.nodes` (root): nodes are namespaces of this machine, a head without
processors and one or three workers, each with a gateway and a replica of a pretended device that
sleeps 100 ms a batch of at most 4, so that no processor is what binds. Callers ask every worker's
ingress alike, open loop, at 0.7 and 1.5 times what the replicas can do. Then two tenants of weights
4 and 1 ask for more than all replicas have, each nearly all of it at a gateway of its own.

Promises: three nodes answer at least 2.7 times as much in time as one, p99 at 0.7 times at most 1.5
times as long, and served seconds are 4 to 1 within 5 %.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtests.benches.metrics_page import by_label, fetch
from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs, median, say, table
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, LoadResult, run
from loadtests.results.report_table import BenchVerdict, Table, at_least, at_most, ratio
from loadtests.traffic.workload import infer_body
from tests.cluster.headrace_nodes import HeadraceNodes
from tests.cluster.machines import Lab

BATCH, BASE_S = 4, 0.1
CAPACITY = BATCH / BASE_S  # rows a second of one replica
SLO_MS = 1000
CLIENTS = 200
ONE, THREE = 1, 3
UNDER, OVER = 0.7, 1.5
WEIGHTS = {"four": 4, "one": 1}
SKEW = 0.9  # of a tenant's requests, at the gateway that is its own
FAIRNESS = "fairness"
SERVED = "headrace_tenant_served_seconds_total"
MIN_GAIN, MAX_TAIL, FAIR_WITHIN = 2.7, 1.5, 0.05


@dataclass(frozen=True, slots=True)
class Trial:
    """in_time_per_s: answered within the SLO. p99_ms: of all answers."""

    workers: int
    load: float
    in_time_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    lag_p99_ms: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Device seconds that each tenant was served, over all gateways."""

    four_s: float
    one_s: float

    @property
    def of_one(self) -> float:
        return ratio(self.four_s, self.one_s)


def settings(workers: int) -> dict[str, object]:
    return {
        "models": {
            "device": {
                "runtime": "synthetic",
                "task": "tensors",
                "slo": {"latency_ms": SLO_MS},
                "batch": {"max_size": BATCH},
                "replicas": {"count": workers, "num_cpus": 1},
                "options": {"base_ms": BASE_S * 1e3},
            }
        },
        "gateway": {"replicas": workers},
        "tenants": {name: {"weight": weight} for name, weight in WEIGHTS.items()} | {"default": {}},
    }


@contextmanager
def serving(workers: int) -> Iterator[HeadraceNodes]:
    with Lab() as lab, tempfile.TemporaryDirectory() as folder:
        sections = settings(workers)
        models = sections.pop("models")
        nodes = HeadraceNodes(lab, Path(folder), models, **sections)
        nodes.start(workers)
        yield nodes


def load_of(url: str, rate: float, seconds: float, tenant: str) -> Load:
    target = Target.parse(f"{url}/v2/models/device/infer")
    body = infer_body("ids", list(range(24)))
    call = Call(render(target, body, headers={"x-tenant": tenant}))
    return Load(target, (call,), clients=CLIENTS, seconds=seconds, warmup_s=3.0, rate=rate)


def played(loads: list[Load]) -> list[LoadResult]:
    """At the same time, each on a loop of its own."""
    with ThreadPoolExecutor(len(loads)) as threads:
        return list(threads.map(run, loads))


def trial(nodes: HeadraceNodes, load: float, seconds: float) -> Trial:
    urls = [f"{node.url}:8000" for node in nodes.ray.workers]
    rate = load * CAPACITY  # for each worker
    results = played([load_of(url, rate, seconds, "default") for url in urls])
    every = [float(ms) for result in results for ms in result.latencies_ms]
    return Trial(
        workers=len(urls),
        load=load,
        in_time_per_s=sum(ms <= SLO_MS for ms in every) / seconds,
        p50_ms=percentile(every, 50),
        p99_ms=percentile(every, 99),
        failed=sum(result.failed for result in results),
        lag_p99_ms=max(result.lag_ms(99) for result in results),
    )


def percentile(values: list[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def shares(nodes: HeadraceNodes, seconds: float) -> Shares:
    """Each tenant asks for the whole capacity; gateways are asked past HAProxy, which would spread
    what they get."""
    gateways = nodes.gateway_urls()
    rate = CAPACITY * len(gateways)
    loads = []
    for rank, tenant in enumerate(WEIGHTS):
        own, others = gateways[rank], [g for g in gateways if g != gateways[rank]]
        loads.append(load_of(own, SKEW * rate, seconds, tenant))
        loads += [load_of(g, (1 - SKEW) * rate / len(others), seconds, tenant) for g in others]
    before: dict[str, float] = {}
    with ThreadPoolExecutor(1) as thread:
        playing = thread.submit(played, loads)
        time.sleep(6.0)
        before = served_s(nodes)
        time.sleep(seconds - 6.0)
        after = served_s(nodes)
        playing.result()
    return Shares(*(after[tenant] - before[tenant] for tenant in WEIGHTS))


def served_s(nodes: HeadraceNodes) -> dict[str, float]:
    pages = [fetch(url) for url in nodes.metrics_urls()]
    served = [by_label(page, SERVED, "tenant") for page in pages]
    return {tenant: sum(each[tenant] for each in served) for tenant in WEIGHTS}


def runs(options: Options) -> Iterator[BenchRun]:
    for workers in (ONE, THREE):
        with serving(workers) as nodes:
            for load in (UNDER, OVER):
                done = trial(nodes, load, options.seconds)
                say(f"{done}")
                yield BenchRun(str(workers), done, load)
            if workers == THREE:
                found = shares(nodes, options.seconds)
                say(f"{found}: {found.of_one:.2f} to 1")
                yield BenchRun(FAIRNESS, found)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    columns = [
        ("in time/s", median("in_time_per_s")),
        ("p50 ms", median("p50_ms")),
        ("p99 ms", median("p99_ms")),
        ("refused or failed", median("failed")),
        ("lag p99 ms", median("lag_p99_ms")),
    ]
    for load in (UNDER, OVER):
        rows = {
            f"{workers} of {workers * CAPACITY:g}/s": done.of(str(workers), load)
            for workers in (ONE, THREE)
        }
        yield table(f"{load:g} times what the replicas can do", columns, rows, "workers")
    rows = tuple((s.four_s, s.one_s, s.of_one) for s in done.of(FAIRNESS).results)
    headers = ("served s, weight 4", "served s, weight 1", "ratio")
    yield Table(f"{SKEW:.0%} of each tenant's requests at a gateway of its own", headers, rows)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    one, three = done.of(str(ONE)), done.of(str(THREE))
    gain = ratio(
        three.of(str(THREE), OVER).median("in_time_per_s"),
        one.of(str(ONE), OVER).median("in_time_per_s"),
    )
    yield at_least(f"three nodes answer at least {MIN_GAIN} times as much in time", gain,
                   MIN_GAIN, "x")  # fmt: skip
    tail = ratio(
        three.of(str(THREE), UNDER).median("p99_ms"), one.of(str(ONE), UNDER).median("p99_ms")
    )
    yield at_most(f"their p99 at {UNDER:g} times is at most {MAX_TAIL} times as long", tail,
                  MAX_TAIL, "x")  # fmt: skip
    off = done.of(FAIRNESS).median(lambda s: abs(s.of_one / WEIGHTS["four"] - 1))
    yield at_most("served seconds are 4 to 1 within 5 %", off, FAIR_WITHIN)


BENCH = Bench(
    name="nodes",
    about=__doc__,
    title="Three nodes against one",
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=("Nodes and callers share the processors: the tail of three nodes holds that too.",),
    record=asdict,
    options={"seconds": BenchOption(20.0, "of each load")},
    package="tests.cluster.benches",
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
