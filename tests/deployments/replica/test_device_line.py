"""Who is told what when batches start, are returned and dropped, from either thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from device_jobs import job_of, values, worker_of
from fake_runtimes import Gated

from deployments.replica.jobs import Job
from runtimes.types import Batch, Result


class Busy:
    """A device that works on lease 1 of gateway `a` until `let`."""

    def __init__(self) -> None:
        self.runtime = Gated()
        self.worker = worker_of(self.runtime)
        self.line = self.worker.line
        self.first = self.put(job_of(1, "a"))

    def put(self, job: Job) -> Job:
        self.line.put(job)
        return job

    async def let(self, *jobs: Job) -> None:
        """Lets the device work; returns when all these jobs have their answers."""
        self.runtime.let.set()
        await asyncio.wait_for(asyncio.gather(self.first.done, *(j.done for j in jobs)), 5.0)


@pytest.fixture
async def busy() -> AsyncIterator[Busy]:
    busy = Busy()
    yield busy
    busy.runtime.let.set()
    busy.worker.close()


async def test_of_two_gateways_the_lower_rank_runs_and_the_other_goes_back(busy: Busy) -> None:
    high, low = busy.put(job_of(2, "a", tag=5.0)), busy.put(job_of(3, "b", tag=1.0))
    await busy.let(high, low)
    assert (high.returned, low.returned) == (True, False)
    assert values(busy.runtime) == [1, 3]
    assert (high.wait_s, high.service_s) == (0.0, 0.0)
    assert busy.line.inflight == 0


async def test_one_gateway_alone_never_gets_its_staged_batch_back(busy: Busy) -> None:
    staged = busy.put(job_of(2, "a", tag=9.0))
    await busy.let(staged)
    assert values(busy.runtime) == [1, 2]


async def test_an_urgent_batch_sends_its_own_gateways_bulk_one_back_at_once(busy: Busy) -> None:
    bulk = busy.put(job_of(2, "a", tag=9.0))
    urgent = busy.put(job_of(3, "a", tag=1.0))
    assert bulk.done.done()
    assert bulk.returned
    await busy.let(urgent)
    assert values(busy.runtime) == [1, 3]


async def test_one_too_many_goes_back_at_once(busy: Busy) -> None:
    staged, more = busy.put(job_of(2, "a")), busy.put(job_of(3, "a"))
    assert more.returned
    assert not staged.done.done()
    assert not busy.line.holds(more.key)


async def test_a_dropped_batch_never_runs_and_its_place_is_free(busy: Busy) -> None:
    staged = busy.put(job_of(2, "a"))
    assert busy.line.drop(staged.key)
    assert staged.returned
    assert not busy.line.drop(staged.key)
    after = busy.put(job_of(3, "a"))
    await busy.let(after)
    assert values(busy.runtime) == [1, 3]


async def test_a_running_batch_is_never_dropped(busy: Busy) -> None:
    assert not busy.line.drop(busy.first.key)
    await busy.let()
    assert not busy.first.returned


async def test_whoever_asked_hears_when_a_batch_starts(busy: Busy) -> None:
    staged = busy.put(job_of(2, "a"))
    running, waiting = busy.line.opened(busy.first.key), busy.line.opened(staged.key)
    assert running is not None
    assert waiting is not None
    assert running.result() is True
    assert not waiting.done()
    await busy.let(staged)
    assert waiting.result() is True


async def test_whoever_asked_hears_that_a_batch_never_will(busy: Busy) -> None:
    dropped = busy.put(job_of(2, "a"))
    first = busy.line.opened(dropped.key)
    busy.line.drop(dropped.key)
    returned = busy.put(job_of(3, "a", tag=5.0))
    second = busy.line.opened(returned.key)
    await busy.let(busy.put(job_of(4, "b")))
    assert first is not None
    assert second is not None
    assert (first.result(), second.result()) == (False, False)


async def test_nothing_is_known_of_a_batch_that_is_not_here(busy: Busy) -> None:
    assert busy.line.opened(("a", 99)) is None
    assert not busy.line.holds(("a", 99))


async def test_the_next_batch_runs_although_the_loop_stands_still(busy: Busy) -> None:
    for gateway in "abc":
        busy.put(job_of(2, gateway, tag=float(ord(gateway))))
    started, run = threading.Semaphore(0), busy.runtime.run
    assert busy.runtime.begun.wait(5.0)

    def counted(batch: Batch) -> Result:
        started.release()
        return run(batch)

    busy.runtime.run = counted  # type: ignore[method-assign]
    busy.runtime.let.set()
    assert started.acquire(timeout=5.0)  # without a turn of the loop
