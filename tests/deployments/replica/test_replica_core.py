"""How many batches a replica holds, for whom, and what its answers say of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from device_jobs import worker_of
from fake_runtimes import Gated

from deployments.contract.wire import BatchCall, BatchReply, Column, pack
from deployments.replica.replica_core import ReplicaCore, watch_hangs
from runtimes.types import Batch, Result


def call(gateway: str, lease_id: int, **more: Any) -> BatchCall:
    column = pack("INT64", [np.array([lease_id])], None)
    lengths = np.array([1], dtype=np.int32).tobytes()
    return BatchCall(gateway, lease_id, 1.0, lengths, {"x": column}, None, **more)


class Held:
    """A core whose device waits until `let`."""

    def __init__(self, slots: int) -> None:
        self.runtime = Gated()
        self.worker = worker_of(self.runtime, slots)
        self.core = ReplicaCore(self.worker)

    async def take(self, gateway: str, lease_id: int, **more: Any) -> asyncio.Task[BatchReply]:
        """A call that has arrived."""
        task = asyncio.create_task(self.core.infer(call(gateway, lease_id, **more)))
        await asyncio.sleep(0)
        return task

    def let(self) -> None:
        self.runtime.let.set()

    async def refuses(self, gateway: str, lease_id: int) -> BatchReply:
        reply = await (await self.take(gateway, lease_id))
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
    taken = [await held.take("a", n) for n in range(1, slots + 1)]
    await asyncio.sleep(0.001)
    reply = await held.refuses("a", slots + 1)
    assert (reply.held, reply.seen, reply.inflight) == (slots, slots, slots)
    assert (reply.outputs, reply.errors, reply.service_s, reply.wait_s) == ({}, (), 0.0, 0.0)
    assert reply.retry_in_s > 0
    held.let()
    replies = await asyncio.gather(*taken)
    assert [r.held for r in replies][-1] == 0
    held.worker.close()


async def test_a_batch_that_goes_back_is_told_when_what_started_instead_will_end(
    held: Held,
) -> None:
    first = await held.take("a", 1)
    mine = await held.take("a", 2, rank=(0, 0, 5.0))
    theirs = await held.take("b", 3, rank=(0, 0, 1.0), predicted_s=3.0)
    goes_on, run = threading.Event(), held.runtime.run
    assert held.runtime.begun.wait(5.0)

    def last_waits(batch: Batch) -> Result:
        assert goes_on.wait(5.0)
        return run(batch)

    held.runtime.run = last_waits  # type: ignore[method-assign]
    held.let()
    done, returned = await asyncio.gather(first, mine)
    assert (done.busy, returned.busy, returned.held) == (False, True, 0)
    assert 2.5 < returned.retry_in_s <= 3.0
    assert 2.5 < done.free_in_s <= 3.0
    goes_on.set()
    reply = await theirs
    assert (reply.virtual_time, reply.free_in_s) == ((1.0,), 0.0)


async def test_an_answer_tells_who_else_was_served_and_what_waits_elsewhere(held: Held) -> None:
    first = await held.take("a", 1, charges=((0, "x", 1.0),), waiting=((0, "x", 2.0),))
    other = await held.take("b", 1, rank=(0, 0, 1.0), waiting=((1, "y", 4.0),))
    held.let()
    mine, theirs = await asyncio.gather(first, other)
    assert (mine.waiting, theirs.waiting) == (((1, "y", 4.0),), ((0, "x", 2.0),))
    assert (mine.served, len(theirs.served)) == ((), 1)
    assert theirs.served[0][:2] == (0, "x")
    assert theirs.served[0][2] == pytest.approx(mine.service_s)


async def test_what_waits_elsewhere_is_told_once_and_then_only_when_it_is_new(held: Held) -> None:
    held.let()
    await (await held.take("a", 1))
    await (await held.take("b", 1, waiting=((1, "y", 4.0),)))
    held.core._queue._staging._gateways["a"].last_reported_at = 0.0  # long ago
    said = [(await (await held.take("a", lease_id))).waiting for lease_id in (2, 3)]
    assert said == [((1, "y", 4.0),), None]


async def test_an_answer_tells_its_own_gateway_what_that_still_holds(held: Held) -> None:
    first, other = await held.take("a", 1), await held.take("b", 7)
    held.let()
    replies = await asyncio.gather(first, other)
    assert [(r.held, r.seen) for r in replies] == [(0, 1), (0, 7)]
    assert held.core.inflight == 0


async def test_an_abandoned_call_keeps_its_slot_until_the_device_is_free(held: Held) -> None:
    abandoned, stays = await held.take("a", 1), await held.take("a", 2)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    assert held.core.inflight == 2
    await held.refuses("a", 3)
    held.let()
    reply = await stays
    assert (reply.held, held.core.inflight) == (0, 0)


async def test_an_abandoned_call_whose_batch_has_not_started_frees_its_place(held: Held) -> None:
    runs, abandoned = await held.take("a", 1), await held.take("a", 2)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    assert held.core.inflight == 1
    held.let()
    await runs
    assert len(held.runtime.batches) == 1


async def test_a_call_that_cannot_be_read_takes_no_slot(held: Held) -> None:
    with pytest.raises(KeyError):
        await held.core.infer(call("a", 1)._replace(inputs={"x": Column("NOPE", b"", None)}))
    assert held.core.inflight == 0


# ---- what is said of batches --------------------------------------------------------------------


async def test_a_dropped_batch_is_answered_busy_and_the_running_one_goes_on(held: Held) -> None:
    runs, staged = await held.take("a", 1), await held.take("a", 2)
    assert held.core.drop("a", 2)
    assert not held.core.drop("a", 1)
    assert (await staged).busy
    held.let()
    assert not (await runs).busy


async def test_a_batch_that_comes_after_it_was_dropped_is_not_taken(held: Held) -> None:
    assert not held.core.drop("a", 1)
    reply = await held.refuses("a", 1)
    assert (reply.seen, held.core.inflight) == (0, 0)
    held.let()
    assert not (await (await held.take("a", 1))).busy  # said once, acted on once


async def test_a_start_is_told_also_to_who_asked_before_the_batch_came(held: Held) -> None:
    early = asyncio.create_task(held.core.opened("a", 2))
    runs = await held.take("a", 1)
    staged = await held.take("a", 2)
    assert await held.core.opened("a", 1) is True
    assert not early.done()
    held.let()
    assert await early is True
    await asyncio.gather(runs, staged)


async def test_what_is_said_of_a_batch_that_never_comes_is_forgotten(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.replica.replica_core._ARRIVES_S", 0.001)
    held.core.drop("a", 8)
    assert await held.core.opened("a", 9) is False
    assert not held.core._unseen
    assert not held.core._dropped


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
