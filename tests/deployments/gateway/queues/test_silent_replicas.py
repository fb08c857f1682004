"""A queue whose dispatcher has taken work from a silent replica: each caller gets one answer, the
first, whoever gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from far_end import FarEnd, reply_of
from stream_bench import bench, read

from deployments.contract.channel.frames import Kind, RowError
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.queues.batch_queue import BatchQueue
from deployments.gateway.queues.dispatcher_driver import (
    DispatcherDriver,
    QueueRequest,
    VersionTerms,
    clock,
)
from deployments.gateway.queues.pending_requests import PendingBatchRequest
from deployments.gateway.rows import RowColumn, Rows
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Action
from routers.api.settings import DispatcherSettings

Describe = Callable[..., ModelDescription]
STUMBLED = (RowError(0, False, "stumbled"),)


def falls_silent(queue: DispatcherDriver[Any], replica_id: str) -> None:
    """As the dispatcher finds it when its time has come."""
    actions: list[Action] = []
    dispatcher, now = queue._dispatcher, clock()
    dispatcher._suspend(dispatcher._replicas.by_id[replica_id], now, actions)
    queue._perform([*actions, *dispatcher.decide(now)], now)


class Batches:
    """A queue of two replicas that hold one batch each."""

    def __init__(self) -> None:
        self.far = FarEnd()
        self.far.heeds = False
        settings = DispatcherSettings((8,), initial_cost_s=0.001, profile=((1, 1, 0.001),))
        self.queue = BatchQueue(settings, VersionTerms("v", "s"), self.far, on_batch=lambda _: None)
        self.queue.set_replicas([RunningReplica("r1"), RunningReplica("r2")], {"": 1})

    async def ask(self, rows: int = 1) -> PendingBatchRequest:
        arrays = [np.array([n], dtype=np.int64) for n in range(rows)]
        columns = {"x": RowColumn("INT64", arrays, [(1,)] * rows)}
        asked = Rows(rows, (1,) * rows, columns, None)
        pending = self.queue.submit(asked, VersionTerms("v", "s"), QueueRequest("t", 0, 60.0, 60.0))
        await asyncio.sleep(0)
        return pending

    async def reply(self, lease_id: int, *values: float, **more: Any) -> None:
        self.far.reply(lease_id, reply_of(*values, **more))
        await asyncio.sleep(0)


def value(pending: PendingBatchRequest) -> list[float]:
    return [float(answer.outputs["y"][1]) for answer in pending.future.result()]


async def test_the_row_is_sent_elsewhere_and_answered_from_there() -> None:
    b = Batches()
    pending = await b.ask()
    falls_silent(b.queue, b.far.sent[1])
    assert b.far.sent[2] != b.far.sent[1]
    await b.reply(2, 5.0)
    assert value(pending) == [5.0]
    await b.reply(1, 6.0)
    assert value(pending) == [5.0]
    assert b.queue.snapshot().leases == b.queue.inflight == 0


async def test_the_late_answer_is_given_and_the_second_one_ignored() -> None:
    b = Batches()
    pending = await b.ask()
    falls_silent(b.queue, b.far.sent[1])
    await b.reply(1, 6.0)
    assert value(pending) == [6.0]
    assert b.far.dropped == [1, 2]
    await b.reply(2, 5.0)
    assert value(pending) == [6.0]
    assert b.queue.snapshot().leases == b.queue.inflight == 0


async def test_a_row_that_waits_is_not_sent_after_its_late_answer_though_another_fails() -> None:
    b = Batches()
    first, second = await b.ask(2), await b.ask()  # both replicas are busy
    silent = b.far.sent[1]
    falls_silent(b.queue, silent)
    assert b.queue.waiting_rows == 2
    await b.reply(1, 6.0, failed=STUMBLED)
    assert not first.future.done()
    assert not second.future.done()
    assert b.queue.waiting_rows == 1  # the row that failed, which waited all the same
    await b.reply(2, 5.0)
    assert value(second) == [5.0]
    await b.reply(3, 7.0)
    assert value(first) == [7.0, 6.0]
    assert b.queue.snapshot().leases == b.queue.inflight == 0


async def test_any_word_of_a_silent_replica_is_passed_on() -> None:
    b = Batches()
    await b.ask()
    silent = b.far.sent[1]
    falls_silent(b.queue, silent)
    assert [each.suspended for each in b.queue.snapshot().replicas].count(True) == 1
    b.far.says(1, Kind.STARTED)
    assert not any(each.suspended for each in b.queue.snapshot().replicas)


@pytest.mark.parametrize("streams", [True, False])
async def test_generation_that_has_not_begun_runs_elsewhere(
    description: Describe, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(description, 2) as b:
        pending = b.submit(streams=streams)
        first = await b.begun(1)
        monkeypatch.setattr(b.queue.calls, "_notify", lambda run, kind: None)  # nobody hears it
        falls_silent(b.queue, b.engines.begun[0].replica_id)
        second = await b.begun(2)
        b.engines.say(second, b"x", tokens=(1, 0, 1))
        b.engines.say(first, b"late", tokens=(1, 0, 9), end=StreamEnd.DONE)
        await asyncio.sleep(0)
        b.engines.say(second, b"y", tokens=(1, 0, 2), end=StreamEnd.DONE)
        assert await read(pending) == b"xy"


async def test_generation_that_has_begun_goes_on(description: Describe) -> None:
    async with bench(description, 2) as b:
        pending = b.submit()
        lease = await b.begun(1)
        b.engines.say(lease, b"x", tokens=(1, 0, 1))
        assert await pending.next() == b"x"
        falls_silent(b.queue, b.engines.begun[0].replica_id)
        b.engines.say(lease, b"y", tokens=(1, 0, 2), end=StreamEnd.DONE)
        assert await read(pending) == b"y"
        assert len(b.engines.begun) == 1
