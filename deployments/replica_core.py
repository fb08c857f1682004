"""A model replica without Ray: slots, the busy answer, and what every answer says of the replica.

At most `slots` batches a gateway are held, and in all never more than one running and `slots - 1`
staged for each gateway; one more gets a busy answer as a value, with the seconds until there may be
room. `held` and `seen` let each gateway compare its leases with the truth. An abandoned call keeps
its slot until the device is really free.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from deployments.device_worker import DeviceWorker, Job
from deployments.wire import BatchCall, BatchReply, to_batch

_NO_STAGES = (0.0, 0.0, 0.0, 0.0, 0.0)


class ReplicaCore:
    def __init__(self, worker: DeviceWorker, slots: int) -> None:
        self._worker = worker
        self._slots = slots
        self._held: defaultdict[str, set[int]] = defaultdict(set)
        self._seen: defaultdict[str, int] = defaultdict(int)
        self._mean_service_s = 0.0

    @property
    def inflight(self) -> int:
        return sum(len(leases) for leases in self._held.values())

    def _room(self) -> int:
        """One batch runs; every gateway may stage `slots - 1` behind it."""
        return 1 + len(self._seen) * (self._slots - 1)

    async def infer(self, call: BatchCall) -> BatchReply:
        """Raises what the runtime raised when it is neither `BadRows` nor `RunError`."""
        self._seen[call.gateway] = max(self._seen[call.gateway], call.lease_id)
        if len(self._held[call.gateway]) >= self._slots or self.inflight >= self._room():
            return self._busy(call.gateway)
        self._held[call.gateway].add(call.lease_id)
        done = self._worker.submit(to_batch(call))
        try:
            job = await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(lambda _: self._release(call))
            raise
        self._release(call)
        if job.fault is not None:
            raise job.fault
        return self._reply(call, job)

    def _release(self, call: BatchCall) -> None:
        self._held[call.gateway].discard(call.lease_id)

    def _reply(self, call: BatchCall, job: Job) -> BatchReply:
        service_s = job.finished - job.started
        self._mean_service_s += 0.2 * (service_s - self._mean_service_s)
        t = job.times
        return BatchReply(
            busy=False,
            outputs=job.outputs,
            errors=job.errors,
            wait_s=job.started - job.arrived,
            service_s=service_s,
            padded_tokens=job.padded_tokens,
            stages=(t.pad_s, t.copy_in_s, t.run_s, t.copy_out_s, t.post_s),
            inflight=self.inflight,
            held=len(self._held[call.gateway]),
            seen=self._seen[call.gateway],
            retry_in_s=0.0,
            duty=self._worker.duty(),
        )

    def _busy(self, gateway: str) -> BatchReply:
        left = max(self._mean_service_s - self._worker.running_for_s(), 0.0005)
        return BatchReply(
            True, {}, (), 0.0, 0.0, 0, _NO_STAGES, self.inflight, len(self._held[gateway]),
            self._seen[gateway], left, self._worker.duty(),
        )  # fmt: skip


async def watch_hangs(worker: DeviceWorker, every_s: float) -> None:
    """Runs beside the core until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        worker.check_hang()
