"""A model replica without Ray: slots, the busy answer, and what every answer says of the replica.

At most `slots` batches a gateway are held, and in all never more than one running and `slots - 1`
staged for each gateway; one more gets a busy answer as a value, with the seconds until there may be
room. `held` and `seen` let each gateway compare its leases with the truth. An abandoned call keeps
its slot until the device is really free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deployments.queues.wire import BatchCall, BatchReply, to_batch
from deployments.replica.device_worker import DeviceWorker, Job

_FORGET_S = 60.0
_NO_STAGES = (0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Gateway:
    """What one gateway has here. `seen`: the highest lease id accepted from it."""

    held: set[int] = field(default_factory=set)
    seen: int = 0
    heard_at: float = 0.0


class ReplicaCore:
    """`clock`: seconds, monotonic."""

    def __init__(
        self, worker: DeviceWorker, slots: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._worker = worker
        self._slots = slots
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        self._mean_service_s = 0.0

    @property
    def inflight(self) -> int:
        return sum(len(gateway.held) for gateway in self._gateways.values())

    def _room(self) -> int:
        """One batch runs; every gateway may stage `slots - 1` behind it."""
        return 1 + len(self._gateways) * (self._slots - 1)

    def _gateway(self, name: str) -> _Gateway:
        now = self._clock()
        gateway = self._gateways.get(name)
        if gateway is None:
            # A gateway that was restarted has a new name; its old one may not keep its room.
            self._gateways = {
                n: g for n, g in self._gateways.items() if g.held or now - g.heard_at < _FORGET_S
            }
            gateway = self._gateways[name] = _Gateway()
        gateway.heard_at = now
        return gateway

    async def infer(self, call: BatchCall) -> BatchReply:
        """Raises what the runtime raised when it was not the fault of single rows."""
        batch = to_batch(call)
        gateway = self._gateway(call.gateway)
        if len(gateway.held) >= self._slots or self.inflight >= self._room():
            return self._busy(gateway)
        gateway.seen = max(gateway.seen, call.lease_id)
        gateway.held.add(call.lease_id)
        done = self._worker.submit(batch, call.budget_s)
        try:
            job = await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(lambda _: gateway.held.discard(call.lease_id))
            raise
        gateway.held.discard(call.lease_id)
        if job.fault is not None:
            raise job.fault
        return self._reply(gateway, job)

    def _reply(self, gateway: _Gateway, job: Job) -> BatchReply:
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
            held=len(gateway.held),
            seen=gateway.seen,
            retry_in_s=0.0,
            duty=self._worker.duty(),
        )

    def _busy(self, gateway: _Gateway) -> BatchReply:
        left = max(self._mean_service_s - self._worker.running_for_s(), 0.0005)
        return BatchReply(
            True, {}, (), 0.0, 0.0, 0, _NO_STAGES, self.inflight, len(gateway.held), gateway.seen,
            left, self._worker.duty(),
        )  # fmt: skip


async def watch_hangs(worker: DeviceWorker, every_s: float) -> None:
    """Runs beside the core until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        worker.check_hang()
