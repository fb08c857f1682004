"""Bench: how much of a backend's speed on ragged work remains when it is served over HTTP?

`python -m loadtests.benches.ragged_embeddings`: measures MiniLM's tokens a second under the ragged
mix through `/v2/models/minilm/infer`, and in a loop that calls the same backend with the same
settings and with sorted, full batches (`python -m deployments.tools.profile.backend_loop`). The two
alternate. The client shares the processors with the server; the loop has all of them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

from loadtests.benches.backend_loop import looped
from loadtests.benches.minilm_load import minilm_load
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs, say
from loadtests.benches.server import Settings, changed, example, headrace
from loadtests.client.closed_loop import run
from loadtests.client.tally import LoadResult
from loadtests.results.report_table import BenchVerdict, Table, at_least, ratio
from loadtests.traffic.workload import ragged_lengths

MIN_SHARE = 0.8
# A CPU's time depends nearly only on tokens, so narrow buckets (little padding) beat full batches.
EDGES = (12, 16, 20, 24, 28, 32, 72, 80, 96, 112, 128, 320, 384, 448, 512)
LATENCY_MS = 5000.0  # this measures throughput, so no request may be late or refused
SERVED, LOOP = "served", "loop"


def settings_of(options: Options) -> Settings:
    changes: dict[str, Any] = {
        "models.minilm.runtime": options.runtime,
        "models.minilm.precision": options.precision,
        "models.minilm.lengths.buckets": list(EDGES),
        "models.minilm.slo.latency_ms": LATENCY_MS,
    }
    return changed(example("minilm"), changes)


def served(settings: Settings, lengths: list[int], options: Options) -> LoadResult:
    with headrace(settings, name="ragged") as running:
        for seconds in (options.warmup, options.seconds):
            load = minilm_load(
                running.url,
                lengths,
                clients=options.clients,
                seconds=seconds,
                binary=options.wire == "binary",
            )
            result = run(load)
    return result


def runs(options: Options) -> Iterator[BenchRun]:
    settings, lengths = settings_of(options), ragged_lengths(options.rows, random.Random(0))
    for repeat in range(options.repeats):
        through = served(settings, lengths, options)
        yield BenchRun(SERVED, through)
        (loop,) = looped(settings, ["minilm"], lengths, options.seconds)
        say(
            f"repeat {repeat + 1}: served {through.weight_rate:,.0f}, "
            f"loop {loop['tokens_per_s']:,.0f} tokens/s {through.errors or ''}"
        )
        yield BenchRun(LOOP, loop)


def loop_rate(record: dict[str, float]) -> float:
    return record["tokens_per_s"]


def tables(done: Runs, options: Options) -> Iterator[Table]:
    through, loop = done.of(SERVED), done.of(LOOP)
    rows = (
        (
            f"through HTTP ({options.wire}), {options.clients} clients",
            through.median("weight_rate"),
            through.spread("weight_rate"),
            through.median("rate"),
            through.median("p50_ms"),
            through.median("p99_ms"),
            through.total("failed"),
        ),
        (
            "in a loop, sorted batches",
            loop.median(loop_rate),
            loop.spread(loop_rate),
            loop.median(lambda record: record["rows_per_s"]),
            *(None, None, None),
        ),
    )
    headers = ("", "tokens/s", "least–most", "rows/s", "p50 ms", "p99 ms", "errors")
    yield Table("", headers, rows)


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    share = ratio(done.of(SERVED).median("weight_rate"), done.of(LOOP).median(loop_rate))
    claim = "through HTTP at least 80 % of sorted batches in a loop"
    yield at_least(claim, share, MIN_SHARE)


BENCH = Bench(
    name="ragged_embeddings",
    about=__doc__,
    title=lambda options: f"MiniLM under a ragged mix, {options.runtime} {options.precision}",
    options={
        "runtime": Option("openvino"),
        "precision": Option("bf16"),
        "wire": Option("binary", choices=("binary", "json")),
        "clients": Option(128),
        "rows": Option(2000, "different rows (%(default)s)"),
        "seconds": Option(10.0),
        "warmup": Option(3.0),
        "repeats": Option(3),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    record=lambda found: found.summary() if isinstance(found, LoadResult) else found,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
