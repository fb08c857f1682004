"""The device's thread: one after another, hangs, budgets, the duty cycle."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest
from device_jobs import job_of, values, worker_of
from fake_runtimes import Gated, Moody

from deployments.replica.device_worker import DeviceWorker
from runtimes.errors import Unhealthy
from runtimes.types import Batch, Limits


async def test_batches_run_one_after_another_in_order() -> None:
    runtime = Gated()
    worker = worker_of(runtime, slots=3)
    jobs = [job_of(n) for n in (1, 2, 3)]
    for job in jobs:
        worker.line.put(job)
    runtime.let.set()
    await asyncio.gather(*(job.done for job in jobs))
    assert values(runtime) == [1, 2, 3]
    assert all(a.finished <= b.started for a, b in pairwise(jobs))
    worker.close()


async def test_a_run_past_the_limit_is_told_and_a_staged_batch_is_none() -> None:
    told: list[bool] = []
    runtime = Gated()
    worker = DeviceWorker(runtime, 2, hang_limit_s=5.0, on_hang=lambda: told.append(True))
    worker.check_hang()
    job = job_of(1)
    worker.line.put(job)
    assert runtime.begun.wait(5.0)
    worker.check_hang()
    assert told == []
    worker._hang_limit_s = 0.0
    worker.check_hang()
    assert told == [True]
    worker._hang_limit_s = 5.0
    runtime.let.set()
    await job.done
    assert worker.running_for_s() == 0.0
    worker.close()


async def test_a_job_that_nobody_waits_for_is_no_fault() -> None:
    runtime = Gated()
    worker = worker_of(runtime)
    left, stays = job_of(1), job_of(2)
    worker.line.put(left)
    worker.line.put(stays)
    left.done.cancel()
    runtime.let.set()
    assert (await stays.done).fault is None
    worker.close()


async def test_what_is_in_line_when_it_closes_is_still_run() -> None:
    runtime = Gated()
    worker = worker_of(runtime)
    jobs = [job_of(1), job_of(2)]
    for job in jobs:
        worker.line.put(job)
    worker.line.close()
    runtime.let.set()
    await asyncio.gather(*(job.done for job in jobs))
    worker._thread.join(5.0)
    assert not worker._thread.is_alive()


async def test_health_is_asked_between_the_running_batch_and_the_staged_one() -> None:
    runtime = Gated()
    worker = worker_of(runtime)
    first, second = job_of(1), job_of(2)
    worker.line.put(first)
    worker.line.put(second)
    assert runtime.begun.wait(5.0)
    asked: list[int] = []
    runtime.health = lambda: asked.append(len(runtime.batches))  # type: ignore[method-assign]
    health = asyncio.create_task(worker.health())
    await asyncio.sleep(0)
    runtime.let.set()
    await health
    await second.done
    assert asked == [1]
    worker.close()


async def test_health_raises_what_the_runtime_says() -> None:
    runtime = Moody(lambda value: None)
    worker = worker_of(runtime)

    def broken() -> None:
        raise Unhealthy("broken")

    runtime.health = broken  # type: ignore[method-assign]
    with pytest.raises(Unhealthy):
        await worker.health()
    worker.close()


async def test_the_duty_cycle_is_that_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("deployments.replica.device_worker.time.perf_counter", lambda: now[0])
    worker = worker_of(Gated())
    worker._busy_s, now[0] = 5.0, 10.0
    assert worker.duty() == pytest.approx(0.5)
    now[0] = 20.0
    assert worker.duty() == pytest.approx(0.0)
    worker._busy_s, now[0] = 15.0, 30.0
    assert worker.duty() == pytest.approx(1.0)
    worker.close()


async def test_a_batch_whose_budget_ran_out_is_not_run_and_counts_as_not_served() -> None:
    runtime = Moody(lambda value: None)
    worker = worker_of(runtime)
    worker.line.put(job_of(7, "other"))
    late = job_of(1, budget_s=-1.0, charges=((0, "x", 1.0),))
    worker.line.put(late)
    await late.done
    worker.close()
    assert [(error.row, error.callers_fault) for error in late.errors] == [(0, False)]
    assert (late.outputs, values(runtime)) == ({}, [7])
    assert worker.line.report("other").served == ()


class Ahead(Gated):
    """Puts a batch on its device while another runs; remembers which."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self.ahead: list[int] = []
        self.copied = threading.Event()

    def limits(self) -> Limits:
        return Limits((), (), device=self._device)

    def prefetch(self, batch: Batch) -> None:
        self.ahead.append(int(batch.inputs["x"].data[0]))
        self.copied.set()


async def test_batch_that_waits_is_put_on_the_device_while_another_computes() -> None:
    runtime = Ahead("cuda:0")
    worker = worker_of(runtime)
    runs, waits = job_of(1), job_of(2)
    worker.line.put(runs)
    assert runtime.begun.wait(5.0)
    worker.line.put(waits)
    assert runtime.copied.wait(5.0)
    assert runtime.ahead == [2]
    runtime.let.set()
    await asyncio.gather(runs.done, waits.done)
    assert values(runtime) == [1, 2]
    worker.close()


async def test_nothing_is_put_ahead_where_the_processors_compute() -> None:
    runtime = Ahead("cpu")
    worker = worker_of(runtime)
    jobs = [job_of(n) for n in (1, 2)]
    for job in jobs:
        worker.line.put(job)
    runtime.let.set()
    await asyncio.gather(*(job.done for job in jobs))
    assert runtime.ahead == []
    worker.close()
