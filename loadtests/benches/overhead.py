"""Bench: how much do servers cost around a device that takes 2 ms for a batch of at most 32 rows?

`python -m loadtests.benches.overhead`: 1, 32 and 128 clients send 24 INT64 a request as JSON over
HTTP to Headrace, plain Ray Serve and Triton. The servers take turns within each repeat, so that
drift of the machine affects all alike. Measured are requests a second, p50 and p99, ratios of
medians, and CPU microseconds a request by process and by stage. Errors are shown too.

`ray-serve` is a plain Serve app with `max_ongoing_requests` raised so that batches can form;
`ray-serve-defaults` has Serve's default. `triton` runs the device in Triton's Python backend;
`pytriton` binds it through PyTriton.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from loadtests.benches.device_load import measure
from loadtests.benches.launched import Launch, RunningServer, free_port, launched
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
from loadtests.benches.server import example, headrace
from loadtests.peers import venvs
from loadtests.results.report_table import BenchVerdict, Table, at_least, at_most, ratio

HEADRACE = "headrace"
PEERS_DIR = Path(__file__).parent.parent / "peers"
RAY_SERVE = "ray-serve"
RAY_SERVE_DEFAULTS = "ray-serve-defaults"
TRITON = "triton"
PYTRITON = "pytriton"
PEERS = (RAY_SERVE, RAY_SERVE_DEFAULTS, TRITON, PYTRITON)
DEVICE_MS = 2.0
MIN_RATE = {32: 2500.0, 128: 3400.0}
MIN_RATIO = 12.0
MAX_OVER_DEVICE_MS = 2.0
RATE = "result.rate"


def system(name: str) -> AbstractContextManager[RunningServer]:
    """Starts a server. A peer is started as its documentation says. Triton's environment is made
    first if it does not exist, which takes half a minute."""
    if name == HEADRACE:
        return headrace(example("device"), name=name)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environ = {"RAY_USAGE_STATS_ENABLED": "0"}
    ready_url = f"{url}/v2/models/device/ready"
    return launched(Launch(name, command_of(name, port), url, ready_url, environ))


def command_of(name: str, port: int) -> list[str]:
    if name in (TRITON, PYTRITON):
        python = str(venvs.make(venvs.PEERS["triton"]))
        script = {TRITON: "serve.py", PYTRITON: "bind.py"}[name]
        return [python, str(PEERS_DIR / "triton" / script), "--port", str(port)]
    raised = ["--max-ongoing", "256"] if name == RAY_SERVE else []
    app = "loadtests.peers.ray_serve_plain.app"
    return [sys.executable, "-m", app, "--port", str(port), *raised]


def runs(options: Options) -> Iterator[BenchRun]:
    for repeat, name in in_turn(options.systems, options.repeats):
        with system(name) as running:
            for clients in options.clients:
                trial = measure(running, clients, options.seconds, options.warmup)
                result = trial.result
                say(
                    f"repeat {repeat + 1} {name:>18} {clients:>4} clients "
                    f"{result.rate:8.0f}/s p50 {result.p50_ms:7.2f} ms "
                    f"server {trial.server_cpu_us:5.0f} µs {result.errors or ''}"
                )
                yield BenchRun(name, trial, clients)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for clients in options.clients:
        yield speed_table(done, options, clients)
    if HEADRACE in options.systems:
        yield cpu_table(done, options)
        yield stage_table(done.of(HEADRACE, max(options.clients)), max(options.clients))


def speed_table(done: Runs, options: Options, clients: int) -> Table:
    ours = done.of(HEADRACE, clients).median(RATE)
    columns: tuple[Column, ...] = (
        ("req/s", median(RATE)),
        ("least–most", spread(RATE)),
        ("p50 ms", median("result.p50_ms")),
        ("p99 ms", median("result.p99_ms")),
        ("headrace is ×", lambda mine: ratio(ours, mine.median(RATE))),
        ("server CPU µs/req", median("server_cpu_us")),
        ("errors", total("result.failed")),
    )
    rows = {name: done.of(name, clients) for name in options.systems}
    return table(f"{clients} client{'s' * (clients > 1)}", columns, rows, "system")


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


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    if HEADRACE not in options.systems:
        return
    for clients, least in MIN_RATE.items():
        if clients not in options.clients:
            continue
        ours = done.of(HEADRACE, clients).median(RATE)
        yield at_least(f"at least {least:,.0f} req/s at {clients} clients", ours, least)
        for name in options.systems:
            times = ratio(ours, done.of(name, clients).median(RATE))
            if name == RAY_SERVE:
                claim = f"at least 12 × plain Ray Serve at {clients} clients"
                yield at_least(claim, times, MIN_RATIO, " ×")
            elif name in (TRITON, PYTRITON):
                yield at_least(f"no less than {name} at {clients} clients", times, 1, " ×")
    if 1 in options.clients:
        over_ms = done.of(HEADRACE, 1).median("result.p50_ms") - DEVICE_MS
        claim = "one client's median at most 2 ms above the device's time"
        yield at_most(claim, over_ms, MAX_OVER_DEVICE_MS, " ms above")


BENCH = Bench(
    name="overhead",
    about=__doc__,
    title="Overhead around a device of 2 ms a batch",
    options={
        "systems": Option([HEADRACE, RAY_SERVE, TRITON, PYTRITON], choices=(HEADRACE, *PEERS)),
        "clients": Option([1, 32, 128]),
        "seconds": Option(8.0, "a trial (%(default)s)"),
        "warmup": Option(2.0, "s before it (%(default)s)"),
        "repeats": Option(3),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    notes=(
        "`ray-serve` is plain Ray Serve (`loadtests/peers/ray_serve_plain`) with "
        "`max_ongoing_requests` raised so that batches can form; with its default of 5 "
        "(`ray-serve-defaults`) it is slower still. `triton` runs the device in Triton's "
        "Python backend, `pytriton` binds it through PyTriton; both batch dynamically.",
    ),
    record=lambda trial: trial.record(),
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
