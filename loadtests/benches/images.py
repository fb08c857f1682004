"""How many images a second are answered, and what do large ones cost those who send small ones?

`python -m loadtests.benches.images`: the digits example through `:classify`, raw bodies: its own
held-out PNGs of 8 x 8, and JPEGs of 640 x 480 which cost decoding and resizing. Then small images
of one client alone, and beside another that sends a 20-megapixel JPEG after the other. The client
shares the processors with the server.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from loadtests.benches.server import HOME_DIR, changed, example, headrace
from loadtests.client.closed_loop import run
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load
from loadtests.client.tally import LoadResult
from loadtests.results.report_table import BenchReport, BenchVerdict, Table, publish

PATH = "/v1/models/digits:classify"
LATENCY_MS = 5000.0  # a measure of throughput: nobody is late, nothing is refused


def jpeg(width: int, height: int) -> bytes:
    """Smooth noise, as photographs are to a decoder."""
    coarse = np.random.default_rng(0).integers(0, 256, (height // 40, width // 40, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()


def pngs() -> list[bytes]:
    """The held-out digits that the server's start has left in its cache."""
    made = HOME_DIR / "cache" / "headrace" / "made"
    newest = max(made.glob("digits-*"), key=lambda folder: folder.stat().st_mtime)
    return [file.read_bytes() for file in sorted(Path(newest, "held_out").glob("*.png"))]


def load(url: str, bodies: Sequence[bytes], kind: str, clients: int, seconds: float) -> LoadResult:
    target = Target.parse(url + PATH)
    headers = {"content-type": f"image/{kind}"}
    calls = tuple(Call(render(target, b, method="POST", headers=headers)) for b in bodies)
    return run(Load(target, calls, clients=clients, seconds=seconds, warmup_s=1.0))


def measured(url: str, seconds: float) -> dict[str, LoadResult]:
    small, photo, large = pngs(), [jpeg(640, 480)], [jpeg(5000, 4000)]
    found = {
        "PNG 8 x 8, 1 client": load(url, small, "png", 1, seconds),
        "PNG 8 x 8, 64 clients": load(url, small, "png", 64, seconds),
        "JPEG 640 x 480, 16 clients": load(url, photo, "jpeg", 16, seconds),
    }
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(load, url, large, "jpeg", 1, seconds + 1)
        found["PNG 8 x 8, 1 client, beside 20-megapixel JPEGs"] = load(
            url, small, "png", 1, seconds
        )
        found["JPEG 5000 x 4000, 1 client"] = beside.result()
    return found


def report(found: dict[str, LoadResult]) -> BenchReport:
    rows = tuple(
        (name, each.rate, each.latency_ms(50), each.latency_ms(99), each.failed)
        for name, each in found.items()
    )
    errors = sum(each.failed for each in found.values())
    headers = ("", "images/s", "p50 ms", "p99 ms", "errors")
    return BenchReport(
        name="images",
        title="Images through HTTP, the digits example",
        tables=(Table("", headers, rows),),
        verdicts=(BenchVerdict("every image is answered", f"{errors} errors", errors == 0),),
        raw={name: each.summary() for name, each in found.items()},
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.benches.images", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args(argv)
    settings = changed(example("digits"), {"models.digits.slo.latency_ms": LATENCY_MS})
    with headrace(settings, name="images") as running:
        found = measured(running.url, asked.seconds)
    return publish(report(found), argv)


if __name__ == "__main__":
    sys.exit(main())
