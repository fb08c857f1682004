"""How many batches a replica holds, for whom, and what its answers say of that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from device_jobs import worker_of
from fake_runtimes import Gated, Moody
from fake_sessions import FakeSession, frame
from msgspec.structs import replace
from ragged_rows import ragged

from deployments.contract.channel.frames import (
    BatchCall,
    BatchReply,
    Kind,
    MessageError,
    RowError,
    encode_call,
)
from deployments.replica.replica_core import ReplicaCore
from deployments.replica.watchdogs import watch_hangs
from runtimes.errors import BadRows, RunError, Unhealthy
from runtimes.types import Batch, Ragged, Result, StageTimes


def call(lease_id: int, **more: Any) -> BatchCall:
    column = ragged("INT64", [np.array([lease_id])])
    lengths = np.array([1], dtype=np.int32).tobytes()
    return BatchCall(1.0, lengths, {"x": column}, None, **more)


class Held:
    """A core whose device waits until `let`, and gateways that connect with their first batch."""

    def __init__(self, slots: int) -> None:
        self.runtime = Gated()
        self.worker = worker_of(self.runtime, slots)
        self.core = ReplicaCore(self.worker)
        self.sessions: dict[str, FakeSession] = {}

    def session(self, gateway: str) -> FakeSession:
        session = self.sessions.get(gateway)
        if session is None:
            session = self.sessions[gateway] = FakeSession(gateway)
            self.core.joined(session)
        return session

    def take(self, gateway: str, lease_id: int, **more: Any) -> FakeSession:
        """A batch has come; its gateway."""
        session = self.session(gateway)
        said = frame(Kind.BATCH, lease_id, encode_call(call(lease_id, **more)))
        self.core.received(session, said)
        return session

    def say(self, kind: Kind, gateway: str, lease_id: int) -> None:
        self.core.received(self.session(gateway), frame(kind, lease_id))

    def leave(self, gateway: str) -> FakeSession:
        """Its connection is gone."""
        session = self.sessions.pop(gateway)
        self.core.left(session)
        return session

    def let(self) -> None:
        self.runtime.let.set()

    def refuses(self, gateway: str, lease_id: int) -> BatchReply:
        reply = self.take(gateway, lease_id).replies[lease_id]
        assert reply.busy
        return reply

    async def idle(self) -> None:
        await asyncio.wait_for(self.core.until_idle(), 5.0)


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    held = Held(slots=2)
    yield held
    held.let()
    await held.idle()
    held.worker.close()
    assert held.core.inflight == 0
    assert not any(held.core._held.values())


@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_a_gateway_has_as_many_slots_as_there_are_and_no_more(slots: int) -> None:
    held = Held(slots)
    taken = range(1, slots + 1)
    for lease_id in taken:
        held.take("a", lease_id)
    reply = held.refuses("a", slots + 1)
    assert (reply.held, reply.seen, reply.inflight) == (slots, slots, slots)
    assert (reply.outputs, reply.errors, reply.service_s, reply.wait_s) == ({}, (), 0.0, 0.0)
    assert reply.retry_in_s > 0
    held.let()
    replies = [await held.session("a").reply(lease_id) for lease_id in taken]
    assert [r.held for r in replies][-1] == 0
    held.worker.close()


async def test_a_batch_that_goes_back_is_told_when_what_started_instead_will_end(
    held: Held,
) -> None:
    a = held.take("a", 1)
    held.take("a", 2, rank=(0, 0, 5.0))
    b = held.take("b", 3, rank=(0, 0, 1.0), predicted_s=3.0)
    goes_on, run = threading.Event(), held.runtime.run
    assert held.runtime.begun.wait(5.0)

    def last_waits(batch: Batch) -> Result:
        assert goes_on.wait(5.0)
        return run(batch)

    held.runtime.run = last_waits  # type: ignore[method-assign]
    held.let()
    done, returned = await a.reply(1), await a.reply(2)
    assert (done.busy, returned.busy, returned.held) == (False, True, 0)
    assert 2.5 < returned.retry_in_s <= 3.0
    assert 2.5 < done.free_in_s <= 3.0
    goes_on.set()
    reply = await b.reply(3)
    assert (reply.virtual_time, reply.free_in_s) == ((1.0,), 0.0)


async def test_an_answer_tells_who_else_was_served_and_what_waits_elsewhere(held: Held) -> None:
    first = held.take("a", 1, charges=((0, "x", 1.0),), waiting=((0, "x", 2.0),))
    other = held.take("b", 1, rank=(0, 0, 1.0), waiting=((1, "y", 4.0),))
    held.let()
    mine, theirs = await first.reply(1), await other.reply(1)
    assert (mine.waiting, theirs.waiting) == (((1, "y", 4.0),), ((0, "x", 2.0),))
    assert (mine.served, len(theirs.served)) == ((), 1)
    assert theirs.served[0][:2] == (0, "x")
    assert theirs.served[0][2] == pytest.approx(mine.service_s)


def forget_when_it_was_told(held: Held, gateway: str) -> None:
    held.core._queue._staging._gateways[gateway].last_reported_at = 0.0  # long ago


async def test_what_waits_elsewhere_is_told_once_and_then_only_when_it_is_new(held: Held) -> None:
    held.let()
    await held.take("a", 1).reply(1)
    await held.take("b", 1, waiting=((1, "y", 4.0),)).reply(1)
    forget_when_it_was_told(held, "a")
    said = [(await held.take("a", lease_id).reply(lease_id)).waiting for lease_id in (2, 3)]
    assert said == [((1, "y", 4.0),), None]


async def test_a_gateway_that_connects_again_is_told_again_what_waits_elsewhere(held: Held) -> None:
    held.let()
    await held.take("b", 1, waiting=((1, "y", 4.0),)).reply(1)
    assert (await held.take("a", 1).reply(1)).waiting == ((1, "y", 4.0),)
    held.leave("a")
    assert (await held.take("a", 2).reply(2)).waiting == ((1, "y", 4.0),)


async def test_a_lease_whose_answer_comes_later_is_held_until_then(held: Held) -> None:
    """Both have left the device before the loop answers either."""
    a = held.take("a", 1)
    held.take("a", 2)
    held.let()
    until = time.monotonic() + 5.0
    while held.core.inflight and time.monotonic() < until:
        time.sleep(0.001)  # noqa: ASYNC251 - the loop is not to answer the first meanwhile
    replies = [await a.reply(1), await a.reply(2)]
    assert [(r.held, r.seen, r.inflight) for r in replies] == [(1, 2, 1), (0, 2, 0)]


# ---- gateways that go ---------------------------------------------------------------------------


async def test_what_runs_for_a_gateway_that_is_gone_keeps_its_place_until_its_end(
    held: Held,
) -> None:
    held.take("a", 1)
    b = held.take("b", 1)
    gone = held.leave("a")
    assert held.core.inflight == 2
    held.let()
    assert not (await b.reply(1)).busy
    await held.idle()
    assert len(held.runtime.batches) == 2
    assert gone.was_sent(Kind.REPLY) == []


async def test_what_a_gateway_that_is_gone_had_staged_is_not_run(held: Held) -> None:
    b = held.take("b", 1)
    held.take("a", 1)
    held.leave("a")
    assert held.core.inflight == 1
    held.let()
    await b.reply(1)
    await held.idle()
    assert len(held.runtime.batches) == 1


async def test_a_lease_of_a_connection_that_is_gone_is_not_taken_for_one_of_the_next(
    held: Held,
) -> None:
    old = held.take("a", 1)
    held.leave("a")
    with pytest.raises(MessageError, match="here already"):
        held.take("a", 1)
    held.let()
    await held.idle()
    assert not (await held.take("a", 2).reply(2)).busy
    assert old.was_sent(Kind.REPLY) == []
    assert held.session("a").was_sent(Kind.REPLY) == [2]


# ---- batches that cannot be taken or answered ---------------------------------------------------


async def test_a_batch_that_cannot_be_read_takes_no_place(held: Held) -> None:
    nope = replace(call(1), inputs={"x": Ragged("NOPE", np.empty(0), ((1,),))})
    with pytest.raises(MessageError):
        held.core.received(held.session("a"), frame(Kind.BATCH, 1, encode_call(nope)))
    assert held.core.inflight == 0
    held.let()
    assert not (await held.take("a", 1).reply(1)).busy


async def test_a_lease_that_is_here_already_is_refused_and_the_first_goes_on(held: Held) -> None:
    a = held.take("a", 1)
    with pytest.raises(MessageError, match="here already"):
        held.take("a", 1)
    held.let()
    assert not (await a.reply(1)).busy


async def test_a_device_that_is_ill_ends_its_batch_with_a_reason() -> None:
    moods: dict[int, Exception] = {1: Unhealthy("gone"), 2: RunError("bad"), 3: BadRows("worse")}
    worker = worker_of(Moody(moods.get))
    core, session = ReplicaCore(worker), FakeSession()
    core.joined(session)
    for lease_id in (1, 2, 3, 4):
        core.received(session, frame(Kind.BATCH, lease_id, encode_call(call(lease_id))))
        await session.until(lambda n=lease_id: n in session.replies or n in session.faults)
    assert session.faults == {1: "gone"}
    assert [session.replies[n].errors for n in (2, 3, 4)] == [
        (RowError(0, False, "bad"),), (RowError(0, True, "worse"),), ()
    ]  # fmt: skip
    worker.close()


async def test_an_answer_that_cannot_be_sent_is_a_fault_and_the_next_is_answered() -> None:
    class Odd(Moody):
        """Of row 1 it makes what no message can hold."""

        def run(self, batch: Batch) -> Result:
            if batch.inputs["x"].data.tolist() != [1]:
                return super().run(batch)
            data = np.empty(1, dtype=object)
            data[:] = [object()]
            return Result({"y": Ragged("BYTES", data, ((1,),))}, StageTimes(), 1)

    worker = worker_of(Odd(lambda value: None))
    core, session = ReplicaCore(worker), FakeSession()
    core.joined(session)
    for lease_id in (1, 2):
        core.received(session, frame(Kind.BATCH, lease_id, encode_call(call(lease_id))))
    assert not (await session.reply(2)).busy
    assert "object cannot be sent" in session.faults[1]
    await asyncio.wait_for(core.until_idle(), 5.0)
    worker.close()


# ---- what is said of batches --------------------------------------------------------------------


async def test_what_is_said_of_a_batch_that_has_not_come_is_not_kept(held: Held) -> None:
    """A connection keeps the order, so it is of one that has gone."""
    held.say(Kind.DROP, "a", 1)
    held.say(Kind.WATCH, "a", 1)
    a = held.take("a", 1)
    held.let()
    assert not (await a.reply(1)).busy
    assert a.was_sent(Kind.STARTED) == []


async def test_who_asks_after_the_start_is_told_at_once_and_after_the_end_not_at_all(
    held: Held,
) -> None:
    a = held.take("a", 1)
    held.say(Kind.WATCH, "a", 1)
    assert a.was_sent(Kind.STARTED) == [1]
    held.let()
    await a.reply(1)
    held.say(Kind.WATCH, "a", 1)
    assert a.was_sent(Kind.STARTED) == [1]


# ---- the end ------------------------------------------------------------------------------------


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
