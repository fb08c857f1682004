"""Prepares and runs a simulation: reads a scenario and its settings, and runs them on virtual time.

The outcome depends only on the files and the seed, not on this machine or its clock. Requests that
never ended and leases that were never closed are counted at the end (`left_over`); unless all
counts are 0, the scheduling core has a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deployments.settings.plain import dump, parse
from deployments.settings.tree import Settings
from deployments.settings_files.load import load
from deployments.tools.simulate.callers import Callers, SummaryObserver
from deployments.tools.simulate.devices import check_places, devices
from deployments.tools.simulate.scaling import (
    ScalingRecord,
    ScalingSetup,
    controller_of,
    scaling_setup_of,
    with_reserve,
)
from deployments.tools.simulate.sim_setup import SimSetup, SimSetupError, set_up
from loadtests.results.summary import Summary
from loadtests.traffic import scenario_file
from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario import Scenario
from loadtests.traffic.scenario_file import ScenarioErrors
from routers.api.settings import DispatcherSettings
from routers.api.snapshot import Snapshot
from routers.policies.registry import KINDS, SEVERAL, fault_of
from routers.schedulers import scheduler_of
from routers.simulation.baselines import Fifo, RoundRobin
from routers.simulation.simulator import Core, SimDevice, World, run

_OF_SETTINGS = "settings."
_COUNTS = (
    "hedges", "hedges_won", "ties", "probes", "retries", "evictions", "preempted", "edge_switches",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The command line's options besides the scenario's file."""

    changes: Sequence[str] = ()  # `path=value`; `settings.PATH=value` changes the settings
    trace: Path | None = None  # replayed in place of the scenario's traffic
    replicas: int | None = None
    seed: int | None = None
    fifo: bool = False  # compare with a plain queue without the dispatcher
    policies: Sequence[str] = ()  # `kind=name` of the policies to compare with


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The outcome of a run."""

    summary: Summary
    utilisation: float  # busy share of the replicas' lifetime, 0..1
    slo_share: float  # share of requests that should be in time, as the settings say, 0..1
    cores: tuple[Snapshot, ...]  # each gateway's core after the last event
    scaling: ScalingRecord | None = None  # None: the number of replicas was fixed

    @property
    def left_over(self) -> dict[str, int]:
        """By kind: how many have not ended, or are counted wrongly. All are 0 unless the core has
        a bug."""
        return {
            "requests": self.summary.time_series.unfinished,
            "rows": sum(core.waiting_rows + core.leased_rows for core in self.cores),
            "leases": sum(core.leases for core in self.cores),
            "drift": sum(abs(each.drift) for core in self.cores for each in core.replicas),
        }

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints; see docs/simulator.md."""
        return {
            **self.summary.as_json(),
            "utilisation": self.utilisation,
            "left_over": self.left_over,
            "gateways": [_core_as_json(core) for core in self.cores],
            **({"scaling": self.scaling.as_json()} if self.scaling is not None else {}),
        }


def _core_as_json(core: Snapshot) -> dict[str, Any]:
    return {
        **{name: getattr(core, name) for name in _COUNTS},
        "idle_gap_ms": core.idle_gap_s * 1e3,
        "early_binding_ms": core.early_binding_s * 1e3,
        "edges": core.edges,
        "controllers": {
            each.name: {"mode": each.mode, "shed": each.shed, "would_shed": each.would_shed}
            for each in core.controllers
        },
    }


