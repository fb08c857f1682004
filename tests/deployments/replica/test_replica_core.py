"""How many batches a replica holds, for whom, and what its answers say of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from fake_runtimes import Gated

from deployments.queues.wire import BatchCall, BatchReply, Column, pack
from deployments.replica.device_worker import DeviceWorker
from deployments.replica.replica_core import ReplicaCore, watch_hangs


def call(gateway: str, lease_id: int, value: int = 1) -> BatchCall:
    column = pack("INT64", [np.array([value])], None)
    lengths = np.array([1], dtype=np.int32).tobytes()
    return BatchCall(gateway, lease_id, 1.0, lengths, {"x": column}, None)


class Held:
    """A core whose device waits until `let`."""

    def __init__(self, slots: int) -> None:
        self.now = 0.0
        self.runtime = Gated()
        self.worker = DeviceWorker(self.runtime, hang_limit_s=5.0, on_hang=lambda: None)
        self.core = ReplicaCore(self.worker, slots, clock=lambda: self.now)

    def take(self, gateway: str, lease_id: int) -> asyncio.Task[BatchReply]:
        return asyncio.create_task(self.core.infer(call(gateway, lease_id)))

    def let(self) -> None:
        self.runtime.let.set()

    async def refuses(self, gateway: str, lease_id: int) -> BatchReply:
        reply = await self.take(gateway, lease_id)
        assert reply.busy
        return reply


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    held = Held(slots=2)
    yield held
    held.let()
    held.worker.close()


@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_a_gateway_has_as_many_slots_as_there_are_and_no_more(slots: int) -> None:
    held = Held(slots)
    taken = [held.take("a", n) for n in range(1, slots + 1)]
    await asyncio.sleep(0)
    reply = await held.refuses("a", slots + 1)
    assert (reply.held, reply.seen, reply.inflight) == (slots, slots, slots)
    assert (reply.outputs, reply.errors) == ({}, ())
    assert reply.retry_in_s > 0
    held.let()
    replies = await asyncio.gather(*taken)
    assert [r.held for r in replies][-1] == 0
    held.worker.close()


async def test_every_gateway_may_stage_one_batch_behind_the_running_one(held: Held) -> None:
    taken = [held.take("a", 1), held.take("a", 2)]
    await asyncio.sleep(0)
    taken.append(held.take("b", 1))
    await asyncio.sleep(0)
    assert held.core.inflight == 3
    reply = await held.refuses("b", 2)
    assert (reply.held, reply.seen, reply.inflight) == (1, 1, 3)
    held.let()
    await asyncio.gather(*taken)


async def test_an_answer_tells_its_own_gateway_what_that_still_holds(held: Held) -> None:
    first, second, other = held.take("a", 1), held.take("a", 2), held.take("b", 7)
    await asyncio.sleep(0)
    held.let()
    replies = await asyncio.gather(first, second, other)
    assert [r.seen for r in replies] == [2, 2, 7]
    assert [r.held for r in replies][1:] == [0, 0]
    assert held.core.inflight == 0


async def test_an_abandoned_call_keeps_its_slot_until_the_device_is_free(held: Held) -> None:
    abandoned, stays = held.take("a", 1), held.take("a", 2)
    await asyncio.sleep(0)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    assert held.core.inflight == 2
    await held.refuses("a", 3)
    held.let()
    reply = await stays
    assert (reply.held, held.core.inflight) == (0, 0)


async def test_a_call_that_cannot_be_read_takes_no_slot(held: Held) -> None:
    with pytest.raises(KeyError):
        await held.core.infer(call("a", 1)._replace(inputs={"x": Column("NOPE", b"", None)}))
    assert held.core.inflight == 0


async def test_a_gateway_that_went_gives_its_room_back(held: Held) -> None:
    held.let()
    await held.take("old", 1)
    held.runtime.let.clear()
    held.now = 60.0
    taken = [held.take("new", 1), held.take("new", 2)]
    await asyncio.sleep(0)
    assert held.core._room() == 2
    held.let()
    await asyncio.gather(*taken)


async def test_hangs_are_looked_for_until_cancelled() -> None:
    class Worker:
        looked = 0

        def check_hang(self) -> None:
            self.looked += 1
            if self.looked == 3:
                task.cancel()

    worker = Worker()
    task = asyncio.create_task(watch_hangs(worker, 0.0))  # type: ignore[arg-type]
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.looked == 3
