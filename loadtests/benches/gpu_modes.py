"""Bench: how fast is each mode of each backend on an NVIDIA GPU, on ragged work?

`python -m loadtests.benches.gpu_modes`: runs MiniLM, and BERTs of two published sizes with random
weights, in a loop over sorted batches of the ragged mix, then over single rows. One process has all
modes of a model loaded and runs them in turn. Tokens a second exclude padding, so a mode that pads
more must make up for that. Needs an NVIDIA GPU and a build of the backend for CUDA.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.benches.backend_loop import looped
from loadtests.benches.gpu_check import seen_gpus, versions
from loadtests.benches.random_bert import SIZES, random_bert
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
from loadtests.benches.server import HOME_DIR, Settings, changed, example
from loadtests.results.report_table import Table
from loadtests.traffic.workload import ragged_lengths

WARM_S = 5.0
MINILM = "minilm"
MODELS = (MINILM, *SIZES)


@dataclass(frozen=True, slots=True)
class GpuWay:
    runtime: str
    precision: str
    options: Mapping[str, Any]


def _torch(precision: str, **chosen: Any) -> GpuWay:
    return GpuWay("torch", precision, {"device": "cuda", **chosen})


WAYS: Mapping[str, GpuWay] = {
    "torch eager, not pinned": _torch("fp32", pinned=False),
    "torch eager": _torch("fp32"),
    "torch compile": _torch("fp32", mode="compile"),
    "torch cuda_graphs": _torch("fp32", mode="cuda_graphs"),
    "torch eager bf16": _torch("bf16"),
    "torch eager fp16, not pinned": _torch("fp16", pinned=False),
    "torch eager fp16": _torch("fp16"),
    "torch compile fp16": _torch("fp16", mode="compile"),
    "torch cuda_graphs fp16, not pinned": _torch("fp16", mode="cuda_graphs", pinned=False),
    "torch cuda_graphs fp16": _torch("fp16", mode="cuda_graphs"),
    "torch eager int8": _torch("int8"),
    "onnxruntime": GpuWay("onnxruntime", "fp32", {"device": "cuda"}),
    "onnxruntime fp16": GpuWay("onnxruntime", "fp16", {"device": "cuda"}),
}


def settings_of(model: str, ways: Mapping[str, GpuWay]) -> Settings:
    """Settings with a model for each mode, named by its position."""
    models = {}
    for at, way in enumerate(ways.values()):
        changes = {
            "models.minilm.runtime": way.runtime,
            "models.minilm.precision": way.precision,
            "models.minilm.options": {**way.options, "warm_s": WARM_S},
        }
        if model != MINILM:
            changes["models.minilm.source"] = str(random_bert(model, _folder(model)).absolute())
        models[f"way{at}"] = changed(example("minilm"), changes)["models"]["minilm"]
    return {"models": models}


def _folder(model: str) -> Path:
    return HOME_DIR / f"bert-{model}"


def rate(record: Mapping[str, float]) -> float:
    return record["tokens_per_s"]


def runs(options: Options) -> Iterator[BenchRun]:
    ways = {name: WAYS[name] for name in options.ways}
    names = dict(zip((f"way{at}" for at in range(len(ways))), ways, strict=True))
    lengths = ragged_lengths(options.rows, random.Random(0))
    for model in options.models:
        made = settings_of(model, ways)
        for record in looped(made, list(names), lengths, options.seconds, options.repeats):
            name = names[record.pop("model")]
            say(f"{model}, {name}: {rate(record):,.0f} tokens/s")
            yield BenchRun(name, record, model)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    def field(name: str) -> Any:
        return median(lambda record: record[name])

    columns: tuple[Column, ...] = (
        ("precision", lambda mine: WAYS[mine[0].side].precision),
        ("tokens/s", median(rate)),
        ("least–most", spread(rate)),
        ("padding", field("padding")),
        ("batch p50 ms", field("batch_p50_ms")),
        ("batch p99 ms", field("batch_p99_ms")),
        ("one row p50 ms", field("row_p50_ms")),
        ("one row p99 ms", field("row_p99_ms")),
    )
    for model in options.models:
        rows = {name: done.of(name, model) for name in WAYS}
        yield table(_caption(model), columns, {name: mine for name, mine in rows.items() if mine})


def _caption(model: str) -> str:
    return "MiniLM-L6" if model == MINILM else f"BERT of the size of {model}, random weights"


def notes(done: Runs, options: Options) -> Iterator[str]:
    for gpu in seen_gpus():
        yield ", ".join(gpu.values())
    found = versions(("torch", "onnxruntime", "onnxruntime-gpu"))
    yield ", ".join(f"{name} {version}" for name, version in found.items())
    yield "Sorted, full batches (32 rows or 8,192 tokens) in a loop, the next one put meanwhile."


BENCH = Bench(
    name="gpu_modes",
    about=__doc__,
    title="Ways to run a model on an NVIDIA GPU",
    options={
        "models": Option(list(MODELS), "some of: %(default)s", choices=MODELS),
        "ways": Option(list(WAYS), "some of: %(default)s", choices=WAYS),
        "rows": Option(400, "different rows (%(default)s)"),
        "seconds": Option(1.0, "of each turn (%(default)s)"),
        "repeats": Option(3),
    },
    measure=runs,
    tables=tables,
    notes=notes,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
