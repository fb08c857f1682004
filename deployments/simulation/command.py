"""`headrace simulate`: read scenario and settings, run them on virtual time, say what came of it.

Nothing is served and nothing loaded: a minute of traffic takes seconds. The outcome hangs on the
files and the seed alone, not on this machine or its clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from deployments.console.simulated import Advance, show
from deployments.settings import Settings, dump, load, parse
from deployments.simulation.devices import check_places, devices
from deployments.simulation.scene import Callers, Watcher
from deployments.simulation.stage import Stage, StageError, set_up
from loadtests import scenario_file
from loadtests.plan import Plan
from loadtests.scenario import Scenario
from loadtests.scenario_file import ScenarioErrors
from loadtests.summary import Summary
from routers.dispatcher import Dispatcher
from routers.simulated_fifo import Fifo
from routers.simulator import Device, World, run

_OF_SETTINGS = "settings."


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says beside the scenario's file. `changes`: `path=value`; those whose
    path begins with `settings.` change the settings file's tree."""

    changes: Sequence[str] = ()
    trace: Path | None = None
    replicas: int | None = None
    seed: int | None = None
    fifo: bool = False


@dataclass(frozen=True, slots=True)
class Play:
    """A scenario ready to run."""

    path: Path
    scenario: Scenario
    stage: Stage
    devices: tuple[Device, ...]

    def run(self, advance: Advance, *, fifo: bool = False) -> Summary:
        """Raises TraceError for a trace that cannot be read."""
        scenario, stage = self.scenario, self.stage
        begin_s, end_s = scenario.warmup_s, scenario.run_s
        summary = Summary(stage.claims(), stage.core.bucket_edges, begin_s, end_s)
        callers = Callers(Plan(scenario, self.path.parent, stage.gateways), stage)
        world = World(
            self.devices,
            stage.gateways,
            scenario.faults.detect_s,
            callers.follow,
            callers.door if callers.are_limited else None,
            Fifo if fifo else Dispatcher,
        )
        watcher = Watcher(summary, stage, scenario.network_ms / 1e3, advance)
        run(stage.core, callers.arrivals(), world, watcher)
        summary.finish(end_s)
        return summary

    def utilisation(self, summary: Summary) -> float:
        """Busy share of the time that replicas were there, 0..1."""
        begin_s, end_s = self.scenario.warmup_s, self.scenario.run_s
        there_s = sum(
            max(0.0, min(end_s, each.dies_at) - max(begin_s, each.joins_at))
            for each in self.devices
        )
        return summary.work.busy_s / there_s if there_s else 0.0

    def as_json(self, summary: Summary) -> dict[str, Any]:
        return {**summary.as_json(), "utilisation": self.utilisation(summary)}


def simulate(path: Path, asked: Asked, *, as_json: bool = False, plot: Path | None = None) -> int:
    """The exit code. Raises ScenarioErrors, SettingsErrors, TraceError and NoPlots."""
    if plot is not None:
        from deployments.simulation.plots import draw, must_be_there

        must_be_there(plot)
    play = prepare(path, asked)
    with Advance(play.scenario.run_s, Console(stderr=True)) as advance:
        summary = play.run(advance)
        beside = play.run(advance, fifo=True) if asked.fifo else None
    if as_json:
        found = play.as_json(summary)
        if beside is not None:
            found["fifo"] = play.as_json(beside)
        print(json.dumps(found))
    else:
        show(play.scenario.about or path.stem, summary, play.utilisation(summary), beside)
    if plot is not None:
        draw(summary, plot, play.scenario.about or path.stem)
    return 0


def prepare(path: Path, asked: Asked) -> Play:
    """Reads and checks everything but traces. Raises ScenarioErrors and SettingsErrors."""
    changes = [each for each in asked.changes if not each.startswith(_OF_SETTINGS)]
    changes += [f"replicas={asked.replicas}"] if asked.replicas is not None else []
    changes += [f"seed={asked.seed}"] if asked.seed is not None else []
    scenario = scenario_file.load(path, changes, asked.trace)
    settings = _settings(path.parent / scenario.settings, asked.changes)
    try:
        # A recording is of another model's lengths: what is too long for this one is cut.
        stage = set_up(scenario, settings, cut=asked.trace is not None)
        check_places(scenario, stage)
        return Play(path, scenario, stage, devices(scenario, stage))
    except StageError as error:
        raise ScenarioErrors(f"{path}: {error}") from None


def _settings(path: Path, changes: Iterable[str]) -> Settings:
    settings = load(path, here=False)
    changed = [each.removeprefix(_OF_SETTINGS) for each in changes if each.startswith(_OF_SETTINGS)]
    if not changed:
        return settings
    data = dump(settings)
    for each in changed:
        scenario_file.change(data, each)
    return parse(data)
