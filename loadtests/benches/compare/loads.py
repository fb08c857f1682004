"""Sends one load to a server and evaluates the answers.

A load is Poisson arrivals of the ragged mix at a rate (open loop), or a victim tenant that sends
the mix beside a noisy neighbour that floods with long rows. Callers give a request up after 1 s.
Latencies count from when a request was due to be sent, over all offered requests: one without an
answer counts with the second that its caller waited.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.benches.compare.systems import Server, System
from loadtests.benches.compare.works import EDGES, Workload
from loadtests.benches.processes import cpu_between
from loadtests.client.http1 import Target, render
from loadtests.client.player import PlayedRequest, PlayerSettings, play
from loadtests.traffic.plan import Planned, TrafficPlan
from loadtests.traffic.scenario import Scenario
from loadtests.traffic.workload import RAGGED_MIX

WARMUP_S = 1.0
TIMEOUT_S = 1.0
CONNECTIONS = 4096
VICTIM, NOISY = "victim", "noisy"
BANDS = [{"share": b.share, "low": b.low, "high": b.high} for b in RAGGED_MIX]
LONG = {"bands": [{"share": 1.0, "low": RAGGED_MIX[-1].low, "high": RAGGED_MIX[-1].high}]}


@dataclass(frozen=True, slots=True)
class LoadTrial:
    """The result of one load."""

    rate: float
    seconds: float
    offered: int
    in_time: int
    p50_ms: float
    p99_ms: float
    by_length: dict[str, tuple[int, int]]  # by a bucket's longest length: offered, in time
    statuses: dict[str, int]
    lag_p99_ms: float  # how late this client sent
    cpu_ms: float  # CPU time of the server's processes for each request that was sent

    @property
    def share(self) -> float:
        return self.in_time / self.offered if self.offered else 1.0

    @property
    def in_time_per_s(self) -> float:
        return self.in_time / self.seconds


def mix(rate: float, seconds: float, seed: int) -> Scenario:
    return scenario(seconds, seed, {"default": {"arrivals": {"rate": rate}}})


def noisy(rate: float, flood: float, seconds: float, seed: int) -> Scenario:
    tenants = {
        VICTIM: {"arrivals": {"rate": rate}},
        NOISY: {"arrivals": {"rate": flood}, "lengths": LONG},
    }
    return scenario(seconds, seed, tenants)


def scenario(seconds: float, seed: int, tenants: dict[str, Any]) -> Scenario:
    return Scenario.model_validate(
        {
            "settings": "unused",
            "seed": seed,
            "duration_s": seconds,
            "warmup_s": WARMUP_S,
            "lengths": {"bands": BANDS},
            "tenants": tenants,
        }
    )


def played(server: Server, of: Scenario, tenant: str = "") -> LoadTrial:
    """Runs a scenario. The result is about all requests, or about those of `tenant`."""
    assert server.running is not None, "entered"
    ends: list[PlayedRequest] = []
    render_one = renderer(server.system, server.work, server.url)
    stand = PlayerSettings(
        Target.parse(server.url), render_one, connections=CONNECTIONS, timeout_s=TIMEOUT_S
    )
    before = server.running.usage()
    play(TrafficPlan(of, Path()), stand, ends.append)
    spent = cpu_between(before, server.running.usage())
    cpu_ms = sum(spent.values()) * 1e3 / max(1, len(ends))
    counted = [end for end in ends if of.warmup_s <= end.planned.at_s < of.run_s]
    mine = [end for end in counted if tenant in ("", end.planned.tenant)]
    return trial_of(mine, of.duration_s, server.work.slo_s, cpu_ms)


def trial_of(
    ends: Sequence[PlayedRequest], seconds: float, slo_s: float, cpu_ms: float
) -> LoadTrial:
    latencies_ms = [end.latency_s * 1e3 if end.ok else TIMEOUT_S * 1e3 for end in ends]
    lags_ms = [(end.left_s - end.planned.at_s) * 1e3 for end in ends]
    offered, kept = Counter[int](), Counter[int]()
    for end in ends:
        edge = next(edge for edge in EDGES if end.planned.lengths[0] <= edge)
        offered[edge] += 1
        kept[edge] += end.ok and end.latency_s <= slo_s
    return LoadTrial(
        rate=len(ends) / seconds,
        seconds=seconds,
        offered=len(ends),
        in_time=sum(kept.values()),
        p50_ms=percentile(latencies_ms, 50),
        p99_ms=percentile(latencies_ms, 99),
        by_length={str(edge): (offered[edge], kept[edge]) for edge in EDGES},
        statuses=dict(sorted(Counter(str(end.status or end.trouble) for end in ends).items())),
        lag_p99_ms=percentile(lags_ms, 99),
        cpu_ms=cpu_ms,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def renderer(system: System, work: Workload, url: str) -> Callable[[Planned], bytes]:
    """Renders requests: the same ids for each length, but always another text, so that no cache of
    texts answers."""
    target, rng, adapter = Target.parse(url), random.Random(24), system.adapter
    bodies: dict[int, bytes] = {}

    def body_of(length: int) -> bytes:
        if not work.fixed_items:
            return adapter.encode(work.item(length, rng))
        if length not in bodies:
            bodies[length] = adapter.encode(work.item(length, rng))
        return bodies[length]

    def request(planned: Planned) -> bytes:
        named = system.knows_tenants and planned.tenant != "default"
        headers = {"x-tenant": planned.tenant} if named else None
        return render(target, body_of(planned.lengths[0]), headers=headers)

    return request
