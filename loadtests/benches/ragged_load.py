"""Sends ragged requests of two tenants to a synthetic model; some of the requests misbehave.

The synthetic device takes time but no CPU. Requests are the ragged mix, alternately from two
tenants of different weights. Each answer is compared with its row's sum, so that an answer to
another row is detected. `capacity` measures what a closed loop gets; `RaggedCallers` is an open
loop with Poisson arrivals at a share of that, which reports each request that does not misbehave.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadtests.benches.request_log import LoggedRequest
from loadtests.benches.server import Settings
from loadtests.client.closed_loop import run
from loadtests.client.connection import ClientConnection
from loadtests.client.http1 import Response, Target, render
from loadtests.client.load import Call, Load
from loadtests.client.mischief import Mischief, malformed_requests
from loadtests.client.open_loop import OpenLoop
from loadtests.traffic.workload import infer_body, ragged_lengths, token_ids

MODEL = "ragged"
TENANTS = {"large": {"weight": 3}, "small": {"weight": 1}, "default": {"weight": 1}}
ASKING = ("large", "small")
MODEL_SETTINGS: Settings = {
    "runtime": "synthetic",
    "slo": {"latency_ms": 3000},
    "lengths": {"max": 512, "buckets": "auto"},
    "batch": {"max_size": 16, "max_tokens": 2048},
    "replicas": {"count": 2},
    "options": {"base_ms": 40, "per_request_ms": 2, "per_token_us": 300},
}
INPUT, ROWS, CLIENTS, LIMIT_S = "ids", 500, 256, 30.0
SATURATING = 64


class RaggedCallers(OpenLoop):
    """`sums`: the right answer to each call."""

    def __init__(
        self, load: Load, sums: Sequence[float], told: Callable[[LoggedRequest], object]
    ) -> None:
        super().__init__(load)
        self._sums, self._told = sums, told

    def answered(self, connection: ClientConnection, answer: Response) -> None:
        if connection not in self._conducts:
            why = why_not(answer, self._sums[connection.slot])
            refused = answer.status in (429, 503) and answer.retry_after_s > 0
            self._tell(connection, why, refused)
        super().answered(connection, answer)

    def broke(self, connection: ClientConnection, kind: str) -> None:
        if connection not in self._conducts and kind not in ("idle closed", "end"):
            self._tell(connection, kind)
        super().broke(connection, kind)

    def _tell(self, connection: ClientConnection, why: str, refused: bool = False) -> None:
        began_s = connection.sent_at
        self._told(LoggedRequest(MODEL, began_s, time.perf_counter(), why, refused))


def why_not(answer: Response, right: float) -> str:
    """What is wrong with an answer; "" if nothing is."""
    if answer.status != 200:
        return f"{answer.status} {answer.body[:200].decode('latin-1')}"
    try:
        said = json.loads(answer.body)["outputs"][0]["data"]
    except (ValueError, LookupError, TypeError):
        return f"wrong: {answer.body[:200].decode('latin-1')}"
    return "" if said == [right] else f"wrong: {said} for [{right}]"


def capacity(url: str, seconds: float) -> float:
    """Requests a second that are answered in a closed loop."""
    load = _load(url, _rows(), seconds=seconds, warmup_s=3.0)
    return run(replace(load, clients=SATURATING)).rate


def callers(
    url: str, rate: float, seconds: float, mischief: float, told: Callable[[LoggedRequest], object]
) -> RaggedCallers:
    """The callers; each request's outcome is given to `told`.

    `mischief`: the share of requests that misbehave, a third of them in each of three ways.
    """
    rows, share = _rows(), mischief / 3
    target = Target.parse(f"{url}/v2/models/{MODEL}/infer")
    malformed = malformed_requests(target, infer_body(INPUT, [101, 2023, 102]))
    bad = Mischief(share, share, share, malformed_requests=malformed)
    load = _load(url, rows, rate=rate, seconds=seconds, mischief=bad)
    return RaggedCallers(load, [float(sum(row)) for row in rows], told)


def _rows() -> list[list[int]]:
    rng = random.Random(0)
    return [token_ids(length, rng) for length in ragged_lengths(ROWS, rng)]


def _load(
    url: str, rows: Sequence[Sequence[int]], *, seconds: float, rate: float = 0.0,
    warmup_s: float = 0.0, mischief: Mischief | None = None,
) -> Load:  # fmt: skip
    target = Target.parse(f"{url}/v2/models/{MODEL}/infer")
    calls = tuple(
        Call(
            render(target, infer_body(INPUT, row), headers={"x-tenant": ASKING[n % len(ASKING)]}),
            len(row),
        )
        for n, row in enumerate(rows)
    )
    return Load(
        target, calls, clients=CLIENTS, seconds=seconds, warmup_s=warmup_s, rate=rate,
        timeout_s=LIMIT_S, mischief=mischief or Mischief(),
    )  # fmt: skip
