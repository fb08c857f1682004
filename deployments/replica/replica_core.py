"""A model replica without Ray: takes batches in, and says with every answer how things stand here.

A batch that was not started, whoever's choice that was, gets a busy answer. `held` and `seen` let
each gateway compare its leases with the truth. What a gateway that is gone had staged is returned,
what runs for it runs to its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial

from deployments.contract.channel.frames import Buffer, Frame, Kind
from deployments.contract.channel.messages import (
    BatchCall,
    BatchReply,
    MessageError,
    decode_call,
    encode_reply,
    to_batch,
)
from deployments.replica.channel_server import Session
from deployments.replica.device import DeviceWorker, Job
from routers.staging import Staged
from routers.types import FlowWork, Report

logger = logging.getLogger("headrace.replica")


class ReplicaCore:
    """A `LeaseCore`."""

    def __init__(self, worker: DeviceWorker) -> None:
        self._worker = worker
        self._queue = worker.queue
        self._held: dict[Session, set[int]] = {}
        self._last_reported: dict[Session, tuple[FlowWork, ...]] = {}
        self._leaving = False
        self._ended = asyncio.Event()

    @property
    def inflight(self) -> int:
        return self._queue.inflight

    # ---- `LeaseCore` --------------------------------------------------------------------------

    def joined(self, session: Session) -> None:
        self._held[session] = set()

    def left(self, session: Session) -> None:
        self._last_reported.pop(session, None)
        for lease_id in list(self._held.pop(session, ())):
            self._queue.drop((session.gateway, lease_id))

    def received(self, session: Session, frame: Frame) -> None:
        key = session.gateway, frame.lease_id
        if frame.kind is Kind.BATCH:
            self._take_in(session, frame.lease_id, decode_call(frame.body))
        elif frame.kind is Kind.DROP:
            self._queue.drop(key)
        elif frame.kind is Kind.WATCH:
            self._queue.watch(key, partial(self._started, session))
        else:
            raise MessageError(f"{frame.kind.name} to a replica that takes batches")

    def leave(self) -> None:
        self._leaving = True

    async def until_idle(self) -> None:
        while self.inflight or any(self._held.values()):
            self._ended.clear()
            await self._ended.wait()

    # ---- batches ------------------------------------------------------------------------------

    def _take_in(self, session: Session, lease_id: int, call: BatchCall) -> None:
        if lease_id in self._held[session] or self._queue.holds((session.gateway, lease_id)):
            raise MessageError(f"lease {lease_id} is here already")
        staged = Staged(session.gateway, lease_id, call.rank, call.predicted_s, call.charges)
        on_start = partial(self._started, session) if call.tells_start else None
        job = Job(
            staged, to_batch(call), partial(self._done, session), time.perf_counter(),
            call.budget_s, on_start,
        )  # fmt: skip
        self._held[session].add(lease_id)
        if self._leaving:
            job.returned = True
            self._done(session, job)
        else:
            self._queue.put(job, call.waiting)

    def _started(self, session: Session, job: Job) -> None:
        session.send(Kind.STARTED, job.staged.lease_id)

    def _done(self, session: Session, job: Job) -> None:
        self._ended.set()
        if session in self._held:
            lease_id = job.staged.lease_id
            self._held[session].discard(lease_id)
            kind, body = self._answer(session, job)
            session.send(kind, lease_id, body)

    def _answer(self, session: Session, job: Job) -> tuple[Kind, Sequence[Buffer]]:
        """What a runtime made that no message can hold costs this batch alone."""
        fault = job.fault
        if fault is None:
            try:
                return Kind.REPLY, encode_reply(self._reply(session, job))
            except Exception as unsendable:
                logger.exception("a batch's answer cannot be sent")
                fault = unsendable
        return Kind.FAULT, [str(fault).encode("utf-8", "replace")]

    def _report(self, job: Job) -> Report:
        if job.returned and self._leaving:
            return Report()
        return self._queue.report(job.staged.gateway, job.service_s, job.result.padded_tokens)

    def _reply(self, session: Session, job: Job) -> BatchReply:
        report, result, t = self._report(job), job.result, job.result.times
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
            waiting=self._news(session, report.waiting),
        )

    def _news(self, session: Session, waiting: tuple[FlowWork, ...]) -> tuple[FlowWork, ...] | None:
        """What waits elsewhere, None when it was told so on this connection before."""
        if self._last_reported.get(session) is waiting:
            return None
        self._last_reported[session] = waiting
        return waiting


async def watch_hangs(worker: DeviceWorker, every_s: float) -> None:
    """Runs beside the core until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        worker.check_hang()
