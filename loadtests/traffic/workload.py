"""How long are the requests of a workload, and when do they come?

Pure arithmetic on an injected generator: the ragged mix that every figure on ragged work uses,
lengths and bodies, arrivals whose rate changes, and how long a refused caller waits. Lengths are
tokens, times are seconds from the start. It sends nothing and reads no clock.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
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


def renewal_times(
    rates: Sequence[tuple[float, float]], seconds: float, rng: random.Random, cv: float = 1.0
) -> Iterator[float]:
    """Arrival times in [0, seconds) whose intervals are independent, with this coefficient of
    variation (1: Poisson), at rates that change: (from when on, arrivals a second), the first from
    0. A change stretches the interval it falls into, so that the rate is right at once."""
    shape = 1.0 / (cv * cv)
    at, piece = 0.0, 0
    left = rng.gammavariate(shape, 1.0 / shape)  # of the interval, in arrivals
    while piece < len(rates):
        rate = rates[piece][1]
        until = min(seconds, rates[piece + 1][0] if piece + 1 < len(rates) else seconds)
        if left < (until - at) * rate:
            at += left / rate
            yield at
            left = rng.gammavariate(shape, 1.0 / shape)
        else:
            left -= max(0.0, until - at) * rate
            at, piece = max(at, until), piece + 1


def changing_rates(
    rate: float,
    steps: Sequence[tuple[float, float]] = (),
    bursts: Iterable[tuple[float, float]] = (),
    factor: float = 1.0,
) -> list[tuple[float, float]]:
    """For `renewal_times`: `rate` from 0 on, other rates from moments on, all of them multiplied
    by `factor` during `bursts` (from, to)."""
    spans = list(bursts)
    moments = {0.0, *(at for at, _ in steps), *(at for span in spans for at in span)}
    base = [(0.0, rate), *steps]
    return [
        (at, [r for since, r in base if since <= at][-1] * (factor if _within(at, spans) else 1.0))
        for at in sorted(moments)
    ]


def _within(at: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(since <= at < until for since, until in spans)


def pause_s(
    attempt: int, backoff_s: float, most_s: float, least_s: float, rng: random.Random | None
) -> float:
    """How long a caller waits after its `attempt`th try failed: doubling, at most `most_s`, drawn
    between 0 and that where there is a generator (full jitter), and at least `least_s`, which is
    what the server asked for."""
    longest = min(most_s, backoff_s * 2.0 ** (attempt - 1))
    return max(least_s, longest if rng is None else rng.uniform(0.0, longest))


def infer_body(name: str, ids: Sequence[int]) -> bytes:
    """An Open Inference Protocol request of one row of INT64 ids."""
    tensor = {"name": name, "shape": [1, len(ids)], "datatype": "INT64", "data": list(ids)}
    return json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()


def token_ids(length: int, rng: random.Random, low: int = 1000, high: int = 29999) -> list[int]:
    """Ids of ordinary words in BERT's vocabulary, between its [CLS] (101) and [SEP] (102)."""
    if length < 2:
        return [101][:length]
    return [101, *rng.choices(range(low, high), k=length - 2), 102]
