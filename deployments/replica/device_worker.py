"""One thread that owns the device: runs jobs one after another, as its line hands them out.

A runtime is used by one thread at a time, so health is asked on the same thread, between batches. A
run that lasts longer than `hang_limit_s` calls `on_hang`: nothing in Python can end it, so the
replica's process ends instead. A batch that nobody waits for any longer is not run. Which job is
next is the line's question, what becomes of bad rows the bisection's.

Where the runtime can put a batch on its device while another computes, a second thread has it do so
for each batch that waits: the copy is then done by the time the device is free.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable

from deployments.contract.batch_wire import RowError
from deployments.replica.bisection import run_bisected
from deployments.replica.device_queue import DeviceQueue
from deployments.replica.jobs import Job, Probe
from runtimes.types import Batch, Prefetching, Runtime

_DUTY_WINDOW_S = 10.0
_TOO_LATE = "its time was up before its turn came"


class DeviceWorker:
    """`line`: where jobs are put. Times are `time.perf_counter` seconds of this process."""

    def __init__(
        self, runtime: Runtime, slots: int, *, hang_limit_s: float, on_hang: Callable[[], None]
    ) -> None:
        self.line = DeviceQueue(slots, self._stage)
        self._runtime = runtime
        self._staged: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._prefetch = _prefetch_of(runtime)
        self._hang_limit_s = hang_limit_s
        self._on_hang = on_hang
        self._loop = asyncio.get_running_loop()
        self._running: Job | None = None
        self._busy_s = 0.0
        self._marks = ((time.perf_counter(), 0.0),) * 2
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self._thread.start()
        if self._prefetch is not None:
            threading.Thread(target=self._put_staged, name="staging", daemon=True).start()

    async def health(self) -> None:
        """Raises what the runtime's `health` raises; waits for the batch that runs."""
        probe = Probe(self._loop.create_future())
        self.line.probe(probe)
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
        self._staged.put(None)
        self.line.close()
        self._thread.join(timeout=self._hang_limit_s)

    def _stage(self, job: Job) -> None:
        if self._prefetch is not None:
            self._staged.put(job)

    def _put_staged(self) -> None:
        """What has started or gone meanwhile is left alone."""
        assert self._prefetch is not None
        while (job := self._staged.get()) is not None:
            if not job.started and not job.returned:
                self._prefetch(job.batch)

    def _work(self) -> None:
        while (item := self.line.take()) is not None:
            if isinstance(item, Probe):
                self.line.tell([(item.done, self._probe())])
            else:
                self._run(item)
                self.line.finish(item)

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


def _prefetch_of(runtime: Runtime) -> Callable[[Batch], None] | None:
    """None where nothing is gained: the processors would copy while they compute."""
    if isinstance(runtime, Prefetching) and runtime.limits().device != "cpu":
        return runtime.prefetch
    return None
