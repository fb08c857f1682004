"""How much of a backend's speed on ragged work is left when it is reached over HTTP?

`python -m loadtests.benches.ragged_embeddings`: MiniLM under the ragged mix, tokens a second
through `/v2/models/minilm/infer`, against the same backend with the same settings called in a loop
with perfectly sorted, full batches (`python -m deployments.replica.backend_loop`). The two
alternate. The client shares the processors with the server; the loop has them for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtests.benches.minilm_load import minilm_load
from loadtests.benches.server import HOME_DIR, SETTINGS_DIR, Settings, changed, example, headrace
from loadtests.client.closed_loop import run
from loadtests.client.load import Load
from loadtests.client.tally import LoadResult
from loadtests.results.report_table import (
    BenchReport,
    Table,
    at_least,
    median_of,
    publish,
    ratio,
    spread_of,
)
from loadtests.traffic.workload import ragged_lengths

LEAST_SHARE = 0.8
# A processor's cost is nearly all tokens, so narrow intervals (little padding) beat full batches.
EDGES = (12, 16, 20, 24, 28, 32, 72, 80, 96, 112, 128, 320, 384, 448, 512)
LATENCY_MS = 5000.0  # a measure of throughput: nobody is late, nothing is refused


@dataclass(frozen=True, slots=True)
class Pair:
    """One repeat: through HTTP, and the loop's record."""

    served: LoadResult
    loop: dict[str, float]


def settings_of(asked: argparse.Namespace) -> Settings:
    changes: dict[str, Any] = {
        "models.minilm.runtime": asked.runtime,
        "models.minilm.precision": asked.precision,
        "models.minilm.lengths.buckets": list(EDGES),
        "models.minilm.slo.latency_ms": LATENCY_MS,
    }
    return changed(example("minilm"), changes)


def served(settings: Settings, lengths: list[int], asked: argparse.Namespace) -> LoadResult:
    def load(seconds: float) -> Load:
        binary = asked.wire == "binary"
        return minilm_load(
            running.url, lengths, clients=asked.clients, seconds=seconds, binary=binary
        )

    with headrace(settings, name="ragged") as running:
        run(load(asked.warmup))
        return run(load(asked.seconds))


def looped(settings: Settings, lengths: list[int], seconds: float) -> dict[str, float]:
    """The backend alone, in a process of its own, from the same staged artifact."""
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    file, rows = SETTINGS_DIR / "loop.yaml", SETTINGS_DIR / "lengths.txt"
    file.write_text(yaml.safe_dump(settings))
    rows.write_text("\n".join(map(str, lengths)))
    command = [sys.executable, "-m", "deployments.replica.backend_loop", str(file), "minilm"]
    command += ["--lengths", str(rows), "--seconds", str(seconds)]
    environ = {**os.environ, "XDG_CACHE_HOME": str(Path(HOME_DIR, "cache").absolute())}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"the loop ended with {done.returncode}:\n{done.stderr[-2000:]}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    del record["model"]
    return record


def pairs(settings: Settings, lengths: list[int], asked: argparse.Namespace) -> Iterator[Pair]:
    for repeat in range(asked.repeats):
        pair = Pair(served(settings, lengths, asked), looped(settings, lengths, asked.seconds))
        print(
            f"  repeat {repeat + 1}: served {pair.served.weight_rate:,.0f}, "
            f"loop {pair.loop['tokens_per_s']:,.0f} tokens/s {pair.served.errors or ''}",
            file=sys.stderr,
        )
        yield pair


def report(found: list[Pair], asked: argparse.Namespace) -> BenchReport:
    through = median_of(found, lambda pair: pair.served.weight_rate)
    alone = median_of(found, lambda pair: pair.loop["tokens_per_s"])
    share = ratio(through, alone)
    errors = sum(pair.served.failed for pair in found)
    rows = (
        (
            f"through HTTP ({asked.wire}), {asked.clients} clients",
            through,
            spread_of(found, lambda pair: pair.served.weight_rate),
            median_of(found, lambda pair: pair.served.rate),
            median_of(found, lambda pair: pair.served.latency_ms(50)),
            median_of(found, lambda pair: pair.served.latency_ms(99)),
            errors,
        ),
        (
            "in a loop, sorted batches",
            alone,
            spread_of(found, lambda pair: pair.loop["tokens_per_s"]),
            median_of(found, lambda pair: pair.loop["rows_per_s"]),
            None,
            None,
            None,
        ),
    )
    headers = ("", "tokens/s", "least–most", "rows/s", "p50 ms", "p99 ms", "errors")
    claim = "through HTTP at least 80 % of sorted batches in a loop"
    return BenchReport(
        name="ragged_embeddings",
        title=f"MiniLM under a ragged mix, {asked.runtime} {asked.precision}",
        tables=(Table("", headers, rows),),
        verdicts=(at_least(claim, share, LEAST_SHARE),),
        raw={"served": [p.served.summary() for p in found], "loop": [p.loop for p in found]},
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.ragged_embeddings", description=__doc__
    )
    parser.add_argument("--runtime", default="openvino")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--wire", choices=("binary", "json"), default="binary")
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--rows", type=int, default=2000, help="different rows (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warmup", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args(argv)
    lengths = ragged_lengths(asked.rows, random.Random(0))
    found = list(pairs(settings_of(asked), lengths, asked))
    return publish(report(found, asked), argv)


if __name__ == "__main__":
    sys.exit(main())
