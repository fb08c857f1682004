"""One device: the queue of batches before it, and the thread that runs them one after another.

The event loop puts jobs in, and the device's thread takes them out. `routers.staging` decides which
batch runs next, under one lock, on whichever thread has just become free: between two batches there
is no turn of the loop. A runtime is used by one thread at a time, so its health is asked on the
device's thread, between batches.

Nothing in Python can end a run. So a run that lasts much longer than the gateway predicted, or
longer than `hang_limit_s`, calls `on_hang`, and a runtime that says that it will not recover calls
`on_death`; both end the replica's process. If the runtime can put a batch on its device while
another computes, a second thread has it do so for each batch that waits. Where several runtimes
share a device, their workers take turns, one batch each (`DeviceTurn`). One thread at a time writes
to a job. Times are `time.perf_counter` seconds of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deployments.contract.channel.frames import RowError
from deployments.replica.bisection import NOTHING_RUN, BatchResult, run_bisected
from deployments.replica.hang_limits import HangLimits
from routers.api.requests import FlowWork, Report
from routers.staging import Staged, Staging, Turn
from runtimes.errors import Unhealthy
from runtimes.types import Batch, Prefetching, Runtime

Key = tuple[str, int]  # gateway, lease id
News = list[tuple[Callable[[Any], None], Any]]  # what to call on the loop, and with what argument
_DUTY_WINDOW_S = 10.0
_HEALTH_S = 1.0  # that a health check waits for the running batch
_TRUSTED_ANSWERS = 20  # before so many, predictions are poor and kernels may still be compiled
_TOO_LATE = "the request's time limit passed before it ran"


@dataclass(slots=True)
class Job:
    """One batch of one gateway."""

    staged: Staged
    batch: Batch
    on_done: Callable[[Job], None]  # called on the loop, once, when it has run or was returned
    arrived: float
    budget_s: float = float("inf")  # after its arrival; then no caller waits any longer
    on_start: Callable[[Job], None] | None = None  # called on the loop when it starts
    returned: bool = False  # was not started and will not be
    started: float = 0.0
    finished: float = 0.0
    result: BatchResult = NOTHING_RUN
    fault: Exception | None = None  # raised by the runtime, when not for single rows

    @property
    def key(self) -> Key:
        return self.staged.gateway, self.staged.lease_id

    @property
    def wait_s(self) -> float:
        """Seconds from its arrival to the device; 0 if it was returned."""
        return 0.0 if self.returned else self.started - self.arrived

    @property
    def service_s(self) -> float:
        return self.finished - self.started


@dataclass(slots=True)
class Probe:
    """A question for the runtime's health. `done` resolves to the fault, or to None."""

    done: asyncio.Future[Exception | None]

    def answer(self, fault: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(fault)


class DeviceQueue:
    """The batches before the device. Make it on the loop. `take` and `finish` are for the device's
    thread, everything else for the loop. `slots`: batches that each gateway may have here, the
    running one included. `on_staged` is called on the loop with each job that has to wait. Where
    the device is `shared`, a job starts with `begin`, which the device's thread calls when it has
    its turn; else as soon as it is chosen."""

    def __init__(
        self,
        slots: int,
        on_staged: Callable[[Job], None] = lambda job: None,
        *,
        shared: bool = False,
    ) -> None:
        self._on_staged = on_staged
        self._shared = shared
        self._begun: Job | None = None  # of a shared device
        self._loop = asyncio.get_running_loop()
        self._staging = Staging(slots)
        self._lock = threading.Lock()
        self._jobs: dict[Key, Job] = {}
        self._ready: queue.SimpleQueue[Job | Probe | None] = queue.SimpleQueue()

    # ---- the loop's side ----------------------------------------------------------------------

    def put(self, job: Job, waiting: tuple[FlowWork, ...] | None = None) -> None:
        """Take in the job; or return it, or another of the same gateway in its place. `waiting`:
        what waits at that gateway; None: unchanged."""
        with self._lock:
            self._jobs[job.key] = job
            news = self._carried_out(self._staging.arrive(job.staged, waiting, job.arrived))
            waits = job.key in self._jobs and job.staged is not self._staging.running
        _tell(news)
        if waits:
            self._on_staged(job)

    def drop(self, key: Key) -> bool:
        """Return a job that has not started. Returns whether there was such a job."""
        with self._lock:
            dropped = self._staging.drop(*key)
            news = self._returned(key) if dropped else []
        _tell(news)
        return dropped

    def holds(self, key: Key) -> bool:
        with self._lock:
            return key in self._jobs

    def watch(self, key: Key, on_start: Callable[[Job], None]) -> None:
        """Call `on_start` when the job starts, or at once if it runs; never if it does not
        start."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                return
            runs = job is self._begun if self._shared else job.staged is self._staging.running
            if not runs:
                job.on_start = on_start
        if runs:
            on_start(job)

    def probe(self, probe: Probe) -> None:
        self._ready.put(probe)

    def report(self, gateway: str, service_s: float = 0.0, padded_tokens: int = 0) -> Report:
        """What an answer to this gateway says of the replica; it must have put in a job before."""
        with self._lock:
            now = time.perf_counter()
            return self._staging.report(gateway, now, service_s, padded_tokens)

    @property
    def inflight(self) -> int:
        with self._lock:
            return self._staging.inflight

    def close(self) -> None:
        """Close the queue. What is queued still runs."""
        self._ready.put(None)

    # ---- the device's side --------------------------------------------------------------------

    def take(self) -> Job | Probe | None:
        """The next job or probe; blocks. None once the queue is closed and empty."""
        item = self._ready.get()
        if item is None and self._staging.running is not None:
            self._ready.put(None)
            item = self._ready.get()
        return item

    def begin(self, job: Job) -> None:
        """The job has its turn on a shared device: tell whoever asked that it starts."""
        with self._lock:
            self._begun, on_start = job, job.on_start
        if on_start is not None:
            self.deliver([(on_start, job)])

    def finish(self, job: Job) -> None:
        """The job has left the device: choose the next one, and notify the loop."""
        with self._lock:
            del self._jobs[job.key]
            turn = self._staging.finish(job.service_s, time.perf_counter())
            news: News = [(job.on_done, job), *self._carried_out(turn)]
        self.deliver(news)

    def deliver(self, news: News) -> None:
        """Make these calls on the loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(_tell, news)

    # ---- under the lock -----------------------------------------------------------------------

    def _carried_out(self, turn: Turn) -> News:
        news: News = []
        if turn.start is not None:
            job = self._jobs[turn.start.gateway, turn.start.lease_id]
            self._ready.put(job)
            if job.on_start is not None and not self._shared:
                news.append((job.on_start, job))
        for staged in turn.returned:
            news += self._returned((staged.gateway, staged.lease_id))
        return news

    def _returned(self, key: Key) -> News:
        job = self._jobs.pop(key)
        job.returned = True
        return [(job.on_done, job)]


def _tell(news: News) -> None:
    for call, of in news:
        call(of)


class DeviceTurn:
    """Gives a device that several workers share to one worker's batch at a time, first come, first
    served. A context manager for the workers' threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._given = self._over = 0  # numbers of the last place taken and of the present turn

    def __enter__(self) -> None:
        with self._changed:
            mine = self._given
            self._given += 1
            while self._over != mine:
                self._changed.wait()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over += 1
            self._changed.notify_all()


class DeviceWorker:
    """Runs the batches of its `queue` on a runtime, in a thread of its own. `limits`: when a run
    counts as hung. `turn`: of a device that other workers share. `allow_non_finite`: NaN and
    infinity are answers. `on_death` is called with the reason when the runtime says that it will
    not recover. That happens on the device's thread, before gateways hear of anything that failed
    because of it."""

    def __init__(
        self,
        runtime: Runtime,
        slots: int,
        *,
        limits: HangLimits,
        on_hang: Callable[[], None],
        turn: contextlib.AbstractContextManager[Any] | None = None,
        allow_non_finite: bool = False,
    ) -> None:
        self.queue = DeviceQueue(slots, self._stage, shared=turn is not None)
        self._runtime = runtime
        self._staged: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._prefetch = _prefetch_of(runtime)
        self._limits = limits
        self._on_hang = on_hang
        self.on_death: Callable[[str], None] = _ignore
        self._closing = False
        self._shared, self._turn = turn is not None, turn or contextlib.nullcontext()
        self._allow_non_finite = allow_non_finite
        self._loop = asyncio.get_running_loop()
        self._running: Job | None = None
        self._run_began = 0.0  # of the batch, or of the part of it that runs alone
        self._answers = 0
        self._asked: Probe | None = None
        self._busy_s = 0.0
        self._marks = ((time.perf_counter(), 0.0),) * 2  # (when, busy seconds until then)
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self._thread.start()
        if self._prefetch is not None:
            threading.Thread(target=self._put_staged, name="staging", daemon=True).start()

    async def health(self) -> None:
        """Raises what the runtime's `health` raises. Waits for the running batch, but no longer
        than `_HEALTH_S`: `check_hang` finds one that hangs, and the next health check gets the
        answer.
        """
        probe = self._asked
        if probe is None:
            probe = self._asked = Probe(self._loop.create_future())
            self.queue.probe(probe)
        await asyncio.wait([probe.done], timeout=_HEALTH_S)
        if probe.done.done():
            self._asked = None
            fault = probe.done.result()
            if fault is not None:
                raise fault

    @property
    def running(self) -> Job | None:
        """The job on the device."""
        return self._running

    def running_for_s(self) -> float:
        """Seconds of the present run: of the batch, or of the part of it that bisection runs."""
        return time.perf_counter() - self._run_began if self._running is not None else 0.0

    def duty(self) -> float:
        """The busy share of the last 10 to 20 s of wall time (less after a start), 0..1."""
        now = time.perf_counter()
        if now - self._marks[1][0] >= _DUTY_WINDOW_S:
            self._marks = self._marks[1], (now, self._busy_s)
        since, before_s = self._marks[0]
        return min((self._busy_s - before_s) / max(now - since, 1e-9), 1.0)

    def check_hang(self) -> None:
        """Called by a timer: a run past its limit calls `on_hang`."""
        job = self._running
        if job is None:
            return
        predicted_s = job.staged.predicted_s if self._answers >= _TRUSTED_ANSWERS else 0.0
        if self.running_for_s() > self._limits.of(predicted_s):
            self._on_hang()

    def close(self) -> None:
        self._closing = True
        self._staged.put(None)
        self.queue.close()
        self._thread.join(timeout=self._limits.max_s)

    def _stage(self, job: Job) -> None:
        if self._prefetch is not None:
            self._staged.put(job)

    def _put_staged(self) -> None:
        """Put waiting batches on the device, except those that have started or gone meanwhile."""
        assert self._prefetch is not None
        while (job := self._staged.get()) is not None:
            if not job.started and not job.returned:
                self._prefetch(job.batch)

    def _work(self) -> None:
        while (item := self.queue.take()) is not None:
            if isinstance(item, Probe):
                self.queue.deliver([(item.answer, self._probe())])
            else:
                with self._turn:
                    if self._shared:
                        self.queue.begin(item)
                    self._run(item)
                self.queue.finish(item)

    def _run(self, job: Job) -> None:
        job.started = time.perf_counter()
        if job.started - job.arrived > job.budget_s:
            job.finished = job.started
            late = tuple(RowError(row, False, _TOO_LATE) for row in range(job.batch.rows))
            job.result = NOTHING_RUN._replace(errors=late)
            return
        self._run_began = job.started
        self._running = job
        try:
            job.result = run_bisected(
                self._runtime, job.batch, allow_non_finite=self._allow_non_finite,
                on_run=self._mark_run,
            )  # fmt: skip
        except Unhealthy as fault:
            self._report_death(fault)
            job.fault = fault
        except Exception as fault:
            job.fault = fault
        job.finished = time.perf_counter()
        self._running = None
        self._answers += 1
        self._busy_s += job.finished - job.started

    def _mark_run(self) -> None:
        self._run_began = time.perf_counter()

    def _probe(self) -> Exception | None:
        try:
            self._runtime.health()
        except Unhealthy as fault:
            self._report_death(fault)
            return fault
        except Exception as fault:
            return fault
        return None

    def _report_death(self, fault: Unhealthy) -> None:
        """Call `on_death`; not while closing, when the runtime is let go and the process ends."""
        if not self._closing:
            self.on_death(f"{fault}, and {self.queue.inflight} batches with it")


def _ignore(why: str) -> None:
    pass


def _prefetch_of(runtime: Runtime) -> Callable[[Batch], None] | None:
    """None without one, or on a CPU, where it gains nothing: the same processors would copy."""
    if isinstance(runtime, Prefetching) and runtime.limits().device != "cpu":
        return runtime.prefetch
    return None
