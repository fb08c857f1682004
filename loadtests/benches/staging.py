"""Bench: how long does a base-size encoder take to load, cold and staged?

`python -m loadtests.benches.staging`: writes RoBERTa's base size in random weights (496 MB), and
loads it from an empty cache (cold: the export too), from the cache that this filled (staged), and
in four processes at once from an empty cache, of which one exports. What follows a process's
imports is measured, until it could answer.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Column,
    Options,
    Runs,
    median,
    spread,
)
from loadtests.results.report_table import BenchVerdict, at_most

HOME = Path("out/staging")
COLD, STAGED, FOUR = "cold", "staged", "four at once"
MAX_COLD_S, MAX_OVER_READING_S = 60.0, 1.0


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """`seconds`: from the first's begin until the last could answer. `reading`: s to read what is
    staged, from the page cache. `exports`: graphs that were written meanwhile."""

    seconds: float
    reading: float
    exports: int

    @property
    def over_reading(self) -> float:
        return self.seconds - self.reading


def base() -> Path:
    """RoBERTa's base size, in random weights."""
    folder = HOME / "base"
    if not (folder / "model.safetensors").is_file():
        import transformers

        config = transformers.RobertaConfig(vocab_size=50_265, max_position_embeddings=514)
        network: Any = transformers.RobertaModel(config, add_pooling_layer=False)
        network.eval().save_pretrained(folder)
    return folder


def loaded(runtime: str, cache_dir: Path) -> tuple[float, float]:
    """Loads it in this process; returns when that began and ended (time.time)."""
    from runtimes import catalog
    from runtimes.types import RuntimeSettings

    catalog.preload(runtime)
    begin = time.time()
    made = catalog.create(
        RuntimeSettings(
            name="base", runtime=runtime, source=base(), cache_dir=cache_dir, threads=1,
            max_length=128, edges=(32, 128), max_size=8,
        )
    )  # fmt: skip
    made.load()
    return begin, time.time()


def staged(runtime: str, cache_dir: Path, processes: int) -> StagedLoad:
    before = {path: path.stat().st_mtime for path in cache_dir.rglob("*.onnx")}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        ready = list(pool.map(loaded, [runtime] * processes, [cache_dir] * processes))
    graphs = {path: path.stat().st_mtime for path in cache_dir.rglob("*.onnx")}
    read = time.perf_counter()
    for path in cache_dir.rglob("*"):
        if path.is_file():
            path.read_bytes()
    reading = time.perf_counter() - read
    new = sum(before.get(path) != changed for path, changed in graphs.items())
    return StagedLoad(max(end for _, end in ready) - min(begin for begin, _ in ready), reading, new)


def staging(options: Options) -> Iterator[BenchRun]:
    base()
    for _ in range(options.repeats):
        for runtime in options.runtimes:
            for kind in (COLD, STAGED, FOUR):
                cache_dir = HOME / "cache"
                if kind != STAGED:
                    shutil.rmtree(cache_dir, ignore_errors=True)
                cache_dir.mkdir(exist_ok=True)
                yield BenchRun(kind, staged(runtime, cache_dir, 4 if kind == FOUR else 1), runtime)


COLUMNS: tuple[Column, ...] = (
    ("s", median("seconds")),
    ("least–most", spread("seconds")),
    ("s for reading what is staged", median("reading")),
    ("exports", median("exports")),
)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for runtime in options.runtimes:
        cold, second, four = (done.of(kind, runtime) for kind in (COLD, STAGED, FOUR))
        yield at_most(f"{runtime}: cold", cold.median("seconds"), MAX_COLD_S, " s")
        over = second.median("over_reading")
        yield at_most(f"{runtime}: staged, over reading the file", over, MAX_OVER_READING_S, " s")
        yield at_most(f"{runtime}: exports of four at once", four.median("exports"), 1)


BENCH = Bench(
    name="staging",
    about=__doc__,
    title="A base-size encoder's first and second start",
    options={
        "runtimes": BenchOption(["onnxruntime", "openvino"]),
        "repeats": BenchOption(3),
    },
    measure=staging,
    columns=COLUMNS,
    first="cache",
    thresholds=thresholds,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
