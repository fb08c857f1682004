"""Bench: how much do servers cost around a device that takes 2 ms for a batch of at most 32 rows?

`python -m loadtests.benches.overhead`: 1, 32 and 128 clients send 24 INT64 a request as JSON over
HTTP to Headrace, plain Ray Serve and Triton, the same bytes to each. Measured are requests a
second, p50 and p99, ratios of medians, and CPU microseconds a request by process and by stage.

`ray-serve` is a plain Serve app with `max_ongoing_requests` raised so that batches can form;
`ray-serve-defaults` has Serve's default. `triton` runs the device in Triton's Python backend.
`headrace-traced` traces 1 % of the requests to a collector that discards spans, `headrace-scraped`
besides has its `/metrics` read every second. Tracing may cost at most 5 % of the throughput.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from loadtests.benches import metrics_page
from loadtests.benches.runner import (
    Bench,
    BenchOption,
    Column,
    Options,
    Runs,
    in_systems,
    meanwhile,
    median,
    rates,
    total,
)
from loadtests.benches.server import (
    Launch,
    RunningServer,
    changed,
    cpu_between,
    example,
    free_port,
    headrace,
    launched,
)
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, LoadResult, run
from loadtests.peers import venvs
from loadtests.results.report_table import BenchVerdict, Table, at_least, at_most, ratio
from loadtests.traffic.workload import infer_body

HEADRACE, TRACED, SCRAPED = "headrace", "headrace-traced", "headrace-scraped"
OURS = (HEADRACE, TRACED, SCRAPED)
RAY_SERVE, RAY_SERVE_DEFAULTS, TRITON = "ray-serve", "ray-serve-defaults", "triton"
PEERS_DIR = Path(__file__).parent.parent / "peers"
DEVICE_MS = 2.0
ROW_LENGTH = 24
SCRAPE_EVERY_S = 1.0
MIN_RATE = {32: 2500.0, 128: 3400.0}
MIN_TIMES = {RAY_SERVE: 12.0, TRITON: 1.0}
MIN_OBSERVED = 0.95
MAX_OVER_DEVICE_MS = 2.0
STAGES = "headrace_stage_seconds"
RATE = "result.rate"


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """One measurement of one server."""

    result: LoadResult
    cpu_us: dict[str, float]  # CPU time of a request by process role, the client's included
    stages_us: dict[str, tuple[float, float]]  # by stage: observations a request, mean of one

    @property
    def server_cpu_us(self) -> float:
        return sum(us for role, us in self.cpu_us.items() if role != "client")

    def record(self) -> dict[str, Any]:
        return {**self.result.summary(), "cpu_us": self.cpu_us, "stages_us": self.stages_us}


# ---- servers -------------------------------------------------------------------------------------


@contextmanager
def serving(name: str) -> Iterator[RunningServer]:
    """A peer is started as its documentation says. Triton's environment is made first if it does
    not exist, which takes half a minute."""
    if name not in OURS:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        environ = {"RAY_USAGE_STATS_ENABLED": "0"}
        ready_url = f"{url}/v2/models/device/ready"
        with launched(Launch(name, command_of(name, port), url, ready_url, environ)) as running:
            yield running
    elif name == HEADRACE:
        with headrace(example("device"), name=name) as running:
            yield running
    else:
        with span_sink() as endpoint:
            tracing = {"otlp_endpoint": endpoint, "sample_ratio": 0.01}
            settings = changed(example("device"), {"gateway.tracing": tracing})
            with headrace(settings, name=name) as running:
                scraping = meanwhile(SCRAPE_EVERY_S, lambda: metrics_page.fetch(running.url))
                with scraping if name == SCRAPED else nullcontext():
                    yield running


def command_of(name: str, port: int) -> list[str]:
    if name == TRITON:
        python = str(venvs.make(venvs.PEERS["triton"]))
        return [python, str(PEERS_DIR / "triton" / "serve.py"), "--port", str(port)]
    raised = ["--max-ongoing", "256"] if name == RAY_SERVE else []
    app = "loadtests.peers.ray_serve_plain.app"
    return [sys.executable, "-m", app, "--port", str(port), *raised]


class _SpanSink(BaseHTTPRequestHandler):
    """Accepts OTLP over HTTP and discards it, so a figure includes the cost of the server's
    exporter, but not that of a real collector."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, since that would mix with the bench's own output."""


