"""What does a server cost around a device that takes 2 ms a batch of at most 32?

`python -m loadtests.benches.overhead`: 24 INT64 a request as JSON over HTTP at 1, 32 and 128
clients, against Headrace, plain Ray Serve and Triton, started in turn within each repeat so that
drift of the machine meets them alike. Requests a second, p50 and p99, ratios of medians, CPU
microseconds a request by process and by stage. A system that answers with errors shows them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from loadtests.benches.device_load import DeviceTrial, measure
from loadtests.benches.launched import RunningServer
from loadtests.benches.peer_servers import PEERS, PYTRITON, RAY_SERVE, TRITON, peer
from loadtests.benches.server import example, headrace
from loadtests.results.report_table import (
    BenchReport,
    BenchVerdict,
    Cell,
    Table,
    at_least,
    at_most,
    median_of,
    publish,
    ratio,
    spread_of,
)

HEADRACE = "headrace"
DEVICE_MS = 2.0
LEAST_RATE = {32: 2500.0, 128: 3400.0}
LEAST_RATIO = 12.0
MOST_OVER_DEVICE_MS = 2.0


def system(name: str) -> AbstractContextManager[RunningServer]:
    return headrace(example("device"), name=name) if name == HEADRACE else peer(name)


def trials(asked: argparse.Namespace) -> Iterator[DeviceTrial]:
    for repeat in range(asked.repeats):
        # Every other repeat the other way round, so that none is always the first.
        for name in asked.systems if repeat % 2 == 0 else reversed(asked.systems):
            with system(name) as running:
                for clients in asked.clients:
                    trial = measure(running, clients, asked.seconds, asked.warmup)
                    say(repeat, trial)
                    yield trial


def say(repeat: int, trial: DeviceTrial) -> None:
    result = trial.result
    print(
        f"  repeat {repeat + 1} {trial.system:>18} {trial.clients:>4} clients "
        f"{result.rate:8.0f}/s p50 {result.latency_ms(50):7.2f} ms "
        f"server {trial.server_cpu_us:5.0f} µs {result.errors or ''}",
        file=sys.stderr,
    )


def of(done: Sequence[DeviceTrial], name: str, clients: int) -> list[DeviceTrial]:
    return [trial for trial in done if (trial.system, trial.clients) == (name, clients)]


def rate(done: Sequence[DeviceTrial], name: str, clients: int) -> float:
    return median_of(of(done, name, clients), lambda trial: trial.result.rate)


def speed_table(done: Sequence[DeviceTrial], systems: Sequence[str], clients: int) -> Table:
    rows = []
    for name in systems:
        mine = of(done, name, clients)
        errors = sum(trial.result.failed for trial in mine)
        rows.append(
            (
                name,
                rate(done, name, clients),
                spread_of(mine, lambda trial: trial.result.rate),
                median_of(mine, lambda trial: trial.result.latency_ms(50)),
                median_of(mine, lambda trial: trial.result.latency_ms(99)),
                ratio(rate(done, HEADRACE, clients), rate(done, name, clients)),
                median_of(mine, lambda trial: trial.server_cpu_us),
                errors,
            )
        )
    headers = (
        *("system", "req/s", "least–most", "p50 ms", "p99 ms"),
        *("headrace is ×", "server CPU µs/req", "errors"),
    )
    return Table(f"{clients} client{'s' * (clients > 1)}", headers, tuple(rows))


def cpu_table(done: Sequence[DeviceTrial], clients: Sequence[int]) -> Table:
    """Headrace's CPU by process; what takes less than half a microsecond is left out."""
    roles = sorted({role for trial in done if trial.system == HEADRACE for role in trial.cpu_us})
    rows = [(role, [cpu_of(of(done, HEADRACE, n), role) for n in clients]) for role in roles]
    headers = ("process", *(f"{n} clients" for n in clients))
    shown: tuple[tuple[Cell, ...], ...] = tuple(
        (role, *cells) for role, cells in rows if max(cells) >= 0.5
    )
    return Table("Headrace, CPU µs a request by process", headers, shown)


def cpu_of(mine: Sequence[DeviceTrial], role: str) -> float:
    return median_of(mine, lambda trial: trial.cpu_us.get(role, 0.0))


def stage_table(done: Sequence[DeviceTrial], clients: int) -> Table:
    mine = of(done, HEADRACE, clients)
    stages = dict.fromkeys(stage for trial in mine for stage in trial.stages_us)
    rows = tuple((stage, stage_of(mine, stage, 0), stage_of(mine, stage, 1)) for stage in stages)
    caption = f"Headrace, time by stage at {clients} clients"
    return Table(caption, ("stage", "times a request", "mean µs"), rows)


def stage_of(mine: Sequence[DeviceTrial], stage: str, which: int) -> float:
    return median_of(mine, lambda trial: trial.stages_us.get(stage, (0.0, 0.0))[which])


def verdicts(done: Sequence[DeviceTrial], asked: argparse.Namespace) -> list[BenchVerdict]:
    found = []
    for clients in (n for n in asked.clients if n in LEAST_RATE):
        ours = rate(done, HEADRACE, clients)
        least = LEAST_RATE[clients]
        found.append(at_least(f"at least {least:,.0f} req/s at {clients} clients", ours, least))
        for name in asked.systems:
            times = ratio(ours, rate(done, name, clients))
            if name == RAY_SERVE:
                claim = f"at least 12 × plain Ray Serve at {clients} clients"
                found.append(at_least(claim, times, LEAST_RATIO, " ×"))
            elif name in (TRITON, PYTRITON):
                found.append(at_least(f"no less than {name} at {clients} clients", times, 1, " ×"))
    if 1 in asked.clients:
        over_ms = (
            median_of(of(done, HEADRACE, 1), lambda trial: trial.result.latency_ms(50)) - DEVICE_MS
        )
        claim = "one client's median at most 2 ms above the device's time"
        found.append(at_most(claim, over_ms, MOST_OVER_DEVICE_MS, " ms above"))
    return found


def report(done: Sequence[DeviceTrial], asked: argparse.Namespace) -> BenchReport:
    tables = [speed_table(done, asked.systems, clients) for clients in asked.clients]
    if HEADRACE in asked.systems:
        tables += [cpu_table(done, asked.clients), stage_table(done, max(asked.clients))]
    return BenchReport(
        name="overhead",
        title="Overhead around a device of 2 ms a batch",
        tables=tuple(tables),
        verdicts=tuple(verdicts(done, asked)) if HEADRACE in asked.systems else (),
        notes=(
            "`ray-serve` is plain Ray Serve (`loadtests/peers/ray_serve_plain`) with "
            "`max_ongoing_requests` raised so that batches can form; with its default of 5 "
            "(`ray-serve-defaults`) it is slower still. `triton` runs the device in Triton's "
            "Python backend, `pytriton` binds it through PyTriton; both batch dynamically.",
        ),
        raw={"trials": [trial.record() for trial in done]},
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.overhead", description=__doc__
    )
    parser.add_argument("--systems", nargs="+", choices=(HEADRACE, *PEERS), default=DEFAULT)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 32, 128])
    parser.add_argument("--seconds", type=float, default=8.0, help="a trial (%(default)s)")
    parser.add_argument("--warmup", type=float, default=2.0, help="s before it (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    return parser


DEFAULT = [HEADRACE, RAY_SERVE, TRITON, PYTRITON]


def main(argv: list[str] | None = None) -> int:
    asked = arguments().parse_args(argv)
    done = list(trials(asked))
    return publish(report(done, asked), argv)


if __name__ == "__main__":
    sys.exit(main())
