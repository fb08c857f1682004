"""What does a batch cost that has nothing in it?

The smallest batch goes through the very thread and line that a replica has; what that takes beside
the run itself is the hop. What the backend adds to every batch is the cost model's launch.
"""

from __future__ import annotations

import asyncio
from statistics import median
from time import perf_counter

from deployments.replica.backend_loop import plain_batch
from deployments.replica.device import DeviceWorker, Job
from deployments.tools.profile.plan import Trial
from routers.staging import Staged
from runtimes.types import Runtime

_HANG_S = 60.0
_LEAST_HOPS = 20


def hop_s(runtime: Runtime, trial: Trial, seconds: float) -> float:
    """Median over about `seconds`; the backend's own faults come through."""
    return asyncio.run(_hops(runtime, trial, seconds))


async def _hops(runtime: Runtime, trial: Trial, seconds: float) -> float:
    worker = DeviceWorker(runtime, 1, hang_limit_s=_HANG_S, on_hang=lambda: None)
    batch = plain_batch(runtime.limits(), trial.lengths)
    found: list[float] = []
    end = perf_counter() + seconds
    try:
        while len(found) < _LEAST_HOPS or perf_counter() < end:
            begin = perf_counter()
            done: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
            worker.queue.put(Job(Staged("profile", len(found) + 1), batch, done, begin))
            job = await done
            if job.fault is not None:
                raise job.fault
            found.append(perf_counter() - begin - job.service_s)
    finally:
        worker.close()
    return median(found)
