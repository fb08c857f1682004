"""Measures the tokens a second that a backend computes when nothing is in its way.

`python -m deployments.tools.profile.backend_loop SETTINGS MODEL… --lengths FILE` loads a model
exactly as a replica would (same settings, threads, staged artifact). It sorts the rows of FILE (one
length a line, tokens) by length, packs them into batches of `max_size` and `max_tokens`, and runs
those in a loop. The result is the ceiling for everything that serves the same rows one by one.
Several models take turns, `--rounds` times, so that whatever slows the machine affects all of them.
If a backend can, it puts the next batch on the device while one computes, as in a replica. Then
single rows run, one length after the other, to show what a lone request waits. Prints a line of
JSON for each model and round. Uses no HTTP and no Ray.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from deployments.replica import backend_env
from deployments.replica.describe import runtime_settings
from deployments.settings_files.load import load
from deployments.settings_files.made import cache_dir
from runtimes import catalog
from runtimes.types import Batch, Limits, Prefetching, Ragged, Result, Runtime, RuntimeSettings
from runtimes.warmup import batch as zeros_batch

ORDINARY_TOKENS = (1000, 29_999)  # ids of words in BERT's vocabulary; other models wrap theirs
LONE_ROWS = 16  # number of single rows, with lengths evenly spread over those of the file
LONE_SHARE = 0.25  # of the time that the sorted batches get
Run = Callable[[Batch], Result]


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What one model did in one round."""

    seconds: float
    passes: int  # over all rows
    batches: int
    rows: int
    tokens: int  # real ones
    padded_tokens: int  # that the device computed
    batch_s: tuple[float, ...] = ()  # of each batch
    row_s: tuple[float, ...] = ()  # of each row that ran alone

    def record(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "passes": self.passes,
            "batches": self.batches,
            "rows": self.rows,
            "tokens_per_s": self.tokens / self.seconds,
            "rows_per_s": self.rows / self.seconds,
            "padding": 1 - self.tokens / self.padded_tokens,
            **_quantiles("batch", self.batch_s),
            **_quantiles("row", self.row_s),
        }


