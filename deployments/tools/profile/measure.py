"""Runs one profile: load, memory of a first request, warm-up, machine peaks, sweep, conclusions.

Measuring takes `seconds` in all, for any model; loading and warm-up come on top, as in a replica.
If it is stopped early, the findings so far are kept. Nothing is written to disk here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from time import perf_counter, process_time
from typing import Protocol

import psutil

from deployments.contract.description import GatewayIdentity, dispatcher_settings
from deployments.replica.describe import describe, tokenizer_bytes
from deployments.replica.known_costs import KnownCosts
from deployments.tools.profile import queue_depth
from deployments.tools.profile.backend_loop import plain_batch
from deployments.tools.profile.binding import Facts, binding
from deployments.tools.profile.errors import CannotProfile
from deployments.tools.profile.findings import Findings, Peaks, Phase
from deployments.tools.profile.fitting import Fitted, edges_for, fit, knees, target
from deployments.tools.profile.overhead import hop_s, measured, tokenising
from deployments.tools.profile.subject import ChosenModel, created, subject_of
from deployments.tools.profile.sweep import (
    Sweep,
    TimedBatch,
    TimedRun,
    held_out,
    rounds,
    shape_grid,
)
from routers.api.settings import DispatcherSettings
from runtimes import peaks, warmup
from runtimes.errors import RuntimeFault
from runtimes.types import Runtime, RuntimeSettings

_PEAK_SHARE, _TEXT_SHARE, _HOP_SHARE = 0.04, 0.04, 0.02
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}


class OnProgress(Protocol):
    """Is told what is done now, and the share of the measuring time that is over, 0..1."""

    def __call__(self, what: str, share: float) -> None: ...


class ProfileRun:
    """One profile. `findings` holds what was found, however `run` ends."""

    def __init__(self, found: ChosenModel, seconds: float, seed: int, watch: OnProgress) -> None:
        self._chosen = found
        self._seconds = seconds
        self._rng = Random(seed)
        self._watch = watch
        self._began_s = 0.0
        self._now = ""
        self.findings: Findings | None = None

    def run(self) -> None:
        """Raises CannotProfile; ends early, and says so in the findings, on KeyboardInterrupt."""
        runtime = created(self._told())
        spans: list[Phase] = []
        try:
            with self._phase("loading", spans):
                runtime.load()
            self.findings = Findings(subject_of(self._chosen, runtime.limits()), spans=spans)
            self._measure(runtime, self.findings)
        except RuntimeFault as error:
            raise CannotProfile(str(error)) from None
        except KeyboardInterrupt:
            if self.findings is None:
                raise
            self.findings.stopped = True
            self._conclude(runtime, self.findings, simulate=False)
        finally:
            runtime.close()

    def _measure(self, runtime: Runtime, found: Findings) -> None:
        with self._phase("the first request", found.spans):
            self._memory(runtime, found)
        with self._phase("warming", found.spans):
            runtime.warm()
        self._began_s = perf_counter()
        with self._phase("the machine's peaks", found.spans):
            self._peaks(found)
        with self._phase("sweep", found.spans):
            self._sweep(runtime, found)
        if not found.samples:
            return
        with self._phase("the way to the device", found.spans):
            smallest = min((each.timed for each in found.samples), key=lambda timed: timed.tokens)
            found.hop_s = hop_s(runtime, smallest, _HOP_SHARE * self._seconds)
        with self._phase("tokenising", found.spans):
            self._tokenise(found)
        with self._phase("queues, on virtual time", found.spans):
            self._conclude(runtime, found)

    def _memory(self, runtime: Runtime, found: Findings) -> None:
        settings, limits = found.subject.settings, runtime.limits()
        longest = max(found.subject.lengths.rows)
        most = min(settings.max_size, limits.max_rows or settings.max_size)
        rows = max(1, min(most, settings.max_tokens // longest))
        one, many = (plain_batch(limits, (longest,) * n) for n in (1, rows))
        found.memory = measured(lambda: runtime.run(one), lambda: runtime.run(many), rows)

    def _peaks(self, found: Findings) -> None:
        """Of processors; what else a model may run on is not looked at."""
        settings, seconds = found.subject.settings, _PEAK_SHARE * self._seconds / 2
        if found.subject.limits.device != "cpu":
            return
        flops = None
        if settings.runtime != "synthetic":
            flops = peaks.flops(settings.runtime, settings.precision, settings.threads, seconds)
        found.peaks = Peaks(flops, peaks.copied_bytes(settings.threads, seconds))

    def _sweep(self, runtime: Runtime, found: Findings) -> None:
        subject, limits = found.subject, runtime.limits()
        grid = shape_grid(subject.settings, limits)
        held = held_out(subject.settings, limits, subject.lengths.rows, self._rng)
        warmed = frozenset(warmup.shapes(subject.settings, limits))
        sweep = Sweep(runtime, self._tell, perf_counter, warmed)
        found.samples = sweep.samples
        left = (1.0 - _TEXT_SHARE - _HOP_SHARE) * self._seconds - self._spent_s()
        seconds = max(left, self._seconds / 2)  # whatever the peaks have taken
        system_s, own_s = _system_busy_s(), process_time()
        begin = perf_counter()
        try:
            sweep.run(rounds(_mixed(grid, held), self._rng), seconds)
        finally:
            took_s = (perf_counter() - begin) * (os.cpu_count() or 1)
            own_s = process_time() - own_s
            found.others = max(0.0, (_system_busy_s() - system_s - own_s) / max(took_s, 1e-9))

    def _tokenise(self, found: Findings) -> None:
        subject = found.subject
        found.tokenising = tokenising(
            tokenizer_bytes(subject.settings.source), self._chosen.model.lengths.max,
            subject.lengths.rows, _TEXT_SHARE * self._seconds, self._rng,
        )  # fmt: skip

    def _conclude(self, runtime: Runtime, found: Findings, *, simulate: bool = True) -> None:
        """All that follows from what was measured."""
        settings, pads = found.subject.settings, found.subject.limits.pads
        fitted = found.fitted = fit(
            found.samples, pads=pads, max_size=settings.max_size, max_tokens=settings.max_tokens
        )
        if fitted is None:
            return
        found.knees = knees(fitted.points, found.subject.max_s)
        found.target = target(found.knees, settings.max_size)
        found.binding = binding(self._facts(found, fitted))
        core = self._core(runtime, fitted)
        found.edges = edges_for(core, found.subject.lengths.rows, fitted, found.subject.replicas)
        if simulate:
            self._simulate(found, core, fitted)

    def _simulate(self, found: Findings, core: DispatcherSettings, fitted: Fitted) -> None:
        model = self._chosen.model
        service = queue_depth.Service(
            replace(core, bucket_edges=found.edges or core.bucket_edges), fitted.seconds,
            model.replicas.initial, model.replicas.slots, model.timeout_s,
        )  # fmt: skip
        rng = Random(0)
        for clients in queue_depth.CLIENTS:
            self._tell(f"{clients} clients on virtual time")
            depth = queue_depth.depth(service, clients, found.subject.lengths.rows, rng)
            found.depths.append(depth)

    def _core(self, runtime: Runtime, fitted: Fitted) -> DispatcherSettings:
        """What a gateway would tell its core of this model."""
        costs = KnownCosts(fitted.points)
        page, _ = describe(self._chosen.name, self._chosen.model, "", runtime, costs)
        return dispatcher_settings(page, GatewayIdentity("profile"))

    def _facts(self, found: Findings, fitted: Fitted) -> Facts:
        """At the knee of the typical length."""
        subject, counted = found.subject, found.subject.parameters
        knee = min(found.knees, key=lambda each: abs(each.width - subject.lengths.median))
        at = [s for s in found.samples if s.timed.rows == knee.at.rows
              and s.timed.width(subject.limits.pads) == knee.width] or found.samples  # fmt: skip
        best: TimedRun = min(at, key=lambda sample: sample.took_s)
        rows, width = knee.at.rows, knee.width
        bytes_each = _BYTES[subject.settings.precision]
        return Facts(
            rows=rows,
            width=width,
            seconds=knee.at.seconds,
            copy_s=best.stages.copy_in_s + best.stages.copy_out_s,
            launch_s=fitted.coefficients.launch_s,
            operations=None if counted is None else counted.operations(rows, width),
            weight_bytes=None if counted is None else float(counted.multiplied * bytes_each),
            peak_flops=found.peaks.flops if found.peaks else None,
            peak_bytes=found.peaks.copied_bytes if found.peaks else 0.0,
            tokenise_s=found.tokenising.row_s if found.tokenising else 0.0,
        )

    # -- saying where it is

    def _told(self) -> RuntimeSettings:
        def progress(phase: str, fraction: float) -> None:
            self._watch(f"{phase} {fraction:.0%}", 0.0)

        return replace(self._chosen.settings, progress=progress)

    def _spent_s(self) -> float:
        return perf_counter() - self._began_s if self._began_s else 0.0

    def _tell(self, what: str) -> None:
        self._watch(f"{self._now}: {what}", min(1.0, self._spent_s() / self._seconds))

    @contextlib.contextmanager
    def _phase(self, name: str, spans: list[Phase]) -> Iterator[None]:
        self._now = name
        self._watch(name, min(1.0, self._spent_s() / self._seconds))
        begin = perf_counter()
        try:
            yield
        finally:
            spans.append(Phase(name, begin, perf_counter()))


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
