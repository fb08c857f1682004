"""Runs that the dispatcher wants back for more urgent work: whose, and what their callers get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stream_bench import SHAPE, bench, read

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription

Describe = Callable[..., ModelDescription]


async def test_a_run_of_which_its_caller_has_a_part_goes_on_and_another_gives_way(
    description: Describe,
) -> None:
    async with bench(description) as b:
        b.queue.retune(replace(b.queue._settings, preempt_streams=True))
        bulk = [b.submit(priority=2, streams=n > 0) for n in range(SHAPE.max_sequences)]
        await b.begun(len(bulk))
        whole, *shown = [asked.lease_id for asked in b.engines.begun]
        for lease in shown:
            b.engines.say(lease, b"half ", tokens=(10, 0, 0))
        assert [await each.next() for each in bulk[1:]] == [b"half "] * len(shown)
        urgent = b.submit(priority=0)
        await b.engines.until_aborted(1)
        assert b.engines.aborted == [("r0", whole)]
        b.engines.say(await b.begun(5), b"at once", tokens=(10, 0, 1), end=StreamEnd.DONE)
        assert await read(urgent) == b"at once"
        for lease in shown:
            b.engines.say(lease, b"whole", tokens=(10, 0, 2), end=StreamEnd.DONE)
        assert [await read(each) for each in bulk[1:]] == [b"whole"] * len(shown)
        b.engines.say(await b.begun(6), b"again", tokens=(10, 0, 1), end=StreamEnd.DONE)
        assert await read(bulk[0]) == b"again"
        assert b.queue.snapshot().preempted == 1


async def test_nothing_is_wanted_back_where_all_callers_have_a_part(description: Describe) -> None:
    async with bench(description) as b:
        b.queue.retune(replace(b.queue._settings, preempt_streams=True))
        bulk = [b.submit(priority=2) for _ in range(SHAPE.max_sequences)]
        await b.begun(len(bulk))
        leases = [asked.lease_id for asked in b.engines.begun]
        for lease, pending in zip(leases, bulk, strict=True):
            b.engines.say(lease, b"half ", tokens=(10, 0, 0))
            assert await pending.next() == b"half "
        urgent = b.submit(priority=0)
        b.engines.say(leases[0], b"whole", tokens=(10, 0, 1), end=StreamEnd.DONE)
        b.engines.say(await b.begun(5), b"at once", tokens=(10, 0, 1), end=StreamEnd.DONE)
        assert (await read(bulk[0]), await read(urgent)) == (b"whole", b"at once")
        assert not b.engines.aborted
        assert b.queue.snapshot().preempted == 0
        for pending in bulk[1:]:
            b.queue.cancel(pending)
