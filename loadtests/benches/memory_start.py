"""How long until a server is ready, cold and staged, and how much memory does it then hold?

`python -m loadtests.benches.memory_start --examples minilm device`: starts `headrace serve` with an
empty cache (cold: converting and compiling included) and again with the cache that made (staged),
from the start of the command to `/readyz`. Memory is read after a little traffic, by process:
resident bytes, and the proportional set size, in which pages shared by several count once.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtests.benches.device_load import device_load
from loadtests.benches.launched import RunningServer
from loadtests.benches.minilm_load import minilm_load
from loadtests.benches.processes import memory_by_role
from loadtests.benches.server import example, headrace
from loadtests.client.closed_loop import run
from loadtests.results.report_table import (
    BenchReport,
    BenchVerdict,
    Table,
    at_most,
    median_of,
    publish,
    spread_of,
)
from loadtests.traffic.workload import ragged_lengths

HOME = Path("out/bench/cold")
MIB = 2**20
MOST_READY_S = 60.0
COLD, STAGED = "cold", "staged"


@dataclass(frozen=True, slots=True)
class ServerStart:
    """`memory`: by role (processes, resident bytes, proportional bytes)."""

    example: str
    kind: str
    ready_s: float
    memory: dict[str, tuple[int, int, int]]


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
        memory = dict(memory_by_role(running.usage(memory=True)))
    print(f"  {name} {kind}: ready in {running.ready_s:.1f} s", file=sys.stderr)
    return ServerStart(name, kind, running.ready_s, memory)


def starts(asked: argparse.Namespace) -> Iterator[ServerStart]:
    for _ in range(asked.repeats):
        for name in asked.examples:
            yield started(name, COLD)
            yield started(name, STAGED)
    shutil.rmtree(HOME, ignore_errors=True)


def start_table(found: list[ServerStart]) -> Table:
    kinds = dict.fromkeys((start.example, start.kind) for start in found)
    rows = []
    for name, kind in kinds:
        mine = [start for start in found if (start.example, start.kind) == (name, kind)]
        median = median_of(mine, lambda start: start.ready_s)
        rows.append((name, kind, median, spread_of(mine, lambda start: start.ready_s)))
    return Table("Time to ready", ("example", "start", "s", "least–most"), tuple(rows))


def memory_table(start: ServerStart) -> Table:
    """Largest first, with a sum."""
    ordered = sorted(start.memory.items(), key=lambda item: -item[1][1])
    rows = [(role, count, rss / MIB, pss / MIB) for role, (count, rss, pss) in ordered]
    sums = [sum(row[column] for row in start.memory.values()) for column in range(3)]
    rows.append(("all", sums[0], sums[1] / MIB, sums[2] / MIB))
    headers = ("process", "number", "resident MiB", "proportional MiB")
    return Table(f"Memory, `examples/{start.example}.yaml`, staged start", headers, tuple(rows))


def report(found: list[ServerStart]) -> BenchReport:
    last = {start.example: start for start in found if start.kind == STAGED}
    verdicts: list[BenchVerdict] = [
        at_most(
            f"{start.example}, {start.kind}: ready within 60 s", start.ready_s, MOST_READY_S, " s"
        )
        for start in sorted(found, key=lambda start: -start.ready_s)[:1]
    ]
    return BenchReport(
        name="memory_start",
        title="Memory and start-up",
        tables=(start_table(found), *(memory_table(start) for start in last.values())),
        verdicts=tuple(verdicts),
        raw={"starts": [[s.example, s.kind, s.ready_s, s.memory] for s in found]},
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.memory_start", description=__doc__
    )
    parser.add_argument(
        "--examples", nargs="+", choices=("minilm", "device"), default=["minilm", "device"]
    )
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args(argv)
    return publish(report(list(starts(asked))), argv)


if __name__ == "__main__":
    sys.exit(main())
