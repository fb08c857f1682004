"""Measures the tokens a second that a backend computes when nothing is in its way.

`python -m deployments.replica.backend_loop SETTINGS MODEL… --lengths FILE` loads a model exactly
as a replica would (same settings, threads, staged artifact), packs the rows of FILE (one length a
line, tokens) perfectly sorted into batches of `max_size` and `max_tokens`, and runs them in a loop.
That is the ceiling for everything that serves the same rows one by one. Several models take turns,
`--rounds` times, so that what slows the machine meets them all. Prints a line of JSON for each
model and round; no HTTP, no Ray.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deployments.replica import backend_env
from deployments.replica.describe import runtime_settings
from deployments.settings.load import load
from deployments.settings.made import cache_dir
from runtimes import catalog
from runtimes.types import Batch, Limits, Ragged, Runtime, RuntimeSettings
from runtimes.warmup import batch as zeros_batch

ORDINARY_TOKENS = (1000, 29_999)  # words of BERT's vocabulary; other models wrap to what they have


@dataclass(frozen=True, slots=True)
class LoopResult:
    """`tokens` are real ones, `padded_tokens` what the device saw, over `passes` of all rows."""

    seconds: float
    passes: int
    batches: int
    rows: int
    tokens: int
    padded_tokens: int

    def record(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "passes": self.passes,
            "batches": self.batches,
            "rows": self.rows,
            "tokens_per_s": self.tokens / self.seconds,
            "rows_per_s": self.rows / self.seconds,
            "padding": 1 - self.tokens / self.padded_tokens,
        }


def sorted_groups(
    lengths: Sequence[int], max_size: int, max_tokens: int
) -> Iterator[tuple[int, ...]]:
    """Rows by descending length, cut where `max_size` rows or `max_tokens` padded tokens are full;
    a row longer than `max_tokens` stands alone."""
    group: list[int] = []
    for length in sorted(lengths, reverse=True):
        if group and (len(group) == max_size or (len(group) + 1) * group[0] > max_tokens):
            yield tuple(group)
            group = []
        group.append(length)
    if group:
        yield tuple(group)


def batch_of(limits: Limits, lengths: Sequence[int], seed: int) -> Batch:
    """Rows of these lengths; the length input holds ordinary token ids, the rest zeros."""
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
    """Rows of these lengths; zeros, which every model can take."""
    if len(set(lengths)) == 1:
        return zeros_batch(limits, len(lengths), lengths[0])
    rows = [zeros_batch(limits, 1, length).inputs for length in lengths]
    joined = {
        name: Ragged(
            first.datatype,
            np.concatenate([row[name].data for row in rows]),
            tuple(shape for row in rows for shape in row[name].shapes),
        )
        for name, first in rows[0].items()
    }
    return Batch(len(lengths), np.array(lengths, np.int64), joined)


def run_sorted(runtime: Runtime, batches: Sequence[Batch], seconds: float) -> LoopResult:
    """Whole passes over all batches, at least one, until `seconds` have gone by."""
    start = time.perf_counter()
    passes = padded_tokens = 0
    while passes == 0 or time.perf_counter() - start < seconds:
        padded_tokens += sum(runtime.run(batch).padded_tokens for batch in batches)
        passes += 1
    return LoopResult(
        seconds=time.perf_counter() - start,
        passes=passes,
        batches=passes * len(batches),
        rows=passes * sum(batch.rows for batch in batches),
        tokens=passes * sum(int(batch.lengths.sum()) for batch in batches),
        padded_tokens=padded_tokens,
    )


def loop(
    models: Sequence[RuntimeSettings], lengths: Sequence[int], seconds: float, rounds: int = 1
) -> Iterator[tuple[str, LoopResult]]:
    """Loads and warms all, runs one pass of each uncounted, then counts in turn: name and result,
    `rounds` times each."""
    with ExitStack() as opened:
        ready = [(settings, _ready(settings, lengths, opened)) for settings in models]
        for _ in range(rounds):
            for settings, (runtime, batches) in ready:
                yield settings.name, run_sorted(runtime, batches, seconds)


def _ready(
    settings: RuntimeSettings, lengths: Sequence[int], opened: ExitStack
) -> tuple[Runtime, list[Batch]]:
    runtime = catalog.create(settings)
    opened.callback(runtime.close)
    runtime.load()
    runtime.warm()
    groups = sorted_groups(lengths, settings.max_size, settings.max_tokens)
    batches = [batch_of(runtime.limits(), group, seed) for seed, group in enumerate(groups)]
    run_sorted(runtime, batches, 0.0)
    return runtime, batches


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.replica.backend_loop", description=__doc__
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