@dataclass(frozen=True, slots=True)
class Simulation:
    """A scenario ready to run, any number of times."""

    path: Path
    scenario: Scenario
    setup: SimSetup
    devices: tuple[SimDevice, ...]  # empty if the number of replicas is not fixed
    scaling_setup: ScalingSetup | None = None  # None: the number of replicas is fixed

    @property
    def title(self) -> str:
        return self.scenario.about.strip() or self.path.stem

    @property
    def left_out(self) -> list[str]:
        """Parts of the scenario that a simulation cannot do."""
        callers = [tenant for _, tenant in self.scenario.callers()]
        malformed = any(tenant.malformed for tenant in callers)
        output = any(self.scenario.output_of(tenant) for tenant in callers)
        unheard = output and self.setup.engine is None
        unmoved = self.scenario.scaling is not None and self.scaling_setup is None
        return [
            *["malformed"] * malformed,
            *["output (the model generates nothing)"] * unheard,
            *["scaling (the number of replicas is fixed)"] * unmoved,
        ]

    def run(self, advance: Callable[[float, int], None], *, fifo: bool = False) -> SimulationResult:
        """Run the scenario. `advance` is called with virtual seconds and requests so far. `fifo`:
        without the dispatcher. Raises TraceError."""
        scenario, setup = self.scenario, self.setup
        begin_s, end_s = scenario.warmup_s, scenario.run_s
        summary = Summary(setup.claims(), setup.core.bucket_edges, begin_s, end_s)
        callers = Callers(TrafficPlan(scenario, self.path.parent, setup.gateways), setup)
        record = controller = None
        if self.scaling_setup is not None:
            record = ScalingRecord(begin_s, end_s)
            controller = controller_of(scenario, setup, self.scaling_setup, record)
        world = World(
            self.devices,
            setup.gateways,
            scenario.faults.detect_s,
            callers.follow,
            callers.door if callers.are_limited else None,
            self._beside if fifo else scheduler_of,
            controller=controller,
            reconcile_until_s=end_s,
        )
        watcher = SummaryObserver(summary, setup, scenario.network_ms / 1e3, advance)
        cores = run(setup.core, callers.arrivals(), world, watcher)
        summary.finish(end_s)
        busy = self._utilisation(summary, record)
        return SimulationResult(summary, busy, setup.slo_share, cores, record)

    def with_policies(self, choices: Sequence[str]) -> Simulation:
        """The same simulation with other policies (`kind=name`). Raises ScenarioErrors."""
        chosen = [_policy(choice) for choice in choices]
        names: dict[str, Any] = dict(chosen)
        if len(names) < len(chosen):
            raise ScenarioErrors("--policy: names a kind twice; must name each kind once")
        if "batching" in names and self.setup.engine is not None:
            raise ScenarioErrors("--policy batching=…: this model is batched by its engine")
        if "edges" in names and not self.setup.core.buckets.adaptive:
            raise ScenarioErrors("--policy edges=…: this model's edges are fixed (lengths.buckets)")
        policies = replace(self.setup.core.policies, **names)
        core = replace(self.setup.core, policies=policies)
        return replace(self, setup=replace(self.setup, core=core))

    @property
    def _beside(self) -> Callable[[DispatcherSettings], Core]:
        """The baseline that the dispatcher is compared with."""
        return Fifo if self.setup.engine is None else RoundRobin

    def _utilisation(self, summary: Summary, scaling: ScalingRecord | None) -> float:
        begin_s, end_s = self.scenario.warmup_s, self.scenario.run_s
        there_s = sum(
            max(0.0, min(end_s, each.dies_at) - max(begin_s, each.joins_at))
            for each in self.devices
        )
        if scaling is not None:
            there_s = scaling.serving_s
        return summary.work.busy_s / there_s if there_s else 0.0


def _policy(choice: str) -> tuple[str, str | tuple[str, ...]]:
    kind, _, value = choice.partition("=")
    if kind not in KINDS:
        raise ScenarioErrors(f"--policy {choice}: must be one of {'=…, '.join(KINDS)}=…")
    names: tuple[str, ...] = (value,)
    if kind in SEVERAL:
        names = () if value == "none" else tuple(value.split("+"))
    for name in names:
        if fault := fault_of(kind, name):
            several = "; several are joined by +, and none is none" if kind in SEVERAL else ""
            raise ScenarioErrors(f"--policy {choice}: {kind} {fault}{several}")
    if len(set(names)) < len(names):
        raise ScenarioErrors(f"--policy {choice}: names a policy twice; must name each once")
    return kind, names if kind in SEVERAL else value


def prepare(path: Path, options: SimulateOptions) -> Simulation:
    """Read and check everything but traces. Raises ScenarioErrors and SettingsErrors."""
    changes = [each for each in options.changes if not each.startswith(_OF_SETTINGS)]
    changes += [f"replicas={options.replicas}"] if options.replicas is not None else []
    changes += [f"seed={options.seed}"] if options.seed is not None else []
    scenario = scenario_file.load(path, changes, options.trace)
    if scenario.settings is None:
        raise ScenarioErrors(f"{path}: settings: is missing; must name a settings file")
    settings = _settings(path.parent / scenario.settings, options.changes)
    try:
        # A trace may be recorded at another model: rows that are too long for this one are cut.
        setup = set_up(scenario, settings, cut=options.trace is not None)
        scaling = scaling_setup_of(scenario, settings, setup)
        if scaling is not None:
            if options.fifo:
                raise SimSetupError("--fifo: needs a fixed number of replicas")
            return Simulation(path, scenario, with_reserve(setup, scaling), (), scaling)
        check_places(scenario, setup)
        return Simulation(path, scenario, setup, devices(scenario, setup))
    except SimSetupError as error:
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
