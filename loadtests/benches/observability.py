"""What does it cost to be observed?

`python -m loadtests.benches.observability`: requests a second to the fake device, alternating
between tracing off (the baseline), tracing sampled at 1 % to a collector that throws it away, and
at 1 % while `/metrics` is scraped every second. Metrics and stage histograms are always on; there
is no switch to compare them with. Promise: 1 % sampling costs at most 5 % of throughput.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loadtests.benches import metrics_page
from loadtests.benches.device_load import DeviceTrial, measure
from loadtests.benches.launched import RunningServer
from loadtests.benches.server import Settings, changed, example, headrace
from loadtests.benches.span_sink import SpanSink, span_sink
from loadtests.results.report_table import (
    BenchReport,
    BenchVerdict,
    Table,
    at_least,
    median_of,
    publish,
    ratio,
    spread_of,
)

OFF, SAMPLED, SCRAPED, ALL = "tracing off", "1 % sampled", "1 % sampled and scraped", "all traced"
KINDS = (OFF, SAMPLED, SCRAPED, ALL)
RATIOS = {OFF: 0.0, SAMPLED: 0.01, SCRAPED: 0.01, ALL: 1.0}
LEAST_SHARE = 0.95
SCRAPE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Observed:
    kind: str
    trial: DeviceTrial
    span_posts: int


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


def observed(kind: str, sink: SpanSink, asked: argparse.Namespace) -> Observed:
    posts = sink.posts
    with (
        headrace(settings_of(kind, sink), name="observability") as running,
        scraping(running, kind == SCRAPED),
    ):
        trial = measure(running, asked.clients, asked.seconds, asked.warmup)
    print(
        f"  {kind:>24}: {trial.result.rate:7.0f}/s, {trial.server_cpu_us:.0f} µs a request "
        f"{trial.result.errors or ''}",
        file=sys.stderr,
    )
    return Observed(kind, trial, sink.posts - posts)


def all_observed(asked: argparse.Namespace) -> Iterator[Observed]:
    with span_sink() as sink:
        for repeat in range(asked.repeats):
            for kind in asked.kinds if repeat % 2 == 0 else reversed(asked.kinds):
                yield observed(kind, sink, asked)


def rate(found: Sequence[Observed], kind: str) -> float:
    return median_of((o for o in found if o.kind == kind), lambda o: o.trial.result.rate)


def report(found: Sequence[Observed], asked: argparse.Namespace) -> BenchReport:
    rows = []
    for kind in asked.kinds:
        mine = [each for each in found if each.kind == kind]
        rows.append(
            (
                kind,
                rate(found, kind),
                spread_of(mine, lambda each: each.trial.result.rate),
                ratio(rate(found, kind), rate(found, OFF)),
                median_of(mine, lambda each: each.trial.result.latency_ms(99)),
                median_of(mine, lambda each: each.trial.server_cpu_us),
                sum(each.span_posts for each in mine),
            )
        )
    headers = (
        *("", "req/s", "least–most", "of off", "p99 ms"),
        *("server CPU µs/req", "span exports"),
    )
    return BenchReport(
        name="observability",
        title="The cost of being observed",
        tables=(Table(f"{asked.clients} clients", headers, tuple(rows)),),
        verdicts=tuple(verdicts(found, asked.kinds)),
        raw={"trials": [{"kind": o.kind, **o.trial.record()} for o in found]},
    )


def verdicts(found: Sequence[Observed], kinds: Sequence[str]) -> Iterator[BenchVerdict]:
    base = rate(found, OFF)
    for kind in (SAMPLED, SCRAPED):
        if kind in kinds:
            share = ratio(rate(found, kind), base)
            yield at_least(f"{kind}: at least 95 % of the throughput", share, LEAST_SHARE)
    if SAMPLED in kinds:
        posts = sum(each.span_posts for each in found if each.kind == SAMPLED)
        yield BenchVerdict("spans arrive when sampled", f"{posts} exports", posts > 0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.observability", description=__doc__
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[OFF, SAMPLED, SCRAPED])
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warmup", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(argv)
    return publish(report(list(all_observed(asked)), asked), argv)


if __name__ == "__main__":
    sys.exit(main())
