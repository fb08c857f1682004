"""Threads for preprocessing, which serve tenants in turn and in a tenant the oldest job first.

Fair in turns: among tenants with work, the one served longest ago goes first, so a newcomer waits
for what is running and for nothing else, however many texts another tenant has waiting. A job is
one request's work, cut by the caller into turns of some milliseconds; threads may share a job.
Places to wait are shared in the same way, evenly (`SharedBound`): one tenant alone may have all of
them, and another one's share is taken all the same.

It neither measures nor bounds what one turn costs: whoever cuts the work does. Tenants' names come
from settings; a lane per name is kept. One pool belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deployments.contract.errors import SOON_S, Overloaded
from deployments.gateway.tenancy.rates import QuotaKey, SharedBound

T = TypeVar("T")

_EVEN = 1.0  # turns have no weights either
_MEAN_GAIN = 0.05


@dataclass(slots=True, eq=False)
class _Job:
    """One caller's work. `taken` turns have started, `left` have not finished."""

    lane: _Lane
    function: Callable[..., Any]
    pieces: Sequence[tuple[Any, ...]]
    future: asyncio.Future[list[Any]]
    results: list[Any]
    left: int
    taken: int = 0
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _Lane:
    """A tenant's waiting jobs in order of arrival, and the number of the turn it last had."""

    quota_key: QuotaKey
    jobs: OrderedDict[int, _Job] = field(default_factory=OrderedDict)
    last_turn: int = 0
    in_rotation: bool = False


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    """Levels and counters."""

    waiting_jobs: int
    waiting_turns: int
    busy_workers: int
    workers: int
    turns_total: int
    refused_total: int
    mean_turn_s: float


