"""Runs a scenario on a real server and in the simulator, with the same arrivals and lengths.

The real server gets rows of token ids, or English texts of as many tokens if the server tokenises.
No two rows are equal, so that no cache answers them. The simulator is `headrace simulate --json` in
a separate process.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtests.benches.server import Settings, command_line
from loadtests.client.http1 import Target
from loadtests.client.player import PlayedRequest, PlayerSettings, play
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.openai import Embeddings
from loadtests.client.protocols.types import Endpoint
from loadtests.traffic import scenario_file
from loadtests.traffic.plan import Planned, TrafficPlan
from loadtests.traffic.scenario import Scenario

SCENARIOS = Path("loadtests/scenarios")
MODEL = "device"


@dataclass(frozen=True, slots=True)
class BenchScenario:
    """A scenario and its server's settings. `changes`: to the scenario, as `dotted.path=value`."""

    path: Path
    changes: tuple[str, ...]
    scenario: Scenario
    settings: Settings

    @property
    def slo_s(self) -> float:
        found: float = self.settings["models"][MODEL]["slo"]["latency_ms"]
        return found / 1e3


def piece(name: str, changes: Sequence[str] = ()) -> BenchScenario:
    """Raises ScenarioErrors."""
    path = SCENARIOS / f"{name}.yaml"
    scenario = scenario_file.load(path, changes)
    settings = yaml.safe_load((SCENARIOS / (scenario.settings or "")).read_text())
    return BenchScenario(path, tuple(changes), scenario, settings)


def simulated(of: BenchScenario, changes: Sequence[str] = ()) -> dict[str, Any]:
    """The output of `headrace simulate --json`. Raises CalledProcessError."""
    settings = [part for each in (*of.changes, *changes) for part in ("--set", each)]
    command = [*command_line(), "simulate", str(of.path), "--json", *settings]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def played(
    of: BenchScenario, url: str, request: Callable[[str], Callable[[Planned], bytes]]
) -> tuple[list[PlayedRequest], float]:
    """The outcome of every attempt, and the client's CPU seconds."""
    ends: list[PlayedRequest] = []
    stand = PlayerSettings(Target.parse(url), request(url), connections=4096)
    cpu_s = play(TrafficPlan(of.scenario, of.path.parent), stand, ends.append)
    return ends, cpu_s


def measured(of: BenchScenario, ends: Sequence[PlayedRequest]) -> list[PlayedRequest]:
    """The requests that were due to be sent in the measured time."""
    begin_s, end_s = of.scenario.warmup_s, of.scenario.run_s
    return [end for end in ends if begin_s <= end.planned.at_s < end_s]


def ids_request(url: str) -> Callable[[Planned], bytes]:
    """Renders requests to `/v2/models/device/infer` with one row of ids."""
    return OpenInference(Endpoint(url, MODEL)).request


def texts_request(url: str) -> Callable[[Planned], bytes]:
    """Renders requests to `/v1/embeddings` with one text of as many tokens."""
    return Embeddings(Endpoint(url, MODEL)).request
