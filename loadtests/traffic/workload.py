"""A workload: the lengths of its requests, and when they come.

Pure arithmetic on an injected generator: the ragged mix that every figure on ragged work uses,
lengths and bodies, arrivals whose rate changes, and how long a refused caller waits. Lengths are
tokens, times are seconds from the start. It sends nothing and reads no clock.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gamma, sqrt

RAMP_STEPS = 100
HEADER_LENGTH = "inference-header-content-length"


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
    rates: Sequence[tuple[float, float]], seconds: float, interval: Callable[[], float]
) -> Iterator[float]:
    """Arrival times in [0, seconds) whose intervals are independent draws of `interval`, whose mean
    is 1, at rates that change: (from when on, arrivals a second), the first from 0. A change
    stretches the interval it falls into, so that the rate is right at once."""
    at, piece = 0.0, 0
    left = interval()  # of the interval, in arrivals
    while piece < len(rates):
        rate = rates[piece][1]
        until = min(seconds, rates[piece + 1][0] if piece + 1 < len(rates) else seconds)
        if left < (until - at) * rate:
            at += left / rate
            yield at
            left = interval()
        else:
            left -= max(0.0, until - at) * rate
            at, piece = max(at, until), piece + 1


def intervals(process: str, cv: float, rng: random.Random) -> Callable[[], float]:
    """Draws an interval of mean 1 of a process; `cv`: its coefficient of variation where the
    process (`gamma`, `weibull`) leaves that open."""
    if process == "constant":
        return lambda: 1.0
    if process == "weibull":
        shape = weibull_shape(cv)
        scale = 1.0 / gamma(1.0 + 1.0 / shape)
        return lambda: rng.weibullvariate(scale, shape)
    shape = 1.0 / (cv * cv) if process == "gamma" else 1.0
    return lambda: rng.gammavariate(shape, 1.0 / shape)


def weibull_shape(cv: float) -> float:
    """The shape whose coefficient of variation that is; it falls as the shape grows."""

    def cv_of(shape: float) -> float:
        return sqrt(gamma(1.0 + 2.0 / shape) / gamma(1.0 + 1.0 / shape) ** 2 - 1.0)

    low, high = 0.05, 200.0
    for _ in range(60):
        middle = sqrt(low * high)
        low, high = (middle, high) if cv_of(middle) > cv else (low, middle)
    return low


def changing_rates(
    steps: Sequence[tuple[float, float, float]],
    bursts: Iterable[tuple[float, float]] = (),
    factor: float = 1.0,
) -> list[tuple[float, float]]:
    """For `renewal_times`: rates as (from when on, requests a second, how long it takes to get
    there), the first from 0, all of them multiplied by `factor` during `bursts` (from, to)."""
    spans = list(bursts)
    base = [piece for before, step in pairwise(steps) for piece in ramp(before[1], *step)]
    base = [(steps[0][0], steps[0][1]), *base]
    moments = {*(at for at, _ in base), *(at for span in spans for at in span)}
    return [
        (at, [r for since, r in base if since <= at][-1] * (factor if _within(at, spans) else 1.0))
        for at in sorted(moments)
    ]


def ramp(old: float, from_s: float, new: float, last_s: float) -> Iterator[tuple[float, float]]:
    """The way from one rate to another in steps, each the mean rate of its time, so that as many
    come as on a straight line."""
    count = RAMP_STEPS if last_s else 0
    for n in range(count):
        yield from_s + last_s * n / count, old + (new - old) * (n + 0.5) / count
    yield from_s + last_s, new


def _within(at: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(since <= at < until for since, until in spans)


def pause_s(
    attempt: int, backoff_s: float, max_s: float, min_s: float, rng: random.Random | None
) -> float:
    """How long a caller waits after its `attempt`th try failed: what the server asked for
    (`min_s`), and then a pause that doubles, at most `max_s`, drawn between 0 and that where
    there is a generator (full jitter), so that who was refused together does not come again so."""
    longest = min(max_s, backoff_s * 2.0 ** (attempt - 1))
    return min_s + (longest if rng is None else rng.uniform(0.0, longest))


def infer_body(name: str, ids: Sequence[int]) -> bytes:
    """An Open Inference Protocol request of one row of INT64 ids."""
    tensor = {"name": name, "shape": [1, len(ids)], "datatype": "INT64", "data": list(ids)}
    return json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()


def binary_infer(name: str, ids: Sequence[int]) -> tuple[bytes, dict[str, str]]:
    """The same with the row as raw bytes after a JSON header, and the headers that belong to it.

    Costs a server far less than JSON numbers, so that a figure shows batching rather than number
    formatting. Source: Open Inference Protocol, binary tensor data extension.
    """
    data = struct.pack(f"<{len(ids)}q", *ids)
    tensor = {
        "name": name,
        "shape": [1, len(ids)],
        "datatype": "INT64",
        "parameters": {"binary_data_size": len(data)},
    }
    request = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(request, separators=(",", ":")).encode()
    headers = {HEADER_LENGTH: str(len(head)), "content-type": "application/octet-stream"}
    return head + data, headers


def token_ids(length: int, rng: random.Random, low: int = 1000, high: int = 29999) -> list[int]:
    """Ids of ordinary words in BERT's vocabulary, between its [CLS] (101) and [SEP] (102)."""
    if length < 2:
        return [101][:length]
    return [101, *rng.choices(range(low, high), k=length - 2), 102]