class FairThreadPool:
    """A bounded thread pool that serves tenants in turn; results arrive on the caller's event loop.

    `max_pending` bounds the jobs that wait (not those that run), shared by tenants: at most twice
    as many do. Threads start with the first job.
    """

    def __init__(self, workers: int, max_pending: int):
        if workers < 1 or max_pending < 1:
            raise ValueError("a pool needs at least one worker and one place to wait")
        self._workers, self._max_pending = workers, max_pending
        self._places = SharedBound(max_pending)
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._rotation: list[tuple[int, int, _Lane]] = []  # (last turn, tie-break, lane)
        self._waiting_turns = self._idle = 0
        self._turns = self._entries = self._refused = 0
        self._mean_turn_s = 0.0
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._finished: deque[_Job] = deque()
        self._delivery_due = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, tenant: str, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)` on a worker, as one turn. Raises what it raises, or `Overloaded`."""
        return (await self._submit(tenant, function, [args]))[0]

    async def run_each(
        self, tenant: str, function: Callable[[Any], T], pieces: Sequence[Any]
    ) -> list[T]:
        """`function(piece)` for each piece, a turn each; results in order.

        One job: one place in the queue and one wake-up of the loop, however many turns it takes.
        The first turn that raises ends the job.
        """
        if not pieces:
            return []
        return await self._submit(tenant, function, [(piece,) for piece in pieces])

    async def _submit(
        self, tenant: str, function: Callable[..., T], pieces: Sequence[tuple[Any, ...]]
    ) -> list[T]:
        job, key = self._enter(tenant, function, pieces)
        try:
            return await job.future
        except asyncio.CancelledError:
            with self._lock:
                self._withdraw(job, key)
            raise
        finally:
            del job  # it has the error, whose traceback has this frame: a circle with the input

    def _enter(
        self, tenant: str, function: Callable[..., Any], pieces: Sequence[tuple[Any, ...]]
    ) -> tuple[_Job, int]:
        future = self._own_loop().create_future()
        with self._lock:
            lane = self._lane(tenant)
            self._admit(lane)
            job = _Job(lane, function, pieces, future, [None] * len(pieces), len(pieces))
            self._entries += 1
            key = self._entries
            lane.jobs[key] = job
            self._places.add(lane.quota_key, 1)
            self._waiting_turns += len(pieces)
            self._join_rotation(lane)
            self._wake_workers(len(pieces))
        return job, key

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("a FairThreadPool belongs to the event loop that used it first")
        return loop

    def _lane(self, tenant: str) -> _Lane:
        lane = self._lanes.get(tenant)
        if lane is None:
            lane = self._lanes[tenant] = _Lane((tenant, _EVEN))
        return lane

    def _admit(self, lane: _Lane) -> None:
        if self._closed:
            raise _closing()
        if not self._places.fits(lane.quota_key, 1):
            self._refused += 1
            wait_s = self._waiting_turns * self._mean_turn_s / self._workers
            raise Overloaded(
                "too many requests wait for tokenising or image preparation",
                retry_after_s=max(SOON_S, wait_s),
                reason="preprocess_full",
            )

    def _join_rotation(self, lane: _Lane) -> None:
        if not lane.in_rotation:
            lane.in_rotation = True
            self._entries += 1
            heapq.heappush(self._rotation, (lane.last_turn, self._entries, lane))

    def _wake_workers(self, turns: int) -> None:
        if not self._threads:
            self._start()
        for _ in range(min(self._idle, turns)):
            self._idle -= 1
            self._wake.put(None)

    def _start(self) -> None:
        for number in range(self._workers):
            thread = threading.Thread(target=self._work, name=f"preprocess-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _withdraw(self, job: _Job, key: int) -> None:
        """Forget the turns of a job that have not started (with the lock held)."""
        if job.lane.jobs.pop(key, None) is not None:
            self._places.give(job.lane.quota_key, 1)
            self._waiting_turns -= len(job.pieces) - job.taken

    # ---- the worker's side ----------------------------------------------------------------

    def _work(self) -> None:
        while (turn := self._next_turn()) is not None:
            self._run(*turn)
            del turn  # a thread that waits keeps nobody's input

    def _run(self, job: _Job, index: int) -> None:
        began = time.perf_counter()
        try:
            job.results[index] = job.function(*job.pieces[index])
        except StopIteration:  # a future refuses to carry one
            fault = RuntimeError("StopIteration raised by a preprocessing function")
            self._end_turn(job, fault, time.perf_counter() - began)
        except Exception as raised:  # it is the caller's to see, whatever it is
            self._end_turn(job, raised, time.perf_counter() - began)
        else:
            self._end_turn(job, None, time.perf_counter() - began)
        finally:
            del job  # as in `_submit`

    def _next_turn(self) -> tuple[_Job, int] | None:
        """The next turn by rotation; waits for one; None when the pool closes."""
        while True:
            with self._lock:
                if self._closed:
                    return None
                turn = self._take()
                if turn is not None:
                    return turn
                self._idle += 1
            self._wake.get()

    def _take(self) -> tuple[_Job, int] | None:
        while self._rotation:
            _, _, lane = heapq.heappop(self._rotation)
            lane.in_rotation = False
            if not lane.jobs:  # all its jobs were cancelled
                continue
            key, job = next(iter(lane.jobs.items()))
            index, job.taken = job.taken, job.taken + 1
            self._waiting_turns -= 1
            if job.taken == len(job.pieces):
                del lane.jobs[key]
                self._places.give(lane.quota_key, 1)
            self._turns += 1
            lane.last_turn = self._turns
            if lane.jobs:
                self._join_rotation(lane)
            return job, index
        return None

    def _end_turn(self, job: _Job, error: Exception | None, seconds: float) -> None:
        with self._lock:
            gain = _MEAN_GAIN if self._mean_turn_s else 1.0
            self._mean_turn_s += gain * (seconds - self._mean_turn_s)
            job.left -= 1
            if job.error is not None:
                return
            if error is not None:
                job.error = error
                self._drop(job)
            elif job.left:
                return
            self._finished.append(job)
            due, self._delivery_due = not self._delivery_due, True
        if due:
            self._call_loop()

    def _drop(self, job: _Job) -> None:
        """A failed job is the head of its lane if turns of it still wait."""
        head = next(iter(job.lane.jobs.items()), None)
        if head is not None and head[1] is job:
            self._withdraw(job, head[0])

    def _call_loop(self) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: nobody waits any longer
            self._finished.clear()

    def _deliver(self) -> None:
        """Runs on the loop: settles every job that finished since it was asked for."""
        with self._lock:
            self._delivery_due = False
            finished = list(self._finished)
            self._finished.clear()
        for job in finished:
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.results)
            else:
                job.future.set_exception(job.error)

    # ---- around it ------------------------------------------------------------------------

    def statistics(self) -> TurnStatistics:
        with self._lock:
            return TurnStatistics(
                waiting_jobs=self._places.used,
                waiting_turns=self._waiting_turns,
                busy_workers=len(self._threads) - self._idle,
                workers=self._workers,
                turns_total=self._turns,
                refused_total=self._refused,
                mean_turn_s=self._mean_turn_s,
            )

    def close(self, wait_s: float = 0.0) -> None:
        """Refuse new jobs, fail those that wait, let the running turns end. Call it on the loop.

        Threads are daemons; `wait_s` > 0 blocks at most that long a thread for their end.
        """
        with self._lock:
            self._closed = True
            waiting = [job for lane in self._lanes.values() for job in lane.jobs.values()]
            for lane in self._lanes.values():
                lane.jobs.clear()
            self._places, self._waiting_turns = SharedBound(self._max_pending), 0
        for _ in self._threads:
            self._wake.put(None)
        for job in waiting:
            if not job.future.done():
                job.future.set_exception(_closing())
        if wait_s > 0:
            for thread in self._threads:
                thread.join(wait_s)


def _closing() -> Overloaded:
    return Overloaded("the server is shutting down", retry_after_s=SOON_S, reason="draining")
