"""Bench: what rate can the load generator send, and do its latencies agree with `wrk`?

`python -m loadtests.benches.generator`: one process sends the ragged mix (open loop) to a trivial
server on loopback at rising rates, by the same code as `headrace load`: it renders bodies, reads
answers' headers and keeps a record. A rate is reached if the run counts, that is, if requests were
sent on time. Then a closed loop and `wrk`, with as many connections, take turns against a server
that answers after 10 ms plus an exponential time; their percentiles must agree. The costs of the
parts of a request are measured separately.

Where `wrk` (Debian: `apt install wrk`) is not installed, the bench runs without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs
from loadtests.benches.server import Launch, RunningServer, free_port, launched
from loadtests.benches.trivial_server import ANSWER
from loadtests.client.http1 import ResponseParser
from loadtests.client.player import PlayedRequest
from loadtests.client.protocols import PROTOCOLS
from loadtests.client.protocols.types import Endpoint
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Record
from loadtests.results.recorder import RecordingRules, RunRecorder
from loadtests.results.report_table import BenchVerdict, Cell, Table, at_least, ratio
from loadtests.run import RunOptions, prepare
from loadtests.traffic.plan import Planned

SCENARIO = Path("loadtests/scenarios/ragged-mix.yaml")
MIN_RATE = 5000.0
MAX_OFF = 0.10
PERCENTS = (50, 90, 99)
CALLERS = 16
OPEN, OURS, WRK, PARTS = "open loop", "ours", "wrk", "parts"
_WRK_LINE = re.compile(r"^\s+(\d+)%\s+([\d.]+)(us|ms|s)$", re.M)
_WRK_RATE = re.compile(r"^Requests/sec:\s+([\d.]+)$", re.M)
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_RENDERED = ("oip", "oip-binary", "openai-embeddings", "openai-chat")


@contextmanager
def trivial_server(delay_ms: float, spread_ms: float = 0.0) -> Iterator[RunningServer]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    module = [sys.executable, "-m", "loadtests.benches.trivial_server", "--port", str(port)]
    command = [*module, "--delay-ms", str(delay_ms), "--spread-ms", str(spread_ms)]
    with launched(Launch("trivial_server", command, url, url)) as running:
        yield running


def played(url: str, seconds: float, arrivals: str) -> Record:
    changes = (arrivals, f"duration_s={seconds}", "warmup_s=1")
    return prepare(RunOptions(SCENARIO, url, protocol="openai-embeddings", changes=changes)).play()


def sent(url: str, rate: float, seconds: float) -> dict[str, Cell]:
    """An open loop's row. It counts if the generator sent on time."""
    record = played(url, seconds, f"arrivals.rate={rate}")
    return {
        "asked/s": rate,
        "offered": record.total().offered,
        "answered": record.total().latency.total,
        "lag p50 ms": in_ms(record.client.lag, 50),
        "lag p99 ms": in_ms(record.client.lag, 99),
        "CPU µs": record.client.cpu_us,
        "counts": "no" if record.client.behind else "yes",
    }


def ours(url: str, seconds: float) -> dict[str, float]:
    record = played(url, seconds, f"arrivals={{process: closed, clients: {CALLERS}}}")
    latency = record.total().latency
    percentiles = {f"p{percent}, ms": in_ms(latency, percent) for percent in PERCENTS}
    return {"answers/s": latency.total / record.seconds, **percentiles}


def in_ms(histogram: LatencyHistogram, percent: int) -> float:
    return (histogram.percentile_s(percent) or 0.0) * 1e3


