"""Two runs race for one caller: the first piece decides, nothing is given twice or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from fake_engines import Asked, until
from stream_bench import AT_ONCE, Bench, bench, read

from deployments.contract import errors
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.queues.pending_requests import BatchEnd, PendingStreamRequest

Describe = Callable[..., ModelDescription]


async def raced(b: Bench, *, streams: bool = True) -> tuple[PendingStreamRequest, Asked, Asked]:
    """A request, its first lease, and the copy."""
    pending = b.submit(streams=streams)
    await b.begun(2)
    first, copy = b.engines.begun
    assert first.replica_id != copy.replica_id
    return pending, first, copy


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("winner", [0, 1], ids=["first", "copy"])
async def test_the_first_piece_decides_and_the_other_run_is_aborted(
    description: Describe, winner: int, streams: bool
) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending, *runs = await raced(b, streams=streams)
        won, lost = runs[winner], runs[1 - winner]
        b.engines.say(won.lease_id, b"one ", tokens=(10, 0, 1))
        await b.engines.until_aborted(1)
        assert b.engines.aborted == [(lost.replica_id, lost.lease_id)]
        b.engines.say(won.lease_id, b"two", tokens=(10, 0, 2), end=StreamEnd.DONE)
        assert await read(pending) == b"one two"
        assert pending.replica_id == won.replica_id
        assert pending.repeats == 1
        await until(lambda: not b.queue.calls.count)
        assert b.queue.calls.ends[BatchEnd.ANSWERED] == b.queue.calls.ends[BatchEnd.DROPPED] == 1


async def test_pieces_that_cross_the_abort_are_given_to_nobody(description: Describe) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending, first, copy = await raced(b)
        b.engines.deaf = {first.replica_id, copy.replica_id}
        b.engines.say(copy.lease_id, b"a", tokens=(10, 0, 1))
        b.engines.say(first.lease_id, b"A", tokens=(10, 0, 1))
        b.engines.say(copy.lease_id, b"b", tokens=(10, 0, 2))
        b.engines.say(first.lease_id, b"B", tokens=(10, 0, 2), end=StreamEnd.DONE)
        b.engines.say(copy.lease_id, b"c", tokens=(10, 0, 3), end=StreamEnd.DONE)
        assert await read(pending) == b"abc"


async def test_both_pieces_in_one_turn_of_the_loop_are_one_answer(description: Describe) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending, first, copy = await raced(b)
        b.engines.deaf = {first.replica_id, copy.replica_id}
        b.engines.say(first.lease_id, b"x", tokens=(10, 0, 1), end=StreamEnd.DONE)
        b.engines.say(copy.lease_id, b"y", tokens=(10, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"x"


@pytest.mark.parametrize("end", [StreamEnd.BUSY, StreamEnd.FAILED, StreamEnd.ABORTED])
@pytest.mark.parametrize("gone", [0, 1], ids=["first", "copy"])
async def test_one_that_ends_without_a_piece_leaves_the_caller_to_the_other(
    description: Describe, gone: int, end: StreamEnd
) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending, *runs = await raced(b)
        b.engines.say(runs[gone].lease_id, end=end)
        await until(lambda: b.queue.calls.find(runs[gone].lease_id) is None)
        left = runs[1 - gone]
        b.engines.say(left.lease_id, b"x", tokens=(10, 0, 1))
        assert await pending.next() == b"x"
        b.engines.say(left.lease_id, b"y", tokens=(10, 0, 2), end=StreamEnd.DONE)
        assert await read(pending) == b"y"


@pytest.mark.parametrize("gone", [0, 1], ids=["first", "copy"])
async def test_a_replica_that_dies_in_a_race_is_not_noticed(
    description: Describe, gone: int
) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending, *runs = await raced(b)
        b.engines.kill(runs[gone].replica_id)
        await until(lambda: b.queue.calls.find(runs[gone].lease_id) is None)
        b.engines.say(runs[1 - gone].lease_id, b"x", tokens=(10, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"x"


async def test_when_the_winner_dies_after_a_piece_the_answer_ends_with_an_error(
    description: Describe,
) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending, _, copy = await raced(b)
        b.engines.say(copy.lease_id, b"half", tokens=(10, 0, 1))
        assert await pending.next() == b"half"
        b.engines.kill(copy.replica_id)
        with pytest.raises(errors.ReplicaLost):
            await asyncio.wait_for(read(pending), 5.0)


async def test_a_caller_that_leaves_in_a_race_frees_both(description: Describe) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending, first, copy = await raced(b)
        b.queue.cancel(pending)
        await b.engines.until_aborted(2)
        assert {lease for _, lease in b.engines.aborted} == {first.lease_id, copy.lease_id}


async def test_a_copy_says_nothing_of_who_pays_or_waits(description: Describe) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending, first, copy = await raced(b)
        assert first.call.charges
        assert (copy.call.charges, copy.call.waiting) == ((), None)
        assert copy.call.rank == first.call.rank
        b.queue.cancel(pending)
