"""An engine dies, and its replica says so: what of each request, in whichever state it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_engines import Asked, until
from stream_bench import AT_ONCE, Bench, bench, read

from deployments.contract import errors
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.queues import lease_calls
from deployments.gateway.queues.pending_requests import BatchEnd, PendingStreamRequest
from routers.api.settings import HedgeParameters

Describe = Callable[..., ModelDescription]
ALONE = HedgeParameters("off")  # without copies, but with what generating costs


async def answered(b: Bench, pending: PendingStreamRequest, count: int) -> None:
    """By the `count`-th run."""
    b.engines.say(await b.begun(count), b"all", tokens=(1, 0, 1), end=StreamEnd.DONE)
    assert await read(pending) == b"all"


async def dies(b: Bench, asked: Asked) -> None:
    b.engines.die(asked.replica_id)
    await until(lambda: asked.replica_id not in b.queue.calls.reached)


async def test_what_waits_at_the_gateway_runs_elsewhere(description: Describe) -> None:
    async with bench(description, 2) as b:
        full = [b.submit(tokens=950) for _ in b.names]
        await b.begun(2)
        waits = b.submit(tokens=900)
        assert b.queue.waiting_rows == 1
        dead, lives = b.engines.begun
        await dies(b, dead)
        assert not waits.done
        b.engines.say(lives.lease_id, b"all", tokens=(1, 0, 1), end=StreamEnd.DONE)
        await answered(b, full[0], 3)  # it is the one that was lost
        await answered(b, waits, 4)
        assert await read(full[1]) == b"all"


async def test_what_its_engine_had_not_begun_is_lost_as_often_as_it_likes(
    description: Describe,
) -> None:
    """So it was not the cause, and it has not run."""
    async with bench(description, 4) as b:
        b.engines.full = {"r0", "r1", "r2", "r3"}
        pending = b.submit()
        for count in (1, 2, 3):
            await b.begun(count)
            await dies(b, b.engines.begun[-1])
        assert not b.queue.crashes
        await answered(b, pending, 4)
        assert b.queue.calls.ends[BatchEnd.RETURNED] == 3
        assert b.queue.calls.ends[BatchEnd.LOST] == 0


@pytest.mark.parametrize("streams", [True, False])
async def test_a_prompt_that_is_being_read_runs_once_more(
    description: Describe, streams: bool
) -> None:
    async with bench(description, 3) as b:
        pending = b.submit(streams=streams)
        await b.begun(1)
        await dies(b, b.engines.begun[0])
        await answered(b, pending, 2)
        assert b.engines.begun[0].replica_id != b.engines.begun[1].replica_id

        again = b.submit(streams=streams)
        for count in (3, 4):
            await b.begun(count)
            b.engines.revive(b.engines.begun[0].replica_id)
            await dies(b, b.engines.begun[-1])
        with pytest.raises(errors.ReplicaLost) as lost:
            await read(again)
        assert lost.value.retry_after_s > 0
        assert b.queue.calls.ends[BatchEnd.LOST] == 3


async def test_what_its_caller_has_had_a_part_of_ends_with_that_and_is_paid(
    description: Describe,
) -> None:
    async with bench(description, 2, ALONE) as b:
        pending = b.submit(tokens=100)
        b.engines.say(await b.begun(1), b"part", tokens=(100, 0, 3))
        assert await pending.next() == b"part"
        await dies(b, b.engines.begun[0])
        with pytest.raises(errors.ReplicaLost):
            await read(pending)
        assert pending.tokens.output == 3
        (flow,) = b.queue.snapshot().flows
        assert flow.served_s > 0
        assert len(b.engines.begun) == 1


async def test_what_was_shown_is_paid_whether_its_caller_stays_leaves_or_is_answered(
    description: Describe,
) -> None:
    """Also the tokens that the dispatcher has not been told of, because there are few."""
    paid = {}
    for end in ("answered", "stays", "leaves"):
        async with bench(description, 1, ALONE) as b:
            b.engines.deaf = {"r0"} if end == "leaves" else set()
            pending = b.submit(tokens=100)
            lease = await b.begun(1)
            b.engines.say(lease, b"some ", tokens=(100, 0, 1))
            b.engines.say(lease, b"more", tokens=(100, 0, 15))
            assert await pending.next() == b"some more"
            if end == "answered":
                b.engines.say(lease, b".", tokens=(100, 0, 15), end=StreamEnd.DONE)
                assert await read(pending) == b"."
            elif end == "leaves":
                b.queue.cancel(pending)
            await dies(b, b.engines.begun[0])
            await b.settled()
            paid[end] = [flow.served_s for flow in b.queue.snapshot().flows if flow.served_s]
    assert paid["answered"] == paid["stays"] == paid["leaves"]
    assert len(paid["answered"]) == 1


@pytest.mark.parametrize("streams", [True, False])
async def test_nobody_pays_for_what_no_caller_was_shown(
    description: Describe, streams: bool
) -> None:
    async with bench(description, 2, ALONE) as b:
        pending = b.submit(tokens=100, streams=streams, repeatable=False)
        if not streams:
            b.engines.say(await b.begun(1), b"part", tokens=(100, 0, 30))
        await b.begun(1)
        await dies(b, b.engines.begun[0])
        with pytest.raises(errors.ReplicaLost):
            await read(pending)
        assert pending.tokens.output == 0
        assert [flow.served_s for flow in b.queue.snapshot().flows if flow.served_s] == []


async def test_an_answer_that_is_given_whole_runs_again_and_only_the_second_run_counts(
    description: Describe,
) -> None:
    async with bench(description, 2) as b:
        pending = b.submit(tokens=100, streams=False)
        b.engines.say(await b.begun(1), b"part", tokens=(100, 0, 30))
        await dies(b, b.engines.begun[0])
        await answered(b, pending, 2)
        assert pending.tokens.output == 1


async def test_what_was_said_before_the_end_is_an_answer(description: Describe) -> None:
    async with bench(description, 1) as b:
        pending = b.submit()
        b.engines.say(await b.begun(1), b"part ", tokens=(1, 0, 1))
        b.engines.say(b.engines.begun[0].lease_id, b"rest", tokens=(1, 0, 2), end=StreamEnd.DONE)
        await dies(b, b.engines.begun[0])
        assert await read(pending) == b"part rest"


async def test_nothing_is_sent_there_in_the_place_of_what_ended_with_its_last_words(
    description: Describe,
) -> None:
    async with bench(description, 1) as b:
        first = b.submit(tokens=950)
        await b.begun(1)
        second = b.submit(tokens=950)
        lease = b.engines.begun[0].lease_id
        b.engines.dead.add("r0")
        b.engines._say_goodbye("r0")
        b.engines.say(lease, b"all", tokens=(1, 0, 1), end=StreamEnd.DONE)
        b.engines.die("r0")
        assert await read(first) == b"all"
        await until(lambda: not b.queue.calls.reached)
        assert len(b.engines.begun) == 1
        b.engines.revive("r0")
        await answered(b, second, 2)
        assert b.queue.calls.ends[BatchEnd.LOST] == 0


@pytest.mark.parametrize("begun", [True, False])
async def test_a_caller_that_leaves_an_engine_that_dies_leaves_nothing(
    description: Describe, begun: bool
) -> None:
    async with bench(description, 2) as b:
        b.engines.deaf = {"r0", "r1"}  # the abort is not answered any more
        b.engines.full = set() if begun else {"r0", "r1"}
        pending = b.submit()
        await b.begun(1)
        b.queue.cancel(pending)
        await dies(b, b.engines.begun[0])
        with pytest.raises(errors.CallerLeft):
            await read(pending)
        await b.settled()
        assert len(b.engines.begun) == 1


@pytest.mark.parametrize("gone", [0, 1], ids=["first", "copy"])
async def test_the_other_run_of_a_race_goes_on(description: Describe, gone: int) -> None:
    async with bench(description, 2, AT_ONCE) as b:
        pending = b.submit()
        await b.begun(2)
        left = b.engines.begun[1 - gone]
        await dies(b, b.engines.begun[gone])
        b.engines.say(left.lease_id, b"all", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"all"
        assert len(b.engines.begun) == 2


async def test_without_another_replica_it_waits_for_the_next(description: Describe) -> None:
    async with bench(description, 1) as b:
        pending = b.submit()
        await b.begun(1)
        await dies(b, b.engines.begun[0])
        assert not pending.done
        b.engines.revive("r0")
        await answered(b, pending, 2)


async def test_why_a_replica_ended_is_known_for_a_while(
    description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(description, 12) as b:
        for name in b.names[:10]:
            b.engines.die(name, f"{name} died")
        await until(lambda: len(b.queue.calls.reached) == 2)
        ended = b.queue.calls.ended
        assert list(ended) == b.names[2:10]  # the newest
        assert [why for _, why in ended.values()] == [f"{name} died" for name in b.names[2:10]]
        assert all(0 <= ago_s < 60 for ago_s, _ in ended.values())
        monkeypatch.setattr(lease_calls, "_KEEPS_LOST_S", 0.0)
        assert b.queue.calls.ended == {}


async def test_a_reason_is_one_line_that_a_terminal_only_shows(description: Describe) -> None:
    async with bench(description, 1) as b:
        b.engines.die("r0", "CUDA error\n  \x1b[2J gone\u202e" + "." * 5000)
        await until(lambda: not b.queue.calls.reached)
        ((_, why),) = b.queue.calls.ended.values()
        assert why.startswith("CUDA error [2J gone .")
        assert why.isprintable()
        assert len(why) < 1000
