"""A replica over its limit says which batch it was at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from device_jobs import job_of, worker_of
from fake_runtimes import Gated

from deployments.replica import watchdogs
from deployments.replica.watchdogs import MemoryLimit, watch_memory

MIB = 1 << 20


async def test_up_to_the_limit_nothing_is_wrong() -> None:
    limit = MemoryLimit(100 * MIB)
    assert limit.breach(100 * MIB, None) == ""
    assert limit.breach(100 * MIB, job_of(1)) == ""


async def test_a_breach_names_the_batch_and_what_it_has_grown_by() -> None:
    limit, job = MemoryLimit(100 * MIB), job_of(7, "gateway-0")
    limit.breach(60 * MIB, None)
    limit.breach(70 * MIB, job)
    said = limit.breach(101 * MIB, job)
    assert said == (
        "101 MiB resident, 100 allowed (memory_limit_mib); 41 MiB of it since a batch of 1 rows of "
        "up to 1 tokens began (gateway gateway-0, lease 7)"
    )


async def test_growth_is_counted_from_the_batch_that_runs_on() -> None:
    limit, first, second = MemoryLimit(100 * MIB), job_of(1), job_of(2)
    limit.breach(60 * MIB, first)
    limit.breach(90 * MIB, first)
    assert "12 MiB of it since" in limit.breach(102 * MIB, second)


async def test_a_breach_while_nothing_runs_is_nobody_s() -> None:
    assert MemoryLimit(MIB).breach(2 * MIB, None).endswith("and no batch runs")


async def test_the_watch_tells_of_the_batch_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdogs, "EVERY_S", 0.0)
    runtime = Gated()
    worker = worker_of(runtime)
    job = job_of(5)
    worker.queue.put(job)
    assert runtime.begun.wait(5.0)
    told: asyncio.Queue[str] = asyncio.Queue()
    watch = asyncio.create_task(watch_memory(lambda: (worker.running, ""), 1, told.put_nowait))
    assert "lease 5" in await told.get()
    watch.cancel()
    runtime.let.set()
    await job.done
    worker.close()


async def test_of_several_models_the_one_whose_batch_ran_is_named() -> None:
    limit, job = MemoryLimit(100 * MIB), job_of(7)
    limit.breach(70 * MIB, job, "reranker")
    said = limit.breach(101 * MIB, job, "reranker")
    assert "31 MiB of it since a batch of 1 rows of up to 1 tokens of model reranker began" in said


async def test_no_batch_is_blamed_for_what_a_load_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdogs, "EVERY_S", 0.0)
    resident_mib = iter([40, 120, 90, 95, 101])
    memory = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(resident_mib, 101) * MIB))
    monkeypatch.setattr(watchdogs.psutil, "Process", lambda: memory)
    loads, job = iter([True, True, True, False, False]), job_of(3)
    told: asyncio.Queue[str] = asyncio.Queue()
    watch = asyncio.create_task(
        watch_memory(lambda: (job, "m"), 100, told.put_nowait, lambda: next(loads, False))
    )
    said = await told.get()
    watch.cancel()
    assert "; 11 MiB of it since a batch of 1 rows of up to 1 tokens of model m began" in said
