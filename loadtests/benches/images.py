"""Bench: how many images a second are served, and do large images delay callers of small ones?

`python -m loadtests.benches.images`: sends raw images to the digits example's `:classify`: its
held-out PNGs of 8 x 8, and JPEGs of 640 x 480, which must be decoded and resized. Then one client
sends small images, first alone and then beside a second client that sends one 20-megapixel JPEG
after another. The clients share the processors with the server.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from loadtests.benches.runner import (
    Bench,
    BenchRun,
    Column,
    Option,
    Options,
    Runs,
    median,
    table,
    total,
)
from loadtests.benches.server import HOME_DIR, changed, example, headrace
from loadtests.client.closed_loop import run
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load
from loadtests.client.tally import LoadResult
from loadtests.results.report_table import BenchVerdict, Table

PATH = "/v1/models/digits:classify"
LATENCY_MS = 5000.0  # this measures throughput, so no request may be late or refused


def jpeg(width: int, height: int) -> bytes:
    """A JPEG of smooth noise, which takes a decoder as long as a photograph."""
    coarse = np.random.default_rng(0).integers(0, 256, (height // 40, width // 40, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()


def pngs() -> list[bytes]:
    """The held-out digits, which the server wrote into its cache at its start."""
    made = HOME_DIR / "cache" / "headrace" / "made"
    newest = max(made.glob("digits-*"), key=lambda folder: folder.stat().st_mtime)
    return [file.read_bytes() for file in sorted(Path(newest, "held_out").glob("*.png"))]


def load(url: str, bodies: Sequence[bytes], kind: str, clients: int, seconds: float) -> LoadResult:
    target = Target.parse(url + PATH)
    headers = {"content-type": f"image/{kind}"}
    calls = tuple(Call(render(target, b, method="POST", headers=headers)) for b in bodies)
    return run(Load(target, calls, clients=clients, seconds=seconds, warmup_s=1.0))


def runs(options: Options) -> Iterator[BenchRun]:
    settings = changed(example("digits"), {"models.digits.slo.latency_ms": LATENCY_MS})
    with headrace(settings, name="images") as running:
        yield from measured(running.url, options.seconds)


def measured(url: str, seconds: float) -> Iterator[BenchRun]:
    small, photo, large = pngs(), [jpeg(640, 480)], [jpeg(5000, 4000)]
    yield BenchRun("PNG 8 x 8, 1 client", load(url, small, "png", 1, seconds))
    yield BenchRun("PNG 8 x 8, 64 clients", load(url, small, "png", 64, seconds))
    yield BenchRun("JPEG 640 x 480, 16 clients", load(url, photo, "jpeg", 16, seconds))
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(load, url, large, "jpeg", 1, seconds + 1)
        alone = load(url, small, "png", 1, seconds)
        yield BenchRun("PNG 8 x 8, 1 client, beside 20-megapixel JPEGs", alone)
        yield BenchRun("JPEG 5000 x 4000, 1 client", beside.result())


COLUMNS: tuple[Column, ...] = (
    ("images/s", median("rate")),
    ("p50 ms", median("p50_ms")),
    ("p99 ms", median("p99_ms")),
    ("errors", total("failed")),
)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    yield table("", COLUMNS, {each.side: Runs([each]) for each in done})


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    errors = done.total("failed")
    yield BenchVerdict("every image is answered", f"{errors} errors", errors == 0)


BENCH = Bench(
    name="images",
    about=__doc__,
    title="Images through HTTP, the digits example",
    options={"seconds": Option(8.0)},
    measure=runs,
    tables=tables,
    bars=bars,
    record=LoadResult.summary,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