@contextmanager
def span_sink() -> Iterator[str]:
    """Yields the endpoint for the server's settings."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _SpanSink) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()
        thread.join()


# ---- measuring -----------------------------------------------------------------------------------


def device_load(url: str, clients: int, seconds: float) -> Load:
    target = Target.parse(f"{url}/v2/models/device/infer")
    rng = random.Random(24)
    body = infer_body("ids", [rng.randrange(30_000) for _ in range(ROW_LENGTH)])
    return Load(target, (Call(render(target, body)),), clients=clients, seconds=seconds)


def measure(
    name: str, running: RunningServer, clients: int, seconds: float, warmup_s: float
) -> DeviceTrial:
    run(device_load(running.url, clients, warmup_s))
    stages_before, before = metrics_of(running), running.usage()
    result = run(device_load(running.url, clients, seconds))
    spent = cpu_between(before, running.usage())
    answers = max(1, result.answers)
    cpu_us = {role: cpu_s / answers * 1e6 for role, cpu_s in spent.items() if cpu_s > 0}
    cpu_us["client"] = result.cpu_us
    means = metrics_page.mean_by_label(stages_before, metrics_of(running), STAGES, "stage")
    stages = {stage: (count / answers, mean * 1e6) for stage, (count, mean) in means.items()}
    return DeviceTrial(result, cpu_us, stages)


def metrics_of(running: RunningServer) -> list[metrics_page.MetricSample]:
    """The server's metrics; empty for a server without `/metrics`."""
    try:
        return metrics_page.fetch(running.url)
    except (OSError, ValueError):
        return []


# ---- the report ----------------------------------------------------------------------------------


COLUMNS: tuple[Column, ...] = (
    *rates("req/s", HEADRACE),
    ("server CPU µs/req", median("server_cpu_us")),
    ("errors", total("result.failed")),
)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    if HEADRACE in options.systems:
        yield cpu_table(done, options)
        yield stage_table(done.of(HEADRACE, max(options.clients)), max(options.clients))


def cpu_table(done: Runs, options: Options) -> Table:
    """Headrace's CPU time by process, without processes below half a microsecond a request."""
    mine = done.of(HEADRACE)
    rows = []
    for role in sorted({role for each in mine.results for role in each.cpu_us}):
        cells = [cpu_of(mine.of(HEADRACE, clients), role) for clients in options.clients]
        if max(cells) >= 0.5:
            rows.append((role, *cells))
    headers = ("process", *(f"{n} clients" for n in options.clients))
    return Table("Headrace, CPU µs a request by process", headers, tuple(rows))


def cpu_of(mine: Runs, role: str) -> float:
    return mine.median(lambda each: each.cpu_us.get(role, 0.0))


def stage_table(mine: Runs, clients: int) -> Table:
    def of_stage(stage: str, which: int) -> float:
        return mine.median(lambda each: each.stages_us.get(stage, (0.0, 0.0))[which])

    stages = dict.fromkeys(stage for each in mine.results for stage in each.stages_us)
    rows = tuple((stage, of_stage(stage, 0), of_stage(stage, 1)) for stage in stages)
    caption = f"Headrace, time by stage at {clients} clients"
    return Table(caption, ("stage", "times a request", "mean µs"), rows)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    if HEADRACE not in options.systems:
        return
    for clients in options.clients:
        ours = done.of(HEADRACE, clients).median(RATE)
        if least := MIN_RATE.get(clients):
            yield at_least(f"at least {least:,.0f} req/s at {clients} clients", ours, least)
        for name in options.systems:
            theirs = done.of(name, clients).median(RATE)
            if name in MIN_TIMES and clients in MIN_RATE:
                claim = f"at least {MIN_TIMES[name]:g} × {name} at {clients} clients"
                yield at_least(claim, ratio(ours, theirs), MIN_TIMES[name], " ×")
            if name in (TRACED, SCRAPED):
                claim = f"{name}: at least 95 % of the throughput at {clients} clients"
                yield at_least(claim, ratio(theirs, ours), MIN_OBSERVED)
    if 1 in options.clients:
        over_ms = done.of(HEADRACE, 1).median("result.p50_ms") - DEVICE_MS
        claim = "one client's median at most 2 ms above the device's time"
        yield at_most(claim, over_ms, MAX_OVER_DEVICE_MS, " ms above")


BENCH = Bench(
    name="overhead",
    about=__doc__,
    title="Overhead around a device of 2 ms a batch",
    options={
        "systems": BenchOption(
            [HEADRACE, RAY_SERVE, TRITON], choices=(*OURS, RAY_SERVE, RAY_SERVE_DEFAULTS, TRITON)
        ),
        "clients": BenchOption([1, 32, 128]),
        "seconds": BenchOption(8.0, "a trial (%(default)s)"),
        "warmup": BenchOption(2.0, "s before it (%(default)s)"),
        "repeats": BenchOption(3),
    },
    measure=lambda options: in_systems(options, serving, measure),
    columns=COLUMNS,
    caption=lambda clients, options: f"{clients} client{'s' * (clients > 1)}",
    first="system",
    tables=tables,
    thresholds=thresholds,
    notes=(
        "`ray-serve` is plain Ray Serve (`loadtests/peers/ray_serve_plain`) with "
        "`max_ongoing_requests` raised so that batches can form; with its default of 5 "
        "(`ray-serve-defaults`) it is slower still. `triton` runs the device in Triton's "
        "Python backend, which batches dynamically.",
    ),
    record=DeviceTrial.record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
