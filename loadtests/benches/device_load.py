"""Sends a load to the fake device, and measures one server under it.

A request has 24 INT64 ids as Open Inference JSON; every server gets the same bytes. A `DeviceTrial`
is one server at one number of clients: the load's result, CPU time by process role and, if the
server publishes it, time by stage. Each trial begins with a warm-up that is not counted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from loadtests.benches import metrics_page
from loadtests.benches.launched import RunningServer
from loadtests.benches.processes import cpu_between
from loadtests.client.closed_loop import run
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load
from loadtests.client.tally import LoadResult
from loadtests.traffic.workload import infer_body

ROW_LENGTH = 24
STAGES = "headrace_stage_seconds"


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """One measurement of one server."""

    system: str
    clients: int
    result: LoadResult
    cpu_us: dict[str, float]  # CPU time of a request by process role, the client's included
    stages_us: dict[str, tuple[float, float]]  # by stage: observations a request, mean of one

    @property
    def server_cpu_us(self) -> float:
        return sum(us for role, us in self.cpu_us.items() if role != "client")

    def record(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "clients": self.clients,
            **self.result.summary(),
            "cpu_us": self.cpu_us,
            "stages_us": self.stages_us,
        }


def device_load(url: str, clients: int, seconds: float, path: str = "") -> Load:
    target = Target.parse(url + (path or "/v2/models/device/infer"))
    rng = random.Random(24)
    bodies = [infer_body("ids", [rng.randrange(30_000) for _ in range(ROW_LENGTH)])]
    calls = tuple(Call(render(target, body)) for body in bodies)
    return Load(target, calls, clients=clients, seconds=seconds)


def measure(running: RunningServer, clients: int, seconds: float, warmup_s: float) -> DeviceTrial:
    run(device_load(running.url, clients, warmup_s))
    stages_before = stage_samples(running)
    before = running.usage()
    result = run(device_load(running.url, clients, seconds))
    spent = cpu_between(before, running.usage())
    answers = max(1, result.answers)
    cpu_us = {role: cpu_s / answers * 1e6 for role, cpu_s in spent.items() if cpu_s > 0}
    cpu_us["client"] = result.cpu_us
    means = metrics_page.mean_by_label(stages_before, stage_samples(running), STAGES, "stage")
    stages = {stage: (count / answers, mean * 1e6) for stage, (count, mean) in means.items()}
    return DeviceTrial(running.name, clients, result, cpu_us, stages)


def stage_samples(running: RunningServer) -> list[metrics_page.MetricSample]:
    """The server's metrics; empty for a server without `/metrics`."""
    try:
        return metrics_page.fetch(running.url)
    except (OSError, ValueError):
        return []
