"""What do a backend's own ways of running a model gain on ragged work?

`python -m loadtests.benches.backend_modes`: MiniLM over perfectly sorted batches of the ragged mix
in a loop, each way beside the backend's plain one; one process holds them all and they take turns.
Tokens a second are real ones: what a way pads more, it has to make good.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtests.benches.server import HOME_DIR, SETTINGS_DIR, Settings, changed, example
from loadtests.results.report_table import BenchReport, Table, median_of, publish, ratio, spread_of
from loadtests.traffic.workload import ragged_lengths

WARM_S = 1.0  # the loop's first pass is not counted either
Found = dict[str, list[dict[str, float]]]


@dataclass(frozen=True, slots=True)
class BackendMode:
    """`beside`: the way that it is compared with, None for a backend's plain one."""

    name: str
    runtime: str
    options: Mapping[str, Any]
    precision: str = "fp32"
    beside: str | None = None


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
    """One file, a model a way, named by its place."""
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


def measured(ways: Sequence[BackendMode], lengths: list[int], asked: argparse.Namespace) -> Found:
    """The loop's records by way, in the order of the rounds."""
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    file, rows = SETTINGS_DIR / "ways.yaml", SETTINGS_DIR / "ways-lengths.txt"
    file.write_text(yaml.safe_dump(settings_of(ways)))
    rows.write_text("\n".join(map(str, lengths)))
    names = {f"way{at}": way.name for at, way in enumerate(ways)}
    command = [sys.executable, "-m", "deployments.replica.backend_loop", str(file), *names]
    command += ["--lengths", str(rows), "--seconds", str(asked.seconds)]
    command += ["--rounds", str(asked.repeats)]
    environ = {**os.environ, "XDG_CACHE_HOME": str(Path(HOME_DIR, "cache").absolute())}
    found: Found = {way.name: [] for way in ways}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as loop:
        assert loop.stdout is not None
        for line in loop.stdout:
            record = json.loads(line)
            name = names[record.pop("model")]
            found[name].append(record)
            print(f"  {name}: {_rate(record):,.0f} tokens/s", file=sys.stderr, flush=True)
    if loop.returncode:
        raise RuntimeError(f"the loop ended with {loop.returncode}")
    return found


def report(ways: Sequence[BackendMode], found: Found) -> BenchReport:
    rates = {name: median_of(records, _rate) for name, records in found.items()}
    rows = tuple(
        (
            way.name,
            way.precision,
            rates[way.name],
            spread_of(found[way.name], _rate),
            median_of(found[way.name], lambda record: record["padding"]),
            ratio(rates[way.name], rates[way.beside]) if way.beside else None,
        )
        for way in ways
    )
    headers = ("", "precision", "tokens/s", "least–most", "padding", "× its plain way")
    return BenchReport(
        name="backend_modes",
        title="Backends' own ways of running MiniLM",
        tables=(Table("", headers, rows),),
        notes=(f"Sorted, full batches in a loop; {allowed()} threads; nothing else between.",),
        raw=dict(found),
    )


def allowed() -> int:
    """What the example's settings make of this machine: one replica has all of it."""
    return len(os.sched_getaffinity(0))


def _rate(record: Mapping[str, float]) -> float:
    return record["tokens_per_s"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.backend_modes", description=__doc__
    )
    parser.add_argument("--rows", type=int, default=100, help="different rows (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(argv)
    lengths = ragged_lengths(asked.rows, random.Random(0))
    return publish(report(MODES, measured(MODES, lengths, asked)), argv)


if __name__ == "__main__":
    sys.exit(main())
