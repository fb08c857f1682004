"""Bench: do served embeddings equal those of `transformers`, alone and in ragged batches?

`python -m loadtests.benches.answers --variants openvino:fp32 openvino:bf16`: sends 1,000 texts of 3
to 512 tokens to `/v1/embeddings`. Several clients send requests of 1 to 8 texts, so that batches
are ragged. The answers are compared with `transformers` in float32 (smallest and median cosine). A
part of the texts is then sent again, one text at a time, and compared with the answers from ragged
batches (largest absolute difference of a component). Exits with 1 if a promise does not hold.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from loadtests.benches.reference_embeddings import Vectors, model_folder, reference_embeddings
from loadtests.benches.runner import Bench, BenchRun, Column, Option, Options, Runs, table
from loadtests.benches.server import Settings, changed, example, headrace
from loadtests.results.report_table import BenchVerdict, Table
from loadtests.traffic.texts import spread_lengths, texts

MIN_COSINE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999}
MAX_DIFFERENCE = 1e-5
GROUPS = (1, 3, 8, 2, 5)


@dataclass(frozen=True, slots=True)
class Variant:
    runtime: str
    precision: str

    @classmethod
    def parse(cls, text: str) -> Variant:
        runtime, _, precision = text.partition(":")
        return cls(runtime, precision or "fp32")

    def settings(self) -> Settings:
        """Settings with a long SLO: this bench is about answers, so no request may be late."""
        changes: dict[str, Any] = {
            "models.minilm.runtime": self.runtime,
            "models.minilm.precision": self.precision,
            "models.minilm.slo.latency_ms": 60_000,
        }
        return changed(example("minilm"), changes)

    def __str__(self) -> str:
        return f"{self.runtime} {self.precision}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well a variant's embeddings agree."""

    cosines: Vectors  # with the reference, one for each text
    difference: float  # the largest, between texts sent alone and in ragged batches


def cosines(served: Vectors, reference: Vectors) -> Vectors:
    """A cosine for each row. Computed in float64, since a float32 dot product errs by 1e-7."""
    left, right = served.astype(np.float64), reference.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / norms)


def agreement(variant: Variant, written: list[str], reference: Vectors, alone: int) -> Agreement:
    with (
        headrace(variant.settings(), name=f"answers-{variant.runtime}") as running,
        httpx.Client(base_url=running.url, timeout=120.0) as client,
    ):
        ragged = embed_in_groups(client, written, GROUPS, threads=6)
        singly = embed_in_groups(client, written[:alone], (1,), threads=1)
    difference = float(np.abs(ragged[:alone] - singly).max()) if alone else 0.0
    return Agreement(cosines(ragged, reference), difference)


def embed(client: httpx.Client, texts: Sequence[str]) -> Vectors:
    """Embeddings as float32 [texts, width], in the texts' order.

    Asks for base64, so that every bit of a float arrives. Raises RuntimeError if the status is not
    200 or a row is missing.
    """
    body = {"model": "minilm", "input": list(texts), "encoding_format": "base64"}
    answer = client.post("/v1/embeddings", json=body)
    if answer.status_code != 200:
        raise RuntimeError(f"status {answer.status_code}: {answer.text[:500]}")
    data = sorted(answer.json()["data"], key=lambda item: item["index"])
    if len(data) != len(texts):
        raise RuntimeError(f"{len(data)} embeddings for {len(texts)} texts")
    return np.stack([np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in data])


def embed_in_groups(
    client: httpx.Client, texts: Sequence[str], sizes: Sequence[int], threads: int
) -> Vectors:
    """Embeddings of all texts, in their order. Texts are sent in groups of `sizes` (cycled), as
    many groups at once as there are threads."""
    groups: list[Sequence[str]] = []
    start = 0
    while start < len(texts):
        size = sizes[len(groups) % len(sizes)]
        groups.append(texts[start : start + size])
        start += size
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(lambda group: embed(client, group), groups)))


def runs(options: Options) -> Iterator[BenchRun]:
    rng = random.Random(options.seed)
    written = texts(spread_lengths(options.texts, rng), rng)
    reference, lengths = reference_embeddings(written, model_folder())
    for variant in options.variants:
        found = agreement(variant, written, reference, options.alone)
        yield BenchRun(str(variant), found, (variant.precision, min(lengths), max(lengths)))


def tables(done: Runs, options: Options) -> Iterator[Table]:
    alone = min(options.alone, options.texts)
    columns: tuple[Column, ...] = (
        ("least cosine", lambda mine: f"{float(mine.results[0].cosines.min()):.7f}"),
        ("median cosine", lambda mine: f"{float(np.median(mine.results[0].cosines)):.7f}"),
        (f"alone vs ragged ({alone} texts)", lambda mine: f"{mine.results[0].difference:.2g}"),
    )
    _, shortest, longest = done[0].case
    caption = f"{options.texts} texts, {shortest} to {longest} tokens"
    yield table(caption, columns, {each.side: Runs([each]) for each in done}, "backend")


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for each in done:
        precision, *_ = each.case
        least, measured = MIN_COSINE[precision], float(each.result.cosines.min())
        claim = f"{each.side}: cosine at least {least}"
        yield BenchVerdict(claim, f"{measured:.7f}", measured >= least)
        if precision == "fp32":
            difference = each.result.difference
            claim = f"{each.side}: alone and ragged differ by at most {MAX_DIFFERENCE:g}"
            yield BenchVerdict(claim, f"{difference:.2g}", difference <= MAX_DIFFERENCE)


BENCH = Bench(
    name="answers",
    about=__doc__,
    title="Answers against the reference",
    options={
        "variants": Option(
            [Variant("openvino", "fp32"), Variant("openvino", "bf16")],
            parse=Variant.parse,
            metavar="RUNTIME:PRECISION",
        ),
        "texts": Option(1000),
        "alone": Option(200, "of which asked for alone too"),
        "seed": Option(0),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    record=lambda found: found.cosines.tolist(),
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
