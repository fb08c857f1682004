"""Are the embeddings served the embeddings of the reference, alone and in ragged batches?

`python -m loadtests.benches.answers --variants openvino:fp32 openvino:bf16`: 1,000 texts of 3 to
512 tokens through `/v1/embeddings`, in requests of 1 to 8 texts from several clients so that
batches are ragged, against `transformers` in float32 (cosine, least and median). A part of them is
asked for once more, alone, and compared with what the ragged batches gave (largest absolute
difference of a component). Exits 1 when a promise does not hold.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtests.benches.embeddings_client import EmbeddingsClient, Vectors, embed_in_groups
from loadtests.benches.reference_embeddings import model_folder, reference_embeddings
from loadtests.benches.server import Settings, changed, example, headrace
from loadtests.results.report_table import (
    BenchReport,
    BenchVerdict,
    Table,
    at_least,
    at_most,
    publish,
)
from loadtests.traffic.texts import spread_lengths, texts

LEAST_COSINE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999}
MOST_DIFFERENCE = 1e-5
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
        """Patient: this bench is about answers, so nothing may be late."""
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
    """`cosines`: [texts] against the reference. `difference`: alone against ragged, largest."""

    variant: Variant
    cosines: Vectors
    difference: float


def cosines(served: Vectors, reference: Vectors) -> Vectors:
    """Row by row, in float64: a float32 dot product is itself off by 1e-7."""
    left, right = served.astype(np.float64), reference.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / norms)


def agreement(variant: Variant, asked: list[str], reference: Vectors, alone: int) -> Agreement:
    with headrace(variant.settings(), name=f"answers-{variant.runtime}") as running:
        client = EmbeddingsClient(running.url, "minilm")
        ragged = embed_in_groups(client, asked, GROUPS, threads=6)
        singly = embed_in_groups(client, asked[:alone], (1,), threads=1)
    difference = float(np.abs(ragged[:alone] - singly).max()) if alone else 0.0
    return Agreement(variant, cosines(ragged, reference), difference)


def verdicts(found: Agreement) -> list[BenchVerdict]:
    precision = found.variant.precision
    least = LEAST_COSINE[precision]
    measured = float(found.cosines.min())
    claim = f"{found.variant}: cosine at least {least}"
    made = [BenchVerdict(claim, f"{measured:.7f}", at_least(claim, measured, least).held)]
    if precision == "fp32":
        claim = f"{found.variant}: alone and ragged differ by at most {MOST_DIFFERENCE:g}"
        held = at_most(claim, found.difference, MOST_DIFFERENCE).held
        made.append(BenchVerdict(claim, f"{found.difference:.2g}", held))
    return made


def report(found: list[Agreement], lengths: list[int], alone: int) -> BenchReport:
    rows = tuple(
        (
            str(each.variant),
            f"{float(each.cosines.min()):.7f}",
            f"{float(np.median(each.cosines)):.7f}",
            f"{each.difference:.2g}",
        )
        for each in found
    )
    headers = ("backend", "least cosine", "median cosine", f"alone vs ragged ({alone} texts)")
    return BenchReport(
        name="answers",
        title="Answers against the reference",
        tables=(
            Table(f"{len(lengths)} texts, {min(lengths)} to {max(lengths)} tokens", headers, rows),
        ),
        verdicts=tuple(verdict for each in found for verdict in verdicts(each)),
        raw={"lengths": lengths, "cosines": {str(e.variant): e.cosines.tolist() for e in found}},
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.answers", description=__doc__
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        type=Variant.parse,
        default=[Variant("openvino", "fp32"), Variant("openvino", "bf16")],
        metavar="RUNTIME:PRECISION",
    )
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--alone", type=int, default=200, help="of which asked for alone too")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    rng = random.Random(asked.seed)
    written = texts(spread_lengths(asked.texts, rng), rng)
    reference, lengths = reference_embeddings(written, model_folder())
    found = [agreement(v, written, reference, asked.alone) for v in asked.variants]
    return publish(report(found, lengths, min(asked.alone, asked.texts)), argv)


if __name__ == "__main__":
    sys.exit(main())