def wrk(url: str, seconds: float) -> dict[str, float]:
    """A run of `wrk`. Raises CalledProcessError."""
    command = ["wrk", "-t1", f"-c{CALLERS}", f"-d{seconds:g}", "--latency", f"{url}/v1/embeddings"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    p_ms = {int(p): float(number) * _UNITS[unit] for p, number, unit in _WRK_LINE.findall(said)}
    (rate,) = _WRK_RATE.findall(said)
    return {"answers/s": float(rate), **{f"p{each}, ms": p_ms[each] for each in PERCENTS}}


def parts_us() -> dict[str, float]:
    """Microseconds of each step that this client takes for a request in Python."""
    planned = Planned(0.5, "default", (24,))
    wires = {name: PROTOCOLS[name](Endpoint("http://host:80", "device")) for name in _RENDERED}
    found = {f"a body rendered, {name}": _us(w.request, planned) for name, w in wires.items()}
    parser = ResponseParser()
    found["an answer parsed"] = _us(parser.feed, ANSWER)
    answer = parser.feed(ANSWER)
    assert answer is not None
    recorder = RunRecorder(RecordingRules({"default": 0.1}, (32,), 0.0, 1.0))
    plain = PlayedRequest(planned, 0.5, 0.51, 200, "", 0.5)
    told = PlayedRequest(planned, 0.5, 0.51, 200, "", 0.5, answer.head)
    found["kept in the record"] = _us(recorder.ended, plain)
    found["of its headers, batch, bucket and wait"] = (
        _us(recorder.ended, told) - found["kept in the record"]
    )
    return found


def _us(call: object, given: object) -> float:
    names = {"call": call, "given": given}
    return min(timeit.repeat("call(given)", globals=names, number=5000, repeat=5)) / 5000 * 1e6


def runs(options: Options) -> Iterator[BenchRun]:
    with trivial_server(0.0) as running:
        for rate in options.rates:
            yield BenchRun(OPEN, sent(running.url, rate, options.seconds))
    if shutil.which("wrk"):
        with trivial_server(options.delay_ms, options.delay_ms) as running:
            for _ in range(options.repeats):
                yield BenchRun(OURS, ours(running.url, options.seconds))
                yield BenchRun(WRK, wrk(running.url, options.seconds))
    yield BenchRun(PARTS, parts_us())


def tables(done: Runs, options: Options) -> Iterator[Table]:
    rates, (parts,) = done.of(OPEN).results, done.of(PARTS).results
    rows = tuple(tuple(row.values()) for row in rates)
    yield Table("Open loop from one process, the ragged mix as texts", tuple(rates[0]), rows)
    yield Table("What a request costs this client", ("part", "µs"), tuple(parts.items()))
    if done.of(WRK):
        sides = [done.of(OURS), done.of(WRK)]
        rows = tuple(
            (
                name,
                *(side.median(itemgetter(name)) for side in sides),
                *(side.spread(itemgetter(name)) for side in sides),
            )
            for name in sides[0].results[0]
        )
        caption = f"Closed loop, {CALLERS} callers, {len(sides[0])} runs each in turn, medians"
        yield Table(caption, ("", "ours", "wrk", "ours by run", "wrk by run"), rows)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    on_time = [row["asked/s"] for row in done.of(OPEN).results if row["counts"] == "yes"]
    claim = f"at least {MIN_RATE:,.0f}/s from one process"
    yield at_least(claim, max(on_time, default=0.0), MIN_RATE, "/s")
    for percent in PERCENTS if done.of(WRK) else ():
        p_ms = itemgetter(f"p{percent}, ms")
        off = ratio(*(done.of(side).median(p_ms) for side in (OURS, WRK))) - 1.0
        yield BenchVerdict(f"p{percent} within 10 % of wrk's", f"{off:+.1%}", abs(off) <= MAX_OFF)


def notes(done: Runs, options: Options) -> Iterator[str]:
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) == os.SCHED_FIFO:
        yield (
            "Client, server and `wrk` ran at real-time priority (`chrt -f 1`): the machine was "
            "doing other work."
        )


BENCH = Bench(
    name="generator",
    about=__doc__,
    title="The load generator",
    options={
        "rates": BenchOption([1000.0, 2500.0, 5000.0, 7500.0]),
        "seconds": BenchOption(10.0),
        "repeats": BenchOption(3, "of the comparison with wrk"),
        "delay_ms": BenchOption(10.0, "least, beside wrk"),
    },
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=notes,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
