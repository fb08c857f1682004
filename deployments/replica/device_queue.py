"""Which job does the device take next, and who hears when one starts, ends or goes back?

The event loop puts jobs in, the device's thread takes them out, and `routers.staging` decides,
under one lock: what runs next is chosen by the thread that has just become free, without a turn of
the loop between two batches. A probe of the device's health goes between two batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from deployments.replica.jobs import Job, Key, Probe
from routers.staging import Staging, Turn
from routers.types import FlowWork, Report

News = list[tuple[asyncio.Future[Any], Any]]


class DeviceQueue:
    """Make it on the loop; `take` and `finish` are for the device's thread, the rest for the loop.
    `slots`: batches that each gateway may have here, the running one included. `on_staged`: told,
    on the loop, of each job that waits behind the running one."""

    def __init__(self, slots: int, on_staged: Callable[[Job], None] = lambda job: None) -> None:
        self._on_staged = on_staged
        self._loop = asyncio.get_running_loop()
        self._staging = Staging(slots)
        self._lock = threading.Lock()
        self._jobs: dict[Key, Job] = {}
        self._ready: queue.SimpleQueue[Job | Probe | None] = queue.SimpleQueue()

    # ---- the loop's side ----------------------------------------------------------------------

    def put(self, job: Job, waiting: tuple[FlowWork, ...] | None = None) -> None:
        """Takes the job in, or returns it, or another of its gateway's in its place. `waiting`:
        what waits at that gateway; None: as it said before."""
        with self._lock:
            self._jobs[job.key] = job
            news = self._carried_out(self._staging.arrive(job.staged, waiting, job.arrived))
            waits = job.key in self._jobs and job.staged is not self._staging.running
        _tell(news)
        if waits:
            self._on_staged(job)

    def drop(self, key: Key) -> bool:
        """Returns a job that has not started; whether there was such."""
        with self._lock:
            dropped = self._staging.drop(*key)
            news = self._returned(key) if dropped else []
        _tell(news)
        return dropped

    def holds(self, key: Key) -> bool:
        return key in self._jobs

    def opened(self, key: Key) -> asyncio.Future[bool] | None:
        """Resolves once the job has started (True) or never will (False); None: it is not here."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                return None
            if job.opened is None:
                job.opened = self._loop.create_future()
            if job.staged is self._staging.running and not job.opened.done():
                job.opened.set_result(True)
            return job.opened

    def probe(self, probe: Probe) -> None:
        self._ready.put(probe)

    def report(self, gateway: str, service_s: float = 0.0, padded_tokens: int = 0) -> Report:
        """What an answer to this gateway says of the replica; it has put something in before."""
        with self._lock:
            now = time.perf_counter()
            return self._staging.report(gateway, now, service_s, padded_tokens)

    @property
    def inflight(self) -> int:
        with self._lock:
            return self._staging.inflight

    def close(self) -> None:
        """What is in line is still run."""
        self._ready.put(None)

    # ---- the device's side --------------------------------------------------------------------

    def take(self) -> Job | Probe | None:
        """The next thing to do; blocks. None once the line is closed and nothing is left in it."""
        item = self._ready.get()
        if item is None and self._staging.running is not None:
            self._ready.put(None)
            item = self._ready.get()
        return item

    def finish(self, job: Job) -> None:
        """The job has left the device: chooses the next and tells the loop of all that follows."""
        with self._lock:
            del self._jobs[job.key]
            turn = self._staging.finish(job.service_s, time.perf_counter())
            news: News = [(job.done, job), *self._carried_out(turn)]
        self.tell(news)

    def tell(self, news: News) -> None:
        """Sets futures' results on the loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(_tell, news)

    # ---- under the lock -----------------------------------------------------------------------

    def _carried_out(self, turn: Turn) -> News:
        news: News = []
        if turn.start is not None:
            job = self._jobs[turn.start.gateway, turn.start.lease_id]
            self._ready.put(job)
            if job.opened is not None:
                news.append((job.opened, True))
        for staged in turn.returned:
            news += self._returned((staged.gateway, staged.lease_id))
        return news

    def _returned(self, key: Key) -> News:
        job = self._jobs.pop(key)
        job.returned = True
        news: News = [(job.done, job)]
        if job.opened is not None:
            news.append((job.opened, False))
        return news


def _tell(news: News) -> None:
    for future, result in news:
        if not future.done():
            future.set_result(result)
