"""Bench: how long does a base-size encoder take to load, cold and staged?

`python -m tests.runtimes.benches.staging`: writes RoBERTa's base size in random weights (496 MB),
and loads it from an empty cache (cold: the export too), from the cache that this filled (staged),
and in four processes at once from an empty cache, of which one must stage for all (the export, and
what the runtime makes of it). What follows a process's imports is measured, until it could answer.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

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
from runtimes import catalog, staging
from runtimes.types import RuntimeSettings

HOME = Path("out/staging")
COLD, STAGED, FOUR = "cold", "staged", "four at once"
MAX_COLD_S, MAX_OVER_READING_S = 60.0, 1.0


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """`seconds`: from the first's begin until the last could answer. `reading`: s to read the
    folder's weights, from the page cache. `builds`: artifacts that were built meanwhile."""

    seconds: float
    reading: float
    builds: int

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


def loaded(runtime: str, cache_dir: Path) -> tuple[float, float, int]:
    """Loads it in this process; returns when that began and ended, and what this process built."""
    catalog.preload(runtime)
    once, builds = staging.staged, list[Path]()

    def counting(cache: Path, parts: Sequence[str], build: Callable[[Path], None]) -> Path:
        def counted(folder: Path) -> None:
            builds.append(folder)
            build(folder)

        return once(cache, parts, counted)

    with mock.patch.object(staging, "staged", counting):
        begin = time.monotonic()
        made = catalog.create(
            RuntimeSettings(
                name="base", runtime=runtime, source=base(), cache_dir=cache_dir, threads=1,
                max_length=128, edges=(32, 128), max_size=8,
            )
        )  # fmt: skip
        made.load()
        return begin, time.monotonic(), len(builds)


def started(runtime: str, cache_dir: Path, processes: int) -> StagedLoad:
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        found = list(pool.map(loaded, [runtime] * processes, [cache_dir] * processes))
    read = time.perf_counter()
    (base() / "model.safetensors").read_bytes()
    reading = time.perf_counter() - read
    begins, ends, builds = zip(*found, strict=True)
    return StagedLoad(max(ends) - min(begins), reading, sum(builds))


def runs(options: Options) -> Iterator[BenchRun]:
    base()
    for _ in range(options.repeats):
        for runtime in options.runtimes:
            for kind in (COLD, STAGED, FOUR):
                cache_dir = HOME / "cache"
                if kind != STAGED:
                    shutil.rmtree(cache_dir, ignore_errors=True)
                cache_dir.mkdir(exist_ok=True)
                yield BenchRun(kind, started(runtime, cache_dir, 4 if kind == FOUR else 1), runtime)


COLUMNS: tuple[Column, ...] = (
    ("s", median("seconds")),
    ("least–most", spread("seconds")),
    ("s for reading the weights", median("reading")),
    ("artifacts built", median("builds")),
)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for runtime in options.runtimes:
        cold, second, four = (done.of(kind, runtime) for kind in (COLD, STAGED, FOUR))
        yield at_most(f"{runtime}: cold", cold.median("seconds"), MAX_COLD_S, " s")
        over = second.median("over_reading")
        yield at_most(f"{runtime}: staged, over reading the file", over, MAX_OVER_READING_S, " s")
        yield at_most(
            f"{runtime}: artifacts that four at once build",
            four.median("builds"),
            cold.median("builds"),
        )


BENCH = Bench(
    name="staging",
    about=__doc__,
    title="A base-size encoder's first and second start",
    options={
        "runtimes": BenchOption(["onnxruntime", "openvino"]),
        "repeats": BenchOption(3),
    },
    measure=runs,
    columns=COLUMNS,
    first="cache",
    thresholds=thresholds,
    record=asdict,
    package="tests.runtimes.benches",
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
