"""Jobs for tests: one row each, its value the lease's id unless told otherwise."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from deployments.replica.device import DeviceWorker, HangLimits, Job
from routers.batch.staging import Staged
from runtimes.types import Batch, Ragged, Runtime


class WaitedJob(Job):
    """A job that a test waits for: `done` resolves when it has run or was returned, which it hears
    once."""

    done: asyncio.Future[Job]


def job_of(
    lease_id: int, gateway: str = "g", *, tag: float = 0.0, budget_s: float = 60.0, **more: Any
) -> WaitedJob:
    ids = Ragged("INT64", np.array([lease_id], dtype=np.int64), ((1,),))
    batch = Batch(1, np.ones(1, dtype=np.int64), {"x": ids})
    done: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
    staged = Staged(gateway, lease_id, (0, 0, tag), **more)
    job = WaitedJob(staged, batch, done.set_result, time.perf_counter(), budget_s)
    job.done = done
    return job


def worker_of(runtime: Runtime, slots: int = 2) -> DeviceWorker:
    return DeviceWorker(runtime, slots, limits=HangLimits(5.0), on_hang=lambda: None)


def values(runtime: Any) -> list[int]:
    """What a runtime was given, in order."""
    return [int(batch.inputs["x"].data[0]) for batch in runtime.batches]