def _quantiles(of: str, seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    p50, p99 = np.quantile(seconds, (0.5, 0.99)) * 1e3
    return {f"{of}_p50_ms": float(p50), f"{of}_p99_ms": float(p99)}


def sorted_groups(
    lengths: Sequence[int], max_size: int, max_tokens: int
) -> Iterator[tuple[int, ...]]:
    """Groups of rows by descending length, each cut where the next row would exceed `max_size` rows
    or `max_tokens` padded tokens. A row longer than `max_tokens` stands alone."""
    group: list[int] = []
    for length in sorted(lengths, reverse=True):
        if group and (len(group) == max_size or (len(group) + 1) * group[0] > max_tokens):
            yield tuple(group)
            group = []
        group.append(length)
    if group:
        yield tuple(group)


def batch_of(limits: Limits, lengths: Sequence[int], seed: int) -> Batch:
    """Rows of these lengths. The length input holds ordinary token ids, other inputs zeros."""
    if limits.length_input is None:
        return zeros_batch(limits, len(lengths), 1)
    rng = np.random.default_rng(seed)
    shapes = tuple((length,) for length in lengths)
    inputs = {}
    for spec in limits.inputs:
        if spec.name == limits.length_input:
            ids = rng.integers(*ORDINARY_TOKENS, size=sum(lengths), dtype=np.int64)
            inputs[spec.name] = Ragged("INT64", ids, shapes)
        elif spec.name not in limits.optional_inputs:
            inputs[spec.name] = Ragged("INT64", np.zeros(sum(lengths), np.int64), shapes)
    return Batch(len(lengths), np.array(lengths, np.int64), inputs)


def plain_batch(limits: Limits, lengths: Sequence[int]) -> Batch:
    """Rows of these lengths, all zeros, which every model can take."""
    if len(set(lengths)) == 1:
        return zeros_batch(limits, len(lengths), lengths[0])
    rows = [zeros_batch(limits, 1, length).inputs for length in lengths]
    joined = {name: Ragged.joined([row[name] for row in rows]) for name in rows[0]}
    return Batch(len(lengths), np.array(lengths, np.int64), joined)


def run_sorted(
    runtime: Runtime, batches: Sequence[Batch], seconds: float, putting: ThreadPoolExecutor
) -> LoopResult:
    """Run whole passes over all batches, at least one, until `seconds` have passed. `putting`: the
    thread that puts the next batch on the device while one runs."""
    start = time.perf_counter()
    passes, run = 0, partial(_run_beside, runtime, putting)
    padded, batch_s = list[int](), list[float]()
    while passes == 0 or time.perf_counter() - start < seconds:
        for at, batch in enumerate(batches):
            began = time.perf_counter()
            padded.append(run(batch, batches[(at + 1) % len(batches)]).padded_tokens)
            batch_s.append(time.perf_counter() - began)
        passes += 1
    return LoopResult(
        seconds=time.perf_counter() - start,
        passes=passes,
        batches=passes * len(batches),
        rows=passes * sum(batch.rows for batch in batches),
        tokens=passes * sum(int(batch.lengths.sum()) for batch in batches),
        padded_tokens=sum(padded),
        batch_s=tuple(batch_s),
    )


def _run_beside(
    runtime: Runtime, putting: ThreadPoolExecutor, batch: Batch, following: Batch
) -> Result:
    on_processors = runtime.limits().device == "cpu"
    if following is batch or not isinstance(runtime, Prefetching) or on_processors:
        return runtime.run(batch)
    put = putting.submit(runtime.prefetch, following)
    try:
        return runtime.run(batch)
    finally:
        put.result()


def run_alone(run: Run, rows: Sequence[Batch], seconds: float) -> tuple[float, ...]:
    """Seconds of each run. Runs whole passes over `rows`, at least one, until `seconds` have
    passed."""
    start, taken = time.perf_counter(), list[float]()
    while not taken or time.perf_counter() - start < seconds:
        for row in rows:
            began = time.perf_counter()
            run(row)
            taken.append(time.perf_counter() - began)
    return tuple(taken)


def loop(
    models: Sequence[RuntimeSettings], lengths: Sequence[int], seconds: float, rounds: int = 1
) -> Iterator[tuple[str, LoopResult]]:
    """Load and warm all models, run one uncounted pass of each, then measure them in turn. Yields
    name and result, `rounds` times for each model."""
    with ExitStack() as opened:
        putting = opened.enter_context(ThreadPoolExecutor(1, "putting"))
        ready = [(settings, _ready(settings, lengths, opened, putting)) for settings in models]
        for _ in range(rounds):
            for settings, (runtime, batches, rows) in ready:
                result = run_sorted(runtime, batches, seconds, putting)
                row_s = run_alone(runtime.run, rows, LONE_SHARE * seconds)
                yield settings.name, replace(result, row_s=row_s)


def _ready(
    settings: RuntimeSettings,
    lengths: Sequence[int],
    opened: ExitStack,
    putting: ThreadPoolExecutor,
) -> tuple[Runtime, list[Batch], list[Batch]]:
    runtime = catalog.create(settings)
    opened.callback(runtime.close)
    runtime.load()
    runtime.warm()
    limits, spread = runtime.limits(), max(1, len(lengths) // LONE_ROWS)
    groups = sorted_groups(lengths, settings.max_size, settings.max_tokens)
    batches = [batch_of(limits, group, seed) for seed, group in enumerate(groups)]
    rows = [batch_of(limits, (length,), length) for length in sorted(lengths)[::spread]]
    run_sorted(runtime, batches, 0.0, putting)
    run_alone(runtime.run, rows, 0.0)
    return runtime, batches, rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.tools.profile.backend_loop", description=__doc__
    )
    parser.add_argument("settings", type=Path)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--lengths", type=Path, required=True, help="one length a line")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args(argv)
    known = load(asked.settings).models
    lengths = [int(line) for line in asked.lengths.read_text().split()]
    backend_env.set_compiler_cache(cache_dir())
    models = [
        runtime_settings(name, known[name], cache_dir(), lambda phase, fraction: None)
        for name in asked.models
    ]
    for name, result in loop(models, lengths, asked.seconds, asked.rounds):
        print(json.dumps({"model": name, **result.record()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
