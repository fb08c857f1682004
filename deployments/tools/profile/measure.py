"""Profiles one model: loads it as a replica would, times its batches, and concludes.

Measuring takes `seconds` in all, for any model; loading and warm-up come on top, as in a replica.
If it is stopped early, the findings so far are kept. Nothing is written to disk here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

import psutil

from deployments.contract.description import GatewayIdentity, dispatcher_settings
from deployments.replica import backend_env
from deployments.replica.describe import describe, runtime_settings, with_lengths
from deployments.replica.known_costs import KnownCosts, ProfileIdentity, identity_of
from deployments.settings.model import ModelSettings
from deployments.settings_files.load import load
from deployments.settings_files.made import cache_dir
from deployments.tools.console.progress_bar import Note
from deployments.tools.profile.device_peaks import BatchMemory, peaks
from deployments.tools.profile.fitting import Fitted, Knee, edges_for, fit, knees, target
from deployments.tools.profile.lengths import RowLengths, WrongArguments, as_taken, lengths_for
from deployments.tools.profile.sweep import (
    Sweep,
    TimedBatch,
    TimedRun,
    held_out,
    rounds,
    shape_grid,
)
from runtimes import catalog, warmup
from runtimes.errors import RuntimeFault
from runtimes.types import Limits, Runtime, RuntimeSettings

LOAD_S = 300.0  # with what a backend compiles


class CannotProfile(RuntimeError):
    """The model does not load or does not run; the message is its backend's."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The command line. `seconds`: of measuring, beside loading and warm-up; `lengths`: see
    `lengths.py`; `seed` decides every random choice."""

    file: Path
    model: str | None
    seconds: float
    lengths: Path | None
    seed: int


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """One model of the file, with the settings that a replica would load it with."""

    name: str
    model: ModelSettings
    settings: RuntimeSettings
    lengths: RowLengths
    cache_dir: Path


def named(options: ProfileOptions) -> tuple[str, ModelSettings]:
    """The model of the file. Raises SettingsErrors and WrongArguments."""
    models = load(options.file).models
    name = options.model or (next(iter(models)) if len(models) == 1 else "")
    if name not in models:
        listed = ", ".join(models)
        what = f"no model {name!r} there" if name else "a model must be named"
        raise WrongArguments(f"{options.file}: {what}; it has {listed}")
    return name, models[name]


def chosen(options: ProfileOptions) -> ChosenModel:
    """A model whose batches are formed. Raises SettingsErrors, WrongArguments, CannotProfile,
    TraceError and ScenarioErrors."""
    (name, model), folder = named(options), cache_dir()
    try:
        settings = runtime_settings(name, model, folder, lambda phase, fraction: None)
    except RuntimeFault as error:
        raise CannotProfile(str(error)) from None
    model = with_lengths(model, settings.source)
    lengths = lengths_for(options.lengths, model.lengths.max, Random(options.seed))
    return ChosenModel(name, model, settings, lengths, folder)


def in_a_process(module: str, job: Mapping[str, Any], seconds: float) -> Any:
    """The last JSON that `python -m module` prints in a line, given the job on standard input, of
    which `seconds` are measuring. Raises CannotProfile, at the latest `LOAD_S` after those. Then
    the processes that it has started end, too: an engine's would go on, and hold its device."""
    with subprocess.Popen(
        [sys.executable, "-m", module], text=True, process_group=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        try:
            printed, said = child.communicate(json.dumps(job), timeout=LOAD_S + seconds)
        except BaseException as stopped:
            os.killpg(child.pid, signal.SIGKILL)
            if not isinstance(stopped, subprocess.TimeoutExpired):
                raise
            times = f"{LOAD_S:g} s to load and {seconds:g} s more"
            raise CannotProfile(f"not done after {times}") from None
    if child.returncode:
        raise CannotProfile((said.strip().splitlines() or ["its process ended"])[-1])
    for line in reversed(printed.splitlines()):  # libraries print before it, and as they end
        with suppress(json.JSONDecodeError):
            if isinstance(answer := json.loads(line), dict | list):
                return answer
    raise CannotProfile("its process printed no answer")


def created(settings: RuntimeSettings) -> Runtime:
    """Raises CannotProfile in the backend's words."""
    backend_env.set_compiler_cache(settings.cache_dir)
    try:
        return catalog.create(settings)
    except RuntimeFault as error:
        raise CannotProfile(str(error)) from None


@dataclass(slots=True)
class Findings:
    """`lengths`: as the loaded model has them; `others`: share of the processors that other
    processes used meanwhile; `stopped`: somebody asked to stop before the end; `edges`: for the
    lengths that were given; `memory`: on a GPU. What was not reached is None or empty."""

    chosen: ChosenModel
    identity: ProfileIdentity
    limits: Limits
    lengths: RowLengths
    samples: list[TimedRun] = field(default_factory=list)
    others: float | None = None
    fitted: Fitted | None = None
    knees: tuple[Knee, ...] = ()
    target: int | None = None
    edges: tuple[int, ...] = ()
    memory: tuple[BatchMemory, ...] = ()
    stopped: bool = False

    @property
    def max_s(self) -> float:
        """What a batch may take of the SLO."""
        model = self.chosen.model
        return model.batch.max_slo_share * model.slo.latency_ms / 1e3

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints; times in seconds."""
        fitted = self.fitted
        return {
            "model": self.chosen.name,
            "identity": asdict(self.identity),
            "lengths": {"from": self.lengths.said, "mean": self.lengths.mean},
            "points": [] if fitted is None else fitted.points,
            "coefficients": None if fitted is None else asdict(fitted.coefficients),
            "error": None if fitted is None else {
                name: None if error is None else asdict(error)
                for name, error in (
                    ("held_out", fitted.held), ("held_out_runs", fitted.runs),
                    ("fitted", fitted.fitted), ("noise", fitted.noise),
                )
            },
            "knees": [asdict(knee) for knee in self.knees],
            "target_rows": self.target,
            "edges": self.edges,
            "device_memory_bytes": [asdict(each) for each in self.memory],
            "others": self.others,
            "stopped": self.stopped,
        }  # fmt: skip


def profiled(found: ChosenModel, seconds: float, seed: int, note: Note) -> Findings:
    """Raises CannotProfile; ends early, and says so in the findings, on KeyboardInterrupt once the
    model is loaded."""
    settings = replace(
        found.settings, progress=lambda phase, share: note(f"{phase} {share:.0%}", 0.0)
    )
    runtime = created(settings)
    try:
        runtime.load()
        limits = runtime.limits()
        lengths = replace(found.lengths, rows=as_taken(found.lengths.rows, limits))
        made = Findings(found, identity_of(found.settings), limits, lengths)
        try:
            note("memory", 0.0)
            made.memory = peaks(runtime, settings, found.model.replicas.num_gpus)
            runtime.warm()
            _sweep(runtime, made, seconds, Random(seed), note)
        except KeyboardInterrupt:
            made.stopped = True
        _conclude(runtime, made)
        return made
    except RuntimeFault as error:
        raise CannotProfile(str(error)) from None
    finally:
        runtime.close()


def _sweep(runtime: Runtime, found: Findings, seconds: float, rng: Random, note: Note) -> None:
    settings, limits = found.chosen.settings, found.limits
    grid = shape_grid(settings, limits)
    held = held_out(settings, limits, found.lengths.rows, rng)
    warmed = frozenset(warmup.shapes(settings, limits))
    system_s, own_s, begin = _system_busy_s(), process_time(), perf_counter()

    def watch(what: str) -> None:
        note(what, min(1.0, (perf_counter() - begin) / seconds))

    sweep = Sweep(runtime, watch, perf_counter, warmed)
    found.samples = sweep.samples
    try:
        sweep.run(rounds(_mixed(grid, held), rng), seconds)
    finally:
        took_s = (perf_counter() - begin) * (os.cpu_count() or 1)
        own_s = process_time() - own_s
        found.others = max(0.0, (_system_busy_s() - system_s - own_s) / max(took_s, 1e-9))


def _conclude(runtime: Runtime, found: Findings) -> None:
    """All that follows from what was measured."""
    settings, model = found.chosen.settings, found.chosen.model
    fitted = found.fitted = fit(
        found.samples, pads=found.limits.pads, max_size=settings.max_size,
        max_tokens=settings.max_tokens,
    )  # fmt: skip
    if fitted is None:
        return
    found.knees = knees(fitted.points, found.max_s)
    found.target = target(found.knees, settings.max_size)
    # What a gateway would tell its core of this model.
    page, _ = describe(found.chosen.name, model, "", runtime, KnownCosts(fitted.points))
    core = dispatcher_settings(page, GatewayIdentity("profile"))
    found.edges = edges_for(core, found.lengths.rows, fitted, model.replicas.initial)


def _mixed(grid: tuple[TimedBatch, ...], held: tuple[TimedBatch, ...]) -> list[TimedBatch]:
    """The grid in its order, with the held-out batches strewn evenly into it."""
    every = max(1, len(grid) // max(1, len(held)))
    mixed = list(grid)
    for place, timed in enumerate(held):
        mixed.insert(min(len(mixed), (place + 1) * (every + 1)), timed)
    return mixed


def _system_busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))
