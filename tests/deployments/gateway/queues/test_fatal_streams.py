"""Which losses of replicas that stream count against a prompt, and when it is quarantined."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import pytest
from fake_engines import Refusal
from stream_bench import Bench, bench, read

from deployments.contract import errors
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.contract.registry import CrashedInput, CrashReport

Describe = Callable[..., ModelDescription]
IT, OTHER = b"it", b"other"


def hear(b: Bench, others: int, *inputs: CrashedInput) -> None:
    b.queue.crashes.on_report([CrashReport(inputs)], others, monotonic())


async def lost(b: Bench) -> None:
    """A replica, with the prompt on it."""
    begun = len(b.engines.begun)
    pending = b.submit(key=IT, repeatable=False)
    await b.begun(begun + 1)
    b.engines.kill(b.engines.begun[-1].replica_id)
    with pytest.raises(errors.HeadraceError):
        await read(pending)


async def test_an_answer_that_flowed_ends_quarantined_when_its_second_replica_does(
    description: Describe,
) -> None:
    async with bench(description, 2) as b:
        hear(b, 0)
        await lost(b)
        pending = b.submit(key=IT)
        b.engines.say(await b.begun(2), b"half", tokens=(1, 0, 1))
        assert await pending.next() == b"half"
        b.engines.kill(b.engines.begun[-1].replica_id)
        with pytest.raises(errors.RowQuarantined):
            await pending.next()


async def test_a_connection_that_breaks_twice_is_one_replica(description: Describe) -> None:
    async with bench(description, 1) as b:
        hear(b, 0)
        pending = b.submit(key=IT)
        for count in (1, 2):
            await b.begun(count)
            b.engines.disconnect("r0")
        with pytest.raises(errors.ReplicaLost):
            await read(pending)
        await b.up()


async def test_a_replica_that_cannot_read_a_request_lives_and_counts_for_nothing(
    description: Describe,
) -> None:
    async with bench(description, 2) as b:
        b.engines.refusal = Refusal.FAULT
        pending = b.submit(key=IT)
        b.engines.say(await b.begun(1), b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        await read(pending)
        assert not b.queue.crashes


async def test_what_had_not_begun_when_its_replica_was_lost_counts_for_nothing(
    description: Describe,
) -> None:
    """As where several replicas end together: the first one's requests are on their way to the
    next."""
    async with bench(description, 2) as b:
        hear(b, 0)
        pending = b.submit(key=IT)
        await b.begun(1)
        b.engines.refusal = Refusal.BREAK
        b.engines.kill(b.engines.begun[-1].replica_id)
        with pytest.raises(errors.ReplicaLost):
            await read(pending)
        assert not b.queue.crashes.is_quarantined(IT)
        await b.up_to(1)


async def test_who_has_left_has_sent_it_all_the_same(description: Describe) -> None:
    async with bench(description, 2) as b:
        hear(b, 0)
        for count in (1, 2):
            pending = b.submit(key=IT)
            replica = (await b.engines.until_begun(count)).replica_id
            b.engines.deaf.add(replica)
            b.queue.cancel(pending)
            await b.engines.until_aborted(count)
            b.engines.kill(replica)
            await b.up_to(2 - count)
        assert b.queue.crashes.is_quarantined(IT)


@pytest.mark.parametrize(("shares", "quarantined_by"), [(0, 3), (1, 3), (2, 4), (5, 5)])
async def test_a_prompt_elsewhere_that_was_on_the_same_replicas_puts_it_off(
    description: Describe, shares: int, quarantined_by: int
) -> None:
    """That one was on so many of the replicas, as its gateway says a moment after each loss."""
    async with bench(description, 5) as b:
        hear(b, 1)
        losses = 0
        while not b.queue.crashes.is_quarantined(IT):
            await lost(b)
            losses += 1
            names = tuple(asked.replica_id for asked in b.engines.begun[:shares])
            hear(b, 1, CrashedInput(OTHER, names, 60.0, convicted=False))
        assert losses == quarantined_by
