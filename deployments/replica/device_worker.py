"""One thread that owns the device: batches wait in line behind it and start without a loop's turn.

The staged batch must start the moment the running one ends, so the thread takes it from its own
line; the event loop only hears of results. A batch that raises is bisected, whatever it raises, so
that one bad row fails alone (O(k log n) extra runs for k bad rows); only a device that says it is
unhealthy ends the whole batch. A run that lasts longer than `hang_limit_s` calls `on_hang`: nothing
in Python can end it, so the replica's process ends instead. Health is asked on the same thread,
between batches: a runtime is used by one thread at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from deployments.queues.wire import Column, RowError, from_ragged
from runtimes.errors import BadRows, RunError, Unhealthy
from runtimes.types import Batch, Ragged, Result, Runtime, StageTimes

T = TypeVar("T")
_DUTY_WINDOW_S = 10.0
_TOO_LATE = "its time was up before its turn came"
logger = logging.getLogger("headrace.replica")


@dataclass(slots=True)
class Job:
    """A batch with its answer. `done` is a future of the loop that submitted it; `budget_s`: how
    long after its arrival anybody waits."""

    batch: Batch
    done: asyncio.Future[Job]
    arrived: float
    budget_s: float = float("inf")
    started: float = 0.0
    finished: float = 0.0
    outputs: dict[str, Column] = field(default_factory=dict)
    errors: tuple[RowError, ...] = ()
    times: StageTimes = field(default_factory=StageTimes)
    padded_tokens: int = 0
    fault: Exception | None = None


@dataclass(slots=True)
class Probe:
    """A question for the runtime's health; `done` resolves to its fault, None when it is well."""

    done: asyncio.Future[Exception | None]


class DeviceWorker:
    """Runs jobs one after another. Times are `time.perf_counter` seconds of this process."""

    def __init__(
        self, runtime: Runtime, *, hang_limit_s: float, on_hang: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._hang_limit_s = hang_limit_s
        self._on_hang = on_hang
        self._line: queue.SimpleQueue[Job | Probe | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._running: Job | None = None
        self._busy_s = 0.0
        self._marks = ((time.perf_counter(), 0.0),) * 2
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch, budget_s: float = float("inf")) -> asyncio.Future[Job]:
        """A batch whose budget has run out before its turn is not run: all its rows fail."""
        job = Job(batch, self._loop.create_future(), time.perf_counter(), budget_s)
        self._line.put(job)
        return job.done

    async def health(self) -> None:
        """Raises what the runtime's `health` raises; waits for the batches before it."""
        probe = Probe(self._loop.create_future())
        self._line.put(probe)
        fault = await probe.done
        if fault is not None:
            raise fault

    def running_for_s(self) -> float:
        job = self._running
        return time.perf_counter() - job.started if job is not None and job.started else 0.0

    def duty(self) -> float:
        """Busy share of the last 10 to 20 s of wall time (less after a start), 0..1."""
        now = time.perf_counter()
        if now - self._marks[1][0] >= _DUTY_WINDOW_S:
            self._marks = self._marks[1], (now, self._busy_s)
        since, before_s = self._marks[0]
        return min((self._busy_s - before_s) / max(now - since, 1e-9), 1.0)

    def check_hang(self) -> None:
        """Called by a timer; a run past the limit ends the process through `on_hang`."""
        if self.running_for_s() > self._hang_limit_s:
            self._on_hang()

    def close(self) -> None:
        self._line.put(None)
        self._thread.join(timeout=self._hang_limit_s)

    def _work(self) -> None:
        while (job := self._line.get()) is not None:
            if isinstance(job, Probe):
                self._tell(job.done, self._probe())
            else:
                self._run(job)
                self._tell(job.done, job)

    def _run(self, job: Job) -> None:
        job.started = time.perf_counter()
        if job.started - job.arrived > job.budget_s:
            job.finished = job.started
            job.errors = tuple(RowError(row, False, _TOO_LATE) for row in range(job.batch.rows))
            return
        self._running = job
        try:
            run_bisected(self._runtime, job)
        except Exception as fault:
            job.fault = fault
        job.finished = time.perf_counter()
        self._running = None
        self._busy_s += job.finished - job.started

    def _probe(self) -> Exception | None:
        try:
            self._runtime.health()
        except Exception as fault:
            return fault
        return None

    def _tell(self, done: asyncio.Future[T], result: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(_finish, done, result)


def _finish(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def run_bisected(runtime: Runtime, job: Job) -> None:
    """Fills `job.outputs` (rows that worked, in order), `errors`, `times` and `padded_tokens`."""
    parts: list[Result] = []
    errors: list[RowError] = []
    _halve(runtime, job.batch, 0, parts, errors)
    job.errors = tuple(errors)
    job.padded_tokens = sum(part.padded_tokens for part in parts)
    job.times = _total(parts)
    job.outputs = from_ragged(_joined(parts))


def _halve(
    runtime: Runtime, batch: Batch, first: int, parts: list[Result], errors: list[RowError]
) -> None:
    try:
        parts.append(runtime.run(batch))
        return
    except Unhealthy:
        raise
    except Exception as fault:
        if batch.rows == 1:
            errors.append(_row_error(first, fault))
            return
    middle = batch.rows // 2
    _halve(runtime, take(batch, 0, middle), first, parts, errors)
    _halve(runtime, take(batch, middle, batch.rows), first + middle, parts, errors)


def _row_error(row: int, fault: Exception) -> RowError:
    if not isinstance(fault, BadRows | RunError):
        logger.error("the runtime raised what it should not", exc_info=fault)
    return RowError(row, isinstance(fault, BadRows), str(fault))


def take(batch: Batch, start: int, stop: int) -> Batch:
    """Rows start..stop of a batch (views)."""
    inputs = {name: _slice(ragged, start, stop) for name, ragged in batch.inputs.items()}
    return Batch(stop - start, batch.lengths[start:stop], inputs, batch.outputs)


def _slice(ragged: Ragged, start: int, stop: int) -> Ragged:
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in ragged.shapes]
    before, within = sum(sizes[:start]), sum(sizes[start:stop])
    return Ragged(ragged.datatype, ragged.data[before : before + within], ragged.shapes[start:stop])


def _joined(parts: list[Result]) -> dict[str, Ragged]:
    if len(parts) == 1:
        return dict(parts[0].outputs)
    names = parts[0].outputs if parts else ()
    return {
        name: Ragged(
            parts[0].outputs[name].datatype,
            np.concatenate([part.outputs[name].data for part in parts]),
            tuple(shape for part in parts for shape in part.outputs[name].shapes),
        )
        for name in names
    }


def _total(parts: list[Result]) -> StageTimes:
    total = StageTimes()
    for part in parts:
        total.pad_s += part.times.pad_s
        total.copy_in_s += part.times.copy_in_s
        total.run_s += part.times.run_s
        total.copy_out_s += part.times.copy_out_s
        total.post_s += part.times.post_s
    return total
