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

from loadtests.benches.overhead import device_load
from loadtests.benches.ragged_embeddings import minilm_load
from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs, median, spread
from loadtests.benches.server import BENCH_DIR, MIB, example, headrace, memory_by_role
from loadtests.client.load import run
from loadtests.results.report_table import BenchVerdict, Table, at_most
from loadtests.traffic.workload import ragged_lengths

HOME = BENCH_DIR / "cold"
MAX_READY_S = 60.0
COLD, STAGED = "cold", "staged"


@dataclass(frozen=True, slots=True)
class ServerStart:
    """One start. `memory`: by role (number of processes, resident bytes, proportional bytes)."""

    ready_s: float
    memory: Mapping[str, tuple[int, int, int]]


def started(name: str, kind: str) -> ServerStart:
    home = HOME / name
    if kind == COLD:
        shutil.rmtree(home, ignore_errors=True)
    with headrace(example(name), name=f"start-{name}", home=home) as running:
        lengths = ragged_lengths(200, random.Random(0))
        some = minilm_load(running.url, lengths, clients=8, seconds=2.0)
        run(device_load(running.url, 8, 2.0) if name == "device" else some)
        return ServerStart(running.ready_s, memory_by_role(running.usage(memory=True)))


def runs(options: Options) -> Iterator[BenchRun]:
    for _ in range(options.repeats):
        for name in options.examples:
            for kind in (COLD, STAGED):
                yield BenchRun(kind, started(name, kind), name)
    shutil.rmtree(HOME, ignore_errors=True)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    """Memory by role, largest first, with a sum."""
    for name in options.examples:
        memory = done.of(STAGED, name).results[-1].memory
        ordered = sorted(memory.items(), key=lambda item: -item[1][1])
        rows = [(role, count, rss / MIB, pss / MIB) for role, (count, rss, pss) in ordered]
        sums = [sum(row[column] for row in memory.values()) for column in range(3)]
        rows.append(("all", sums[0], sums[1] / MIB, sums[2] / MIB))
        headers = ("process", "number", "resident MiB", "proportional MiB")
        yield Table(f"Memory, `examples/{name}.yaml`, staged start", headers, tuple(rows))


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    slowest = max(done, key=lambda each: each.result.ready_s)
    claim = f"{slowest.case}, {slowest.side}: ready within 60 s"
    yield at_most(claim, slowest.result.ready_s, MAX_READY_S, " s")


BENCH = Bench(
    name="memory_start",
    about=__doc__,
    title="Memory and start-up",
    options={
        "examples": BenchOption(["minilm", "device"], choices=("minilm", "device")),
        "repeats": BenchOption(2),
    },
    measure=runs,
    columns=(("ready after s", median("ready_s")), ("least–most", spread("ready_s"))),
    caption=lambda name, options: f"Time to ready, `examples/{name}.yaml`",
    first="start",
    tables=tables,
    thresholds=thresholds,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
