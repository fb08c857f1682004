"""Bench: how much of a backend's speed on ragged work remains when it is served over HTTP?

`python -m loadtests.benches.ragged_embeddings`: measures MiniLM's tokens a second under the ragged
mix through `/v2/models/minilm/infer`, and in a loop that calls the same backend with the same
settings and with sorted, full batches (`python -m deployments.tools.profile.backend_loop`). The two
alternate. The client shares the processors with the server; the loop has all of them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import yaml

from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Column,
    Options,
    Runs,
    alternate,
    median,
    spread,
)
from loadtests.benches.server import (
    HOME_DIR,
    SETTINGS_DIR,
    RunningServer,
    Settings,
    changed,
    example,
    headrace,
)
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, LoadResult, run
from loadtests.results.report_table import BenchVerdict, at_least, ratio
from loadtests.traffic.workload import binary_infer, infer_body, ragged_lengths, token_ids

MIN_SHARE = 0.8
# A CPU's time depends nearly only on tokens, so narrow buckets (little padding) beat full batches.
EDGES = (12, 16, 20, 24, 28, 32, 72, 80, 96, 112, 128, 320, 384, 448, 512)
LATENCY_MS = 5000.0  # this measures throughput, so no request may be late or refused
SERVED, LOOP = "through HTTP", "in a loop, sorted batches"
INPUT = "input_ids"


def settings_of(options: Options) -> Settings:
    changes: dict[str, Any] = {
        "models.minilm.runtime": options.runtime,
        "models.minilm.precision": options.precision,
        "models.minilm.lengths.buckets": list(EDGES),
        "models.minilm.slo.latency_ms": LATENCY_MS,
    }
    return changed(example("minilm"), changes)


def minilm_load(
    url: str, lengths: Sequence[int], *, clients: int, seconds: float, binary: bool = True
) -> Load:
    """One row of ids a request, in random order; a call's weight is its number of tokens."""
    target, rng, calls = Target.parse(f"{url}/v2/models/minilm/infer"), random.Random(1), []
    for length in lengths:
        ids = token_ids(length, rng)
        body, headers = binary_infer(INPUT, ids) if binary else (infer_body(INPUT, ids), None)
        calls.append(Call(render(target, body, headers=headers), length))
    return Load(target, tuple(calls), clients=clients, seconds=seconds)


def looped(settings: Settings, lengths: Sequence[int], seconds: float) -> dict[str, float]:
    """Runs the backend in a separate process without a server; the loop's record: tokens and rows a
    second, padding. Raises CalledProcessError."""
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    file, rows = SETTINGS_DIR / "loop.yaml", SETTINGS_DIR / "lengths.txt"
    file.write_text(yaml.safe_dump(settings))
    rows.write_text("\n".join(map(str, lengths)))
    command = [sys.executable, "-m", "deployments.tools.profile.backend_loop", str(file), "minilm"]
    command += ["--lengths", str(rows), "--seconds", str(seconds), "--rounds", "1"]
    environ = {**os.environ, "XDG_CACHE_HOME": str((HOME_DIR / "cache").absolute())}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def runs(options: Options) -> Iterator[BenchRun]:
    settings, lengths = settings_of(options), ragged_lengths(options.rows, random.Random(0))

    def start(side: str) -> AbstractContextManager[RunningServer | None]:
        return headrace(settings, name="ragged") if side == SERVED else nullcontext()

    def drive(side: str, running: RunningServer | None, case: str) -> LoadResult | dict[str, float]:
        if running is None:
            return looped(settings, lengths, options.seconds)
        for seconds in (options.warmup, options.seconds):
            binary = options.wire == "binary"
            result = run(
                minilm_load(
                    running.url, lengths, clients=options.clients, seconds=seconds, binary=binary
                )
            )
        return result

    return alternate((SERVED, LOOP), options.repeats, start, drive)


def tokens_per_s(found: Any) -> float:
    return found.weight_rate if isinstance(found, LoadResult) else float(found["tokens_per_s"])


def rows_per_s(found: Any) -> float:
    return found.rate if isinstance(found, LoadResult) else float(found["rows_per_s"])


def latency(percent: int) -> Column:
    def p_ms(found: Any) -> float:
        return found.latency_ms(percent) if isinstance(found, LoadResult) else float("nan")

    return f"p{percent} ms", median(p_ms)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    share = ratio(done.of(SERVED).median(tokens_per_s), done.of(LOOP).median(tokens_per_s))
    claim = "through HTTP at least 80 % of sorted batches in a loop"
    yield at_least(claim, share, MIN_SHARE)
    failed = done.of(SERVED).total("failed")
    yield BenchVerdict("every request is answered", f"{failed} errors", failed == 0)


BENCH = Bench(
    name="ragged_embeddings",
    about=__doc__,
    title=lambda options: f"MiniLM under a ragged mix, {options.runtime} {options.precision}",
    options={
        "runtime": BenchOption("openvino"),
        "precision": BenchOption("bf16"),
        "wire": BenchOption("binary", choices=("binary", "json")),
        "clients": BenchOption(128),
        "rows": BenchOption(2000, "different rows (%(default)s)"),
        "seconds": BenchOption(10.0),
        "warmup": BenchOption(3.0),
        "repeats": BenchOption(3),
    },
    measure=runs,
    columns=(
        ("tokens/s", median(tokens_per_s)),
        ("least–most", spread(tokens_per_s)),
        ("rows/s", median(rows_per_s)),
        latency(50),
        latency(99),
    ),
    caption=lambda case, options: f"{options.clients} clients, {options.wire} tensors",
    thresholds=thresholds,
    record=lambda found: found.summary() if isinstance(found, LoadResult) else found,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
