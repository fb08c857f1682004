"""Bench: how long does a server take to start, cold and staged, and how much memory does it use?

`python -m loadtests.benches.memory_start --examples minilm device`: starts `headrace serve` with an
empty cache (cold, which includes converting and compiling the model) and again with the cache that
the first start filled (staged). The time is from the command's start until `/readyz` answers 200.
Memory is read after some traffic, by process: resident bytes, and the proportional set size, in
which shared pages count once.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtests.benches.device_load import device_load
from loadtests.benches.launched import RunningServer
from loadtests.benches.minilm_load import minilm_load
from loadtests.benches.processes import memory_by_role
from loadtests.benches.runner import (
    Bench,
    BenchRun,
    Option,
    Options,
    Runs,
    say,
)
from loadtests.benches.server import example, headrace
from loadtests.client.closed_loop import run
from loadtests.results.report_table import BenchVerdict, Table, at_most
from loadtests.traffic.workload import ragged_lengths

HOME = Path("out/bench/cold")
MIB = 2**20
MAX_READY_S = 60.0
COLD, STAGED = "cold", "staged"


@dataclass(frozen=True, slots=True)
class ServerStart:
    """One start. `memory`: by role (number of processes, resident bytes, proportional bytes)."""

    ready_s: float
    memory: Mapping[str, tuple[int, int, int]]


def some_traffic(running: RunningServer, name: str) -> None:
    if name == "device":
        run(device_load(running.url, 8, 2.0))
        return
    lengths = ragged_lengths(200, random.Random(0))
    run(minilm_load(running.url, lengths, clients=8, seconds=2.0))


def started(name: str, kind: str) -> ServerStart:
    home = HOME / name
    if kind == COLD:
        shutil.rmtree(home, ignore_errors=True)
    with headrace(example(name), name=f"start-{name}", home=home) as running:
        some_traffic(running, name)
        memory = memory_by_role(running.usage(memory=True))
    say(f"{name} {kind}: ready in {running.ready_s:.1f} s")
    return ServerStart(running.ready_s, memory)


def runs(options: Options) -> Iterator[BenchRun]:
    for _ in range(options.repeats):
        for name in options.examples:
            for kind in (COLD, STAGED):
                yield BenchRun(name, started(name, kind), kind)
    shutil.rmtree(HOME, ignore_errors=True)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    rows = []
    for name in options.examples:
        for kind in (COLD, STAGED):
            mine = done.of(name, kind)
            rows.append((name, kind, mine.median("ready_s"), mine.spread("ready_s")))
    yield Table("Time to ready", ("example", "start", "s", "least–most"), tuple(rows))
    for name in options.examples:
        yield memory_table(name, done.of(name, STAGED).results[-1].memory)


def memory_table(name: str, memory: Mapping[str, tuple[int, int, int]]) -> Table:
    """A table of memory by role, largest first, with a sum."""
    ordered = sorted(memory.items(), key=lambda item: -item[1][1])
    rows = [(role, count, rss / MIB, pss / MIB) for role, (count, rss, pss) in ordered]
    sums = [sum(row[column] for row in memory.values()) for column in range(3)]
    rows.append(("all", sums[0], sums[1] / MIB, sums[2] / MIB))
    headers = ("process", "number", "resident MiB", "proportional MiB")
    return Table(f"Memory, `examples/{name}.yaml`, staged start", headers, tuple(rows))


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    slowest = max(done, key=lambda each: each.result.ready_s)
    claim = f"{slowest.side}, {slowest.case}: ready within 60 s"
    yield at_most(claim, slowest.result.ready_s, MAX_READY_S, " s")


BENCH = Bench(
    name="memory_start",
    about=__doc__,
    title="Memory and start-up",
    options={
        "examples": Option(["minilm", "device"], choices=("minilm", "device")),
        "repeats": Option(2),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
