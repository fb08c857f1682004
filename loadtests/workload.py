"""How long are the requests of a workload, and when do they come?

Pure arithmetic on an injected generator: the ragged mix that every figure on ragged work uses,
bodies made from lengths, and Poisson arrivals. Lengths are tokens, times are seconds from the
start. It sends nothing and reads no clock.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Band:
    """`share` of the requests are `low` to `high` tokens long, uniformly, both ends included."""

    share: float
    low: int
    high: int


RAGGED_MIX = (Band(0.70, 8, 32), Band(0.25, 64, 128), Band(0.05, 256, 512))


def ragged_lengths(count: int, rng: random.Random, bands: Sequence[Band] = RAGGED_MIX) -> list[int]:
    shares = [band.share for band in bands]
    chosen = rng.choices(bands, shares, k=count)
    return [rng.randint(band.low, band.high) for band in chosen]


def poisson_times(rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """Arrival times in [0, seconds) at `rate` a second."""
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


def infer_body(name: str, ids: Sequence[int]) -> bytes:
    """An Open Inference Protocol request of one row of INT64 ids."""
    tensor = {"name": name, "shape": [1, len(ids)], "datatype": "INT64", "data": list(ids)}
    return json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()


def token_ids(length: int, rng: random.Random, low: int = 1000, high: int = 29999) -> list[int]:
    """Ids of ordinary words in BERT's vocabulary, between its [CLS] (101) and [SEP] (102)."""
    if length < 2:
        return [101][:length]
    return [101, *rng.choices(range(low, high), k=length - 2), 102]
