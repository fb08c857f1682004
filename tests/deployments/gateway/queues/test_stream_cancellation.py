"""Callers of streams that leave, and requests whose time is up: before the start, while they wait,
in the middle, after the last piece. The replica is told, and its tokens are free."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from local_frames import to_gateway
from stream_bench import bench, read

from deployments.contract import errors
from deployments.contract.channel.frames import Kind
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.queues.pending_requests import BatchEnd

Describe = Callable[..., ModelDescription]


async def test_a_caller_that_leaves_the_queue_frees_its_place(description: Describe) -> None:
    async with bench(description) as b:
        full = b.submit(tokens=950)
        lease = await b.begun(1)
        waiting = b.submit(tokens=900)
        assert b.queue.waiting_rows == 1
        b.queue.cancel(waiting)
        assert b.queue.waiting_rows == 0
        with pytest.raises(errors.CallerLeft):
            await waiting.next()
        b.engines.say(lease, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(full) == b"x"
        assert not b.engines.aborted


async def test_a_caller_that_leaves_at_once_leaves_nothing_running(description: Describe) -> None:
    """A request is sent by the very step that decides where it runs: what was sent is aborted."""
    async with bench(description) as b:
        b.queue.cancel(b.submit())
        await b.settled()
        assert b.engines.aborted == [
            (asked.replica_id, asked.lease_id) for asked in b.engines.begun
        ]
        assert b.queue.calls.ends[BatchEnd.DROPPED] == len(b.engines.begun)


async def test_callers_that_leave_together_are_all_aborted_once(description: Describe) -> None:
    async with bench(description) as b:
        pending_requests = [b.submit() for _ in range(4)]
        await b.begun(4)
        for pending in pending_requests:
            b.queue.cancel(pending)
            b.queue.cancel(pending)
        assert b.engines.aborted == [("r0", asked.lease_id) for asked in b.engines.begun]


async def test_a_caller_that_leaves_in_the_middle_frees_its_tokens(description: Describe) -> None:
    async with bench(description) as b:
        pending = b.submit(tokens=100)
        b.engines.say(await b.begun(1), b"half", tokens=(100, 0, 1))
        assert await pending.next() == b"half"
        (replica,) = b.queue.snapshot().replicas
        assert replica.held >= 100
        b.queue.cancel(pending)
        await b.settled()
        (replica,) = b.queue.snapshot().replicas
        assert replica.held == 0
        assert b.queue.calls.ends[BatchEnd.DROPPED] == 1


async def test_a_caller_that_leaves_after_the_last_piece_aborts_nothing(
    description: Describe,
) -> None:
    async with bench(description) as b:
        pending = b.submit()
        b.engines.say(await b.begun(1), b"all", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"all"
        b.queue.cancel(pending)
        await b.settled()
        assert not b.engines.aborted


async def test_a_run_that_ends_while_its_abort_is_on_the_way_is_ended_once(
    description: Describe,
) -> None:
    async with bench(description) as b:
        b.engines.deaf.add("r0")
        pending = b.submit()
        lease = await b.begun(1)
        b.queue.cancel(pending)
        b.engines.say(lease, b"all", tokens=(1, 0, 1), end=StreamEnd.DONE)
        await b.engines.until_aborted(1)
        await b.settled()
        assert b.queue.calls.ends[BatchEnd.DROPPED] == 1


async def test_what_a_lost_run_still_says_is_stopped_and_given_to_nobody(
    description: Describe,
) -> None:
    async with bench(description, 2) as b:
        pending = b.submit()
        lease, replica = await b.begun(1), b.engines.begun[0].replica_id
        b.engines.listener.received(replica, to_gateway(Kind.FAULT, lease, [b"lost sight of it"]))
        second = await b.begun(2)
        b.engines.say(lease, b"stale", tokens=(1, 0, 1))
        await b.engines.until_aborted(1)
        assert b.engines.aborted == [(replica, lease)]
        b.engines.say(second, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"x"


async def test_a_model_that_is_withdrawn_refuses_what_waits_and_ends_what_runs(
    description: Describe,
) -> None:
    async with bench(description) as b:
        running = b.submit(tokens=950)
        lease = await b.begun(1)
        waiting = b.submit(tokens=900)
        b.queue.close()
        with pytest.raises(errors.NotReady):
            await waiting.next()
        b.engines.say(lease, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(running) == b"x"
