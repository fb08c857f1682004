"""Plays a scenario to a server under test, and says what came of it.

Only tries that were due in the measured time count. Latencies count from when a request was due to
be sent, those of refusals from when it was sent, since the client's delay is not the server's
fault. The client shares the machine; how late it sent is its lag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from loadtests.benches.server import RunningServer, Settings, cpu_between
from loadtests.client.player import PlayedRequest, PlayerSettings, play
from loadtests.client.protocols.types import Wire
from loadtests.traffic import scenario_file
from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario import Scenario

SCENARIOS = Path("loadtests/scenarios")
MODEL = "device"
CONNECTIONS = 4096


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a scenario's tries. `cpu_s`, `whole_s` and `tries` are those of the whole run,
    the warm-up included."""

    ends: Sequence[PlayedRequest]
    seconds: float
    slo_s: float
    cpu_s: Mapping[str, float] = field(default_factory=dict)  # by role, the client's included
    whole_s: float = 1.0
    tries: int = 1

    def kept(self, end: PlayedRequest) -> bool:
        return end.ok and end.latency_s <= self.slo_s

    @property
    def in_time(self) -> int:
        return sum(map(self.kept, self.ends))

    @property
    def in_time_per_s(self) -> float:
        return self.in_time / self.seconds

    @property
    def offered_per_s(self) -> float:
        return len(self.ends) / self.seconds

    @property
    def statuses(self) -> dict[str, int]:
        return dict(sorted(Counter(str(e.status or e.trouble) for e in self.ends).items()))

    def cores(self, role: str) -> float:
        return self.cpu_s.get(role, 0.0) / self.whole_s

    def latency_ms(self, percent: float) -> float:
        """Of answered requests."""
        return percentile([end.latency_s * 1e3 for end in self.ends if end.ok], percent)

    def refusal_ms(self, status: int, percent: float) -> float:
        return percentile([e.answer_s * 1e3 for e in self.ends if e.status == status], percent)

    def lag_ms(self, percent: float) -> float:
        return percentile([(e.left_s - e.planned.at_s) * 1e3 for e in self.ends], percent)

    def by_second(self, from_s: float, seconds: int) -> list[tuple[int, int]]:
        """For each second from `from_s` on: requests that were due in it, and those in time."""
        due = [(int(end.planned.at_s - from_s), end) for end in self.ends]
        offered = Counter(at for at, end in due if end.planned.at_s >= from_s)
        kept = Counter(at for at, end in due if end.planned.at_s >= from_s and self.kept(end))
        return [(offered[at], kept[at]) for at in range(seconds)]


def percentile(values: Sequence[float], percent: float) -> float:
    """NaN of nothing."""
    return float(np.percentile(values, percent)) if len(values) else float("nan")


def counted(scenario: Scenario, ends: Iterable[PlayedRequest]) -> list[PlayedRequest]:
    """The tries that were due in the measured time."""
    return [end for end in ends if scenario.warmup_s <= end.planned.at_s < scenario.run_s]


def speaking(wire: Wire) -> PlayerSettings:
    """How a scenario is played by a protocol."""
    return PlayerSettings(wire.place.target, wire.request, wire.listener, connections=CONNECTIONS)


def played(
    running: RunningServer,
    scenario: Scenario,
    stand: PlayerSettings,
    slo_s: float,
    folder: Path = SCENARIOS,
) -> Played:
    ends: list[PlayedRequest] = []
    before = running.usage()
    client_s = play(TrafficPlan(scenario, folder), stand, ends.append)
    spent = cpu_between(before, running.usage()) | {"client": client_s}
    whole_s = max((end.ended_s for end in ends), default=scenario.run_s)
    mine = counted(scenario, ends)
    return Played(mine, scenario.duration_s, slo_s, spent, whole_s, max(1, len(ends)))


# ---- scenarios that ship -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BenchScenario:
    """A scenario and its server's settings. `changes`: to the scenario, as `dotted.path=value`."""

    path: Path
    changes: tuple[str, ...]
    scenario: Scenario
    settings: Settings

    @property
    def slo_s(self) -> float:
        latency_ms: float = self.settings["models"][MODEL]["slo"]["latency_ms"]
        return latency_ms / 1e3


def shipped(name: str, changes: Sequence[str] = ()) -> BenchScenario:
    """Raises ScenarioErrors."""
    path = SCENARIOS / f"{name}.yaml"
    scenario = scenario_file.load(path, changes)
    settings = yaml.safe_load((SCENARIOS / (scenario.settings or "")).read_text())
    return BenchScenario(path, tuple(changes), scenario, settings)
