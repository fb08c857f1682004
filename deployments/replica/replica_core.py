"""A replica that runs batches, without Ray: takes batches in and answers them.

Every answer says what the replica holds. `held` and `seen` let each gateway compare its leases with
those that the replica has. A batch that was not started, for whatever reason, gets a busy answer.
When a gateway is gone, its staged batches are returned, and its running one runs to its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial

from deployments.contract.channel.frames import (
    BatchCall,
    BatchReply,
    Buffer,
    Frame,
    Kind,
    MessageError,
    decode_call,
    encode_reply,
    to_batch,
)
from deployments.replica.channel_server import GatewayConnection
from deployments.replica.device import DeviceWorker, Job
from routers.api.requests import FlowWork, Report
from routers.batch.staging import Staged

logger = logging.getLogger("headrace.replica")


class ReplicaCore:
    """A `LeaseCore` for batches."""

    def __init__(self, worker: DeviceWorker) -> None:
        self._worker = worker
        self._queue = worker.queue
        self._held: dict[GatewayConnection, set[int]] = {}  # leases that are not answered yet
        # `waiting`, as sent
        self._last_reported: dict[GatewayConnection, tuple[FlowWork, ...]] = {}
        self._leaving = False
        self._ended = asyncio.Event()

    @property
    def inflight(self) -> int:
        return self._queue.inflight

    # ---- `LeaseCore` --------------------------------------------------------------------------

    def joined(self, link: GatewayConnection) -> None:
        self._held[link] = set()

    def left(self, link: GatewayConnection) -> None:
        self._last_reported.pop(link, None)
        for lease_id in list(self._held.pop(link, ())):
            self._queue.drop((link.gateway, lease_id))

    def received(self, link: GatewayConnection, frame: Frame) -> None:
        key = link.gateway, frame.lease_id
        if frame.kind is Kind.BATCH:
            self._take_in(link, frame.lease_id, decode_call(frame.body))
        elif frame.kind is Kind.DROP:
            self._queue.drop(key)
        elif frame.kind is Kind.WATCH:
            self._queue.watch(key, partial(self._started, link))
        else:
            raise MessageError(f"{frame.kind.name} to a replica that takes batches")

    def leave(self) -> None:
        self._leaving = True

    async def until_idle(self) -> None:
        while self.inflight or any(self._held.values()):
            self._ended.clear()
            await self._ended.wait()

    # ---- batches ------------------------------------------------------------------------------

    def _take_in(self, link: GatewayConnection, lease_id: int, call: BatchCall) -> None:
        if lease_id in self._held[link] or self._queue.holds((link.gateway, lease_id)):
            raise MessageError(f"lease {lease_id} is here already")
        staged = Staged(link.gateway, lease_id, call.rank, call.predicted_s, call.charges)
        on_start = partial(self._started, link) if call.tells_start else None
        job = Job(
            staged, to_batch(call), partial(self._done, link), time.perf_counter(),
            call.budget_s, on_start,
        )  # fmt: skip
        self._held[link].add(lease_id)
        if self._leaving:
            job.returned = True
            self._done(link, job)
        else:
            self._queue.put(job, call.waiting)

    def _started(self, link: GatewayConnection, job: Job) -> None:
        link.send(Kind.STARTED, job.staged.lease_id)

    def _done(self, link: GatewayConnection, job: Job) -> None:
        self._ended.set()
        if link in self._held:
            lease_id = job.staged.lease_id
            self._held[link].discard(lease_id)
            kind, body = self._answer(link, job)
            link.send(kind, lease_id, body)

    def _answer(self, link: GatewayConnection, job: Job) -> tuple[Kind, Sequence[Buffer]]:
        """The answer's frame. An output that no message can hold fails this batch only."""
        if job.fault is not None:
            return Kind.FAULT, [str(job.fault).encode("utf-8", "replace")]
        try:
            return Kind.REPLY, encode_reply(self._reply(link, job), link.version)
        except Exception as unsendable:
            logger.exception("a batch's answer cannot be sent")
            return Kind.UNSENT, [str(unsendable).encode("utf-8", "replace")]

    def _reply(self, link: GatewayConnection, job: Job) -> BatchReply:
        result, t = job.result, job.result.times
        report = Report()
        if not (job.returned and self._leaving):
            report = self._queue.report(job.staged.gateway, job.service_s)
        known = self._last_reported.get(link) is report.waiting  # this connection was told before
        self._last_reported[link] = report.waiting
        # A lease that left the device while an earlier answer was on its way counts: the gateway
        # still takes it for open.
        held = sum(lease_id <= report.seen for lease_id in self._held[link])
        return BatchReply(
            busy=job.returned,
            outputs=result.outputs,
            errors=result.errors,
            wait_s=job.wait_s,
            service_s=report.service_s,
            padded_tokens=result.padded_tokens,
            stages=(t.pad_s, t.copy_in_s, t.run_s, t.copy_out_s, t.post_s),
            inflight=report.inflight - report.held + held,
            held=held,
            seen=report.seen,
            retry_in_s=report.retry_in_s,
            duty=self._worker.duty(),
            free_in_s=report.free_in_s,
            virtual_time=report.virtual_time,
            served=report.served,
            waiting=None if known else report.waiting,
            memory_faults=result.memory_faults,
            device_memory=self._worker.device_memory,
        )
