"""Bench: how much throughput do traces and scraped metrics cost?

`python -m loadtests.benches.observability`: measures requests a second to the fake device, in turn
without tracing (the baseline), with 1 % of requests traced to a collector that discards spans, and
with 1 % traced while `/metrics` is scraped every second. Metrics and stage histograms cannot be
switched off, so their own cost is not measured. Promise: tracing 1 % costs at most 5 % of
throughput.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from loadtests.benches import metrics_page
from loadtests.benches.device_load import DeviceTrial, measure
from loadtests.benches.launched import RunningServer
from loadtests.benches.runner import (
    Bench,
    BenchRun,
    Column,
    Option,
    Options,
    Runs,
    in_turn,
    median,
    say,
    spread,
    table,
    total,
)
from loadtests.benches.server import Settings, changed, example, headrace
from loadtests.results.report_table import BenchVerdict, Table, at_least, ratio

OFF, SAMPLED, SCRAPED, ALL = "tracing off", "1 % sampled", "1 % sampled and scraped", "all traced"
RATIOS = {OFF: 0.0, SAMPLED: 0.01, SCRAPED: 0.01, ALL: 1.0}
MIN_SHARE = 0.95
SCRAPE_EVERY_S = 1.0
RATE = "trial.result.rate"


@dataclass(frozen=True, slots=True)
class Observed:
    trial: DeviceTrial
    span_posts: int


@dataclass(slots=True)
class SpanSink:
    """Accepts OTLP over HTTP, counts the posts and discards them.

    So the figure includes the cost of the server's exporter, but not that of a real collector.
    """

    endpoint: str = ""  # for the server's settings
    posts: int = 0


@contextmanager
def span_sink() -> Iterator[SpanSink]:
    sink = SpanSink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            sink.posts += 1
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing, since that would mix with the bench's own output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sink.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settings_of(kind: str, sink: SpanSink) -> Settings:
    if kind == OFF:
        return example("device")
    tracing = {"otlp_endpoint": sink.endpoint, "sample_ratio": RATIOS[kind]}
    return changed(example("device"), {"gateway.tracing": tracing})


@contextmanager
def scraping(running: RunningServer, active: bool) -> Iterator[None]:
    ended = threading.Event()

    def scrape() -> None:
        while active and not ended.wait(SCRAPE_EVERY_S):
            metrics_page.fetch(running.url)

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def runs(options: Options) -> Iterator[BenchRun]:
    with span_sink() as sink:
        for _, kind in in_turn(options.kinds, options.repeats):
            posts = sink.posts
            with (
                headrace(settings_of(kind, sink), name="observability") as running,
                scraping(running, kind == SCRAPED),
            ):
                trial = measure(running, options.clients, options.seconds, options.warmup)
            result = trial.result
            say(
                f"{kind:>24}: {result.rate:7.0f}/s, {trial.server_cpu_us:.0f} µs a request "
                f"{result.errors or ''}"
            )
            yield BenchRun(kind, Observed(trial, sink.posts - posts))


def tables(done: Runs, options: Options) -> Iterator[Table]:
    columns: tuple[Column, ...] = (
        ("req/s", median(RATE)),
        ("least–most", spread(RATE)),
        ("of off", lambda mine: ratio(mine.median(RATE), done.of(OFF).median(RATE))),
        ("p99 ms", median("trial.result.p99_ms")),
        ("server CPU µs/req", median("trial.server_cpu_us")),
        ("span exports", total("span_posts")),
    )
    rows = {kind: done.of(kind) for kind in options.kinds}
    yield table(f"{options.clients} clients", columns, rows)


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for kind in (SAMPLED, SCRAPED):
        if kind in options.kinds:
            share = ratio(done.of(kind).median(RATE), done.of(OFF).median(RATE))
            yield at_least(f"{kind}: at least 95 % of the throughput", share, MIN_SHARE)
    if SAMPLED in options.kinds:
        posts = done.of(SAMPLED).total("span_posts")
        yield BenchVerdict("spans arrive when sampled", f"{posts} exports", posts > 0)


BENCH = Bench(
    name="observability",
    about=__doc__,
    title="The cost of being observed",
    options={
        "kinds": Option([OFF, SAMPLED, SCRAPED], choices=RATIOS),
        "clients": Option(128),
        "seconds": Option(8.0),
        "warmup": Option(2.0),
        "repeats": Option(5),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    record=lambda observed: observed.trial.record(),
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
