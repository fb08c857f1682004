"""A model replica without Ray: takes batches in, and says with every answer how things stand here.

A batch that was not started, whoever's choice that was, gets a busy answer as a value. `held` and
`seen` let each gateway compare its leases with the truth. Calls may overtake each other on their
way, so what is said of a batch that has not come yet is kept for a while. A batch whose call was
abandoned is dropped unless it runs.
"""

from __future__ import annotations

import asyncio
import time

from deployments.contract.wire import BatchCall, BatchReply, to_batch
from deployments.replica.device import DeviceWorker, Job, Key
from routers.staging import Staged
from routers.types import FlowWork, Report

_MOST_GATEWAYS = 64
_ARRIVES_S = 1.0  # how much later a batch may come than what is said of it


class ReplicaCore:
    def __init__(self, worker: DeviceWorker) -> None:
        self._worker = worker
        self._queue = worker.queue
        self._loop = asyncio.get_running_loop()
        self._last_reported: dict[str, tuple[FlowWork, ...]] = {}
        self._dropped: set[Key] = set()
        self._unseen: dict[Key, asyncio.Future[bool]] = {}

    @property
    def inflight(self) -> int:
        return self._queue.inflight

    async def infer(self, call: BatchCall) -> BatchReply:
        """Raises what the runtime raised when it was not the fault of single rows."""
        job = self._job(call)
        if job.key in self._dropped:
            self._dropped.discard(job.key)
            job.returned = True
            return self._reply(job, Report())
        job.opened = self._unseen.pop(job.key, None)
        self._queue.put(job, call.waiting)
        try:
            await job.done
        except asyncio.CancelledError:
            self._queue.drop(job.key)
            raise
        if job.fault is not None:
            raise job.fault
        service_s = job.service_s
        return self._reply(
            job, self._queue.report(call.gateway, service_s, job.result.padded_tokens)
        )

    def drop(self, gateway: str, lease_id: int) -> bool:
        """Nobody waits for this batch: it is returned unless it has started; whether it was."""
        key = gateway, lease_id
        dropped = self._queue.drop(key)
        if not dropped and not self._queue.holds(key):
            self._dropped.add(key)
            self._loop.call_later(_ARRIVES_S, self._dropped.discard, key)
        return dropped

    async def opened(self, gateway: str, lease_id: int) -> bool:
        """Returns when the batch starts: True; False once it never will."""
        key = gateway, lease_id
        future = self._queue.opened(key)
        if future is None:
            future = self._unseen[key] = self._loop.create_future()
            self._loop.call_later(_ARRIVES_S, self._has_not_come, key)
        return await future

    def _has_not_come(self, key: Key) -> None:
        future = self._unseen.pop(key, None)
        if future is not None and not future.done():
            future.set_result(False)

    def _job(self, call: BatchCall) -> Job:
        staged = Staged(call.gateway, call.lease_id, call.rank, call.predicted_s, call.charges)
        done: asyncio.Future[Job] = self._loop.create_future()
        return Job(staged, to_batch(call), done, time.perf_counter(), call.budget_s)

    def _reply(self, job: Job, report: Report) -> BatchReply:
        result, t = job.result, job.result.times
        return BatchReply(
            busy=job.returned,
            outputs=result.outputs,
            errors=result.errors,
            wait_s=job.wait_s,
            service_s=report.service_s,
            padded_tokens=report.padded_tokens,
            stages=(t.pad_s, t.copy_in_s, t.run_s, t.copy_out_s, t.post_s),
            inflight=report.inflight,
            held=report.held,
            seen=report.seen,
            retry_in_s=report.retry_in_s,
            duty=self._worker.duty(),
            free_in_s=report.free_in_s,
            virtual_time=report.virtual_time,
            served=report.served,
            waiting=self._news(job.staged.gateway, report.waiting),
        )

    def _news(self, gateway: str, waiting: tuple[FlowWork, ...]) -> tuple[FlowWork, ...] | None:
        """What waits elsewhere, None when this gateway was told so before."""
        if self._last_reported.get(gateway) is waiting:
            return None
        if len(self._last_reported) > _MOST_GATEWAYS:
            self._last_reported.clear()  # gateways that were restarted have new names
        self._last_reported[gateway] = waiting
        return waiting


async def watch_hangs(worker: DeviceWorker, every_s: float) -> None:
    """Runs beside the core until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        worker.check_hang()
