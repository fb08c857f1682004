"""Bench: how much faster do a backend's modes (compiled, int8, …) run a model on ragged work?

`python -m loadtests.benches.backend_modes`: runs MiniLM in a loop over sorted batches of the ragged
mix, each mode beside the backend's plain one. One process has all modes loaded and runs them in
turn. Tokens a second exclude padding, so a mode that pads more must make up for that.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.benches.backend_loop import looped
from loadtests.benches.runner import (
    Bench,
    BenchRun,
    Column,
    Option,
    Options,
    Runs,
    median,
    say,
    spread,
    table,
)
from loadtests.benches.server import Settings, changed, example
from loadtests.results.report_table import Table, ratio
from loadtests.traffic.workload import ragged_lengths

WARM_S = 1.0  # besides, the loop does not count its first pass


@dataclass(frozen=True, slots=True)
class BackendMode:
    """A way to run a model on a backend."""

    name: str
    runtime: str
    options: Mapping[str, Any]
    precision: str = "fp32"
    beside: str | None = None  # the mode that it is compared with; None: this is a plain one


MODES = (
    BackendMode("torch, eager", "torch", {"mode": "eager"}),
    BackendMode("torch, compiled", "torch", {"mode": "compile"}, beside="torch, eager"),
    BackendMode("torch, eager, int8", "torch", {"mode": "eager"}, "int8", "torch, eager"),
    BackendMode("torch, compiled, int8", "torch", {"mode": "compile"}, "int8", "torch, eager"),
    BackendMode("onnxruntime", "onnxruntime", {}),
    BackendMode(
        "onnxruntime, I/O binding", "onnxruntime", {"io_binding": True}, beside="onnxruntime"
    ),
    BackendMode("openvino, dynamic shapes", "openvino", {}, "bf16"),
    BackendMode(
        "openvino, a model an edge",
        "openvino",
        {"shapes": "buckets"},
        "bf16",
        "openvino, dynamic shapes",
    ),
)


def settings_of(ways: Sequence[BackendMode]) -> Settings:
    """Settings with a model for each mode, named by its position."""
    models = {}
    for at, way in enumerate(ways):
        changes = {
            "models.minilm.runtime": way.runtime,
            "models.minilm.precision": way.precision,
            "models.minilm.options": {**way.options, "warm_s": WARM_S},
            "models.minilm.slo.latency_ms": 5000.0,
        }
        models[f"way{at}"] = changed(example("minilm"), changes)["models"]["minilm"]
    return {"models": models}


def rate(record: Mapping[str, float]) -> float:
    return record["tokens_per_s"]


def runs(options: Options) -> Iterator[BenchRun]:
    names = {f"way{at}": way.name for at, way in enumerate(MODES)}
    lengths = ragged_lengths(options.rows, random.Random(0))
    settings = settings_of(MODES)
    for record in looped(settings, list(names), lengths, options.seconds, options.repeats):
        name = names[record.pop("model")]
        say(f"{name}: {rate(record):,.0f} tokens/s")
        yield BenchRun(name, record)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    ways = {way.name: way for way in MODES}

    def beside(mine: Runs) -> float | None:
        plain = ways[mine[0].side].beside
        return ratio(mine.median(rate), done.of(plain).median(rate)) if plain else None

    columns: tuple[Column, ...] = (
        ("precision", lambda mine: ways[mine[0].side].precision),
        ("tokens/s", median(rate)),
        ("least–most", spread(rate)),
        ("padding", median(lambda record: record["padding"])),
        ("× its plain way", beside),
    )
    yield table("", columns, {name: done.of(name) for name in ways})


BENCH = Bench(
    name="backend_modes",
    about=__doc__,
    title="Backends' own ways of running MiniLM",
    options={
        "rows": Option(100, "different rows (%(default)s)"),
        "seconds": Option(2.0, "of each turn (%(default)s)"),
        "repeats": Option(5),
    },
    measure=runs,
    tables=tables,
    # One replica has all processors that this process may use.
    notes=(
        f"Sorted, full batches in a loop; {len(os.sched_getaffinity(0))} threads; nothing else "
        "between.",
    ),
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
