"""Requests to generate from their prompt to their last piece: what is given to whom, what runs once
more, and what ends with an error. The books agree after each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from fake_engines import Refusal, until
from stream_bench import SHAPE, bench, read

from deployments.contract import errors
from deployments.contract.channel.stream_messages import Piece, SharesMessage, StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.queues.dispatcher_driver import VersionTerms
from deployments.gateway.queues.pending_requests import (
    MAX_UNREAD_BYTES,
    BatchEnd,
    PendingStreamRequest,
)
from routers.stream import staging
from runtimes.types import AdapterLoad

Describe = Callable[..., ModelDescription]


async def test_what_was_not_begun_waits_for_another_replica(description: Describe) -> None:
    async with bench(description, 2) as b:
        pending = b.submit()
        b.engines.say(await b.begun(1), end=StreamEnd.BUSY)
        lease = await b.begun(2)
        assert b.engines.begun[0].replica_id != b.engines.begun[1].replica_id
        b.engines.say(lease, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"x"


async def test_a_request_that_was_lost_twice_ends_with_an_error(description: Describe) -> None:
    async with bench(description, 3) as b:
        pending = b.submit()
        for count in (1, 2):
            await b.begun(count)
            b.engines.kill(b.engines.begun[-1].replica_id)
        with pytest.raises(errors.ReplicaLost):
            await read(pending)


async def test_what_came_before_the_error_is_given_first(description: Describe) -> None:
    async with bench(description, 1) as b:
        pending = b.submit()
        b.engines.say(await b.begun(1), b"half", tokens=(1, 0, 1))
        b.engines.kill("r0")
        await until(lambda: pending.done)
        assert await pending.next() == b"half"
        with pytest.raises(errors.ReplicaLost):
            await pending.next()


async def test_what_the_engine_failed_on_runs_once_more_elsewhere(description: Describe) -> None:
    async with bench(description, 2) as b:
        pending = b.submit()
        b.engines.say(await b.begun(1), end=StreamEnd.FAILED)
        lease = await b.begun(2)
        assert b.engines.begun[0].replica_id != b.engines.begun[1].replica_id
        b.engines.say(lease, end=StreamEnd.FAILED)
        with pytest.raises(errors.RowFailed):
            await read(pending)
        assert len(b.engines.begun) == 2


async def test_an_engines_own_words_on_its_failure_are_passed_on(description: Describe) -> None:
    async with bench(description) as b:
        pending = b.submit(repeatable=False)
        b.engines.say(await b.begun(1), b"{}", status=500, end=StreamEnd.FAILED)
        assert await read(pending) == b"{}"
        assert pending.status == 500


async def test_a_connection_that_breaks_loses_what_ran_and_the_replica_is_asked_again(
    description: Describe,
) -> None:
    async with bench(description) as b:
        pending = b.submit()
        await b.begun(1)
        b.engines.disconnect("r0")
        lease = await b.begun(2)
        b.engines.say(lease, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"x"


@pytest.mark.parametrize(
    ("refusal", "end"),
    [
        (Refusal.UNREACHED, BatchEnd.RETURNED),
        (Refusal.FAULT, BatchEnd.LOST),
        (Refusal.BREAK, BatchEnd.LOST),
    ],
)
async def test_a_request_that_does_not_arrive_is_sent_again(
    description: Describe, refusal: Refusal, end: BatchEnd
) -> None:
    async with bench(description, 2) as b:
        b.engines.refusal = refusal
        pending = b.submit()
        b.engines.say(await b.begun(1), b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"x"
        assert b.queue.calls.ends[end] == 1


async def test_no_replica_is_given_work_before_its_connection_stands(description: Describe) -> None:
    async with bench(description) as b:
        b.run(["r0", "r1"])
        assert [r.replica_id for r in b.queue.snapshot().replicas] == ["r0"]
        b.names.append("r1")
        await b.up()
        assert len(b.queue.snapshot().replicas) == 2


async def test_a_replica_that_is_to_go_ends_what_it_has_and_gets_no_more(
    description: Describe,
) -> None:
    async with bench(description, 2) as b:
        first = b.submit()
        lease, going = await b.begun(1), b.engines.begun[0].replica_id
        (staying,) = {"r0", "r1"} - {going}
        b.run([staying])
        second = b.submit()
        assert (await b.engines.until_begun(2)).replica_id == staying
        b.engines.say(lease, b"a", tokens=(1, 0, 1), end=StreamEnd.DONE)
        b.engines.say(b.engines.begun[1].lease_id, b"b", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert (await read(first), await read(second)) == (b"a", b"b")
        assert not b.engines.engine(going).connected


async def test_a_reader_that_stops_loses_its_answer_and_nobody_elses(description: Describe) -> None:
    async with bench(description) as b:
        slow, other = b.submit(), b.submit()
        lease, second = await b.begun(1), await b.begun(2)
        half = bytes(MAX_UNREAD_BYTES // 2 + 1)
        b.engines.say(lease, half, tokens=(1, 0, 1))
        b.engines.say(lease, half, tokens=(1, 0, 2))
        await b.engines.until_aborted(1)
        with pytest.raises(errors.ReaderTooSlow):
            await slow.next()
        b.engines.say(second, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(other) == b"x"


async def test_a_single_large_piece_is_no_slow_reader(description: Describe) -> None:
    async with bench(description) as b:
        pending, large = b.submit(streams=False), bytes(2 * MAX_UNREAD_BYTES)
        b.engines.say(await b.begun(1), large, tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == large


async def test_another_version_with_another_context_refuses_what_was_measured_for_the_old(
    description: Describe,
) -> None:
    async with bench(description) as b:
        old = b.terms
        b.queue.adopt(b.queue._settings, VersionTerms("2", "other"))
        b.run(["r0"])
        with pytest.raises(errors.NotReady):
            b.submit()
        b.queue.adopt(b.queue._settings, replace(old, version="3"))
        b.run(["r0"])
        pending = b.submit()
        b.engines.say(await b.begun(1), b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert await read(pending) == b"x"


async def test_each_replica_holds_as_many_as_its_shape_says(description: Describe) -> None:
    async with bench(description) as b:
        (replica,) = b.queue.snapshot().replicas
        assert replica.capacity == SHAPE.cache_tokens


async def test_an_engine_that_fails_once_it_began_ends_with_an_error(description: Describe) -> None:
    async with bench(description) as b:
        pending = b.submit()
        lease = await b.begun(1)
        b.engines.say(lease, b"one ", tokens=(10, 0, 1))
        assert await pending.next() == b"one "
        b.engines.say(lease, b"two", tokens=(10, 0, 2), end=StreamEnd.FAILED)
        with pytest.raises(errors.RowFailed):
            await read(pending)


async def test_a_run_that_was_wanted_back_gives_nothing_and_runs_again(
    description: Describe,
) -> None:
    async with bench(description) as b:
        pending = b.submit()
        lease = await b.begun(1)
        await until(lambda: b.queue.calls.find(lease) is not None)
        run = b.queue.calls.find(lease)
        assert run is not None
        run.aborted = True  # as by a preemption
        b.engines.say(lease, b"never given", tokens=(10, 0, 1))
        b.engines.say(lease, end=StreamEnd.ABORTED)
        await until(lambda: b.queue.calls.find(lease) is None)
        assert not pending.begun
        assert not pending.done
        b.queue.cancel(pending)


async def test_steps_that_cannot_be_read_end_the_connection_and_what_ran_on_it(
    description: Describe,
) -> None:
    """The last piece of any run may have been in them."""
    async with bench(description, 2) as b:
        others = [b.submit(), b.submit()]
        await b.begun(2)
        garbled, whole = (asked.replica_id for asked in b.engines.begun)
        assert garbled != whole
        b.engines.garble(garbled)
        await b.begun(3)
        assert b.queue.calls.ends[BatchEnd.LOST] == 1
        for asked in b.engines.begun[1:]:
            b.engines.say(asked.lease_id, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        assert [await read(pending) for pending in others] == [b"x", b"x"]


@pytest.mark.parametrize("end", [None, StreamEnd.DONE], ids=["more is to come", "the last"])
async def test_a_piece_that_cannot_be_handed_on_costs_its_own_run(
    description: Describe, monkeypatch: pytest.MonkeyPatch, end: StreamEnd | None
) -> None:
    async with bench(description) as b:
        bad, good = b.submit(), b.submit()
        of_bad, of_good = await b.begun(1), await b.begun(2)
        bring = b.queue._bring

        def fails(pending: PendingStreamRequest, piece: Piece, now: float) -> bool:
            if pending is bad:
                raise RuntimeError("a bug")
            return bring(pending, piece, now)

        monkeypatch.setattr(b.queue, "_bring", fails)
        piece = Piece(of_good, b"x", 1, 0, 1, 2, 0.1)
        b.engines.tell("r0", msgspec.structs.replace(piece, lease_id=of_bad, end=end), piece)
        with pytest.raises(errors.RowFailed):
            await asyncio.wait_for(read(bad), 5.0)
        assert await good.next() == b"x"
        b.engines.say(of_good, b"y", tokens=(1, 0, 2), end=StreamEnd.DONE)
        assert await read(good) == b"y"
        assert b.engines.aborted == ([] if end else [("r0", of_bad)])
        assert b.queue.snapshot().leases == b.queue.calls.count == 0


async def test_a_request_says_whose_turn_it_is_who_pays_and_what_a_token_is_worth(
    description: Describe,
) -> None:
    async with bench(description) as b:
        pending = b.submit(tokens=10, tenant="acme", priority=1)
        asked = await b.engines.until_begun(1)
        call = asked.call
        late, priority, tag = call.rank
        assert (late, priority, tag >= 0.0) == (0, 1, True)
        ((rank, tenant, charged_s),) = call.charges
        assert (rank, tenant) == (1, "acme")
        # The most that may come is expected of outputs while none is known.
        assert charged_s == pytest.approx(10 * call.input_s + 50 * call.output_s)
        assert call.waiting == ()
        b.engines.say(asked.lease_id, b"x", tokens=(10, 0, 1), end=StreamEnd.DONE)
        await read(pending)


async def test_what_other_gateways_were_served_is_charged_when_it_is_told(
    description: Describe,
) -> None:
    async with bench(description) as b:

        def start() -> float:
            (flow,) = b.queue.snapshot().flows
            return flow.start

        pending = [b.submit(tenant="acme"), b.submit(tenant="acme")]
        await b.begun(2)
        first, second = b.engines.begun
        shares = SharesMessage((0.0, 0.0), ((1, "acme", 500.0),), ((1, "acme", 3.0),))
        b.engines.tell(first.replica_id, shares=shares)
        b.engines.tell(first.replica_id, shares=shares)
        before = start()
        await until(lambda: start() > before + 900.0)
        assert start() == pytest.approx(before + 1000.0, rel=0.01)
        b.engines.say(first.lease_id, b"x", tokens=(10, 0, 50), end=StreamEnd.DONE)
        await read(pending[0])
        assert start() == pytest.approx(before + 1000.0, rel=0.01)
        b.engines.say(second.lease_id, b"x", tokens=(10, 0, 50), end=StreamEnd.DONE)
        await read(pending[1])
        assert start() == pytest.approx(before + 1000.0, rel=0.01)


async def test_beside_other_gateways_as_many_again_wait_at_the_replica(
    description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends_one() -> None:
        asked = next(a for a in b.engines.begun if a.lease_id in b.engines.engine("r0").calls)
        b.engines.say(asked.lease_id, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)

    most = SHAPE.max_sequences
    async with bench(description) as b:
        pending = [b.submit(tokens=1) for _ in range(4 * most)]
        await b.begun(most)
        b.engines.others = 1
        await ends_one()
        await b.begun(2 * most + 1)
        assert b.engines.running == 2 * most
        b.engines.others = 0
        monkeypatch.setattr(staging, "_SHARED_S", -1.0)  # it was long ago
        for _ in range(most + 1):
            await ends_one()
            await until(lambda: not b.queue.calls.count or b.engines.running <= 2 * most)
        await until(lambda: b.engines.running == most)
        for each in pending:
            b.queue.cancel(each)


async def test_the_core_hears_of_adapters_as_they_change(
    description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(description) as b:
        heard: list[tuple[str, AdapterLoad]] = []
        monkeypatch.setattr(b.queue, "adapters_held", lambda *held: heard.append(held))
        told = [None, AdapterLoad(("a",), 1, 0, 0.5), AdapterLoad(("a",), 1, 0, 0.5), AdapterLoad()]
        for number, adapters in enumerate(told, 1):
            b.engines.load = replace(b.engines.load, adapters=adapters)
            pending = b.submit()
            b.engines.say(await b.begun(number), b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
            await read(pending)
        assert heard == [("r0", told[1]), ("r0", told[3])]


async def test_as_many_more_are_sent_as_wait_there_for_an_adapter(description: Describe) -> None:
    async with bench(description) as b:
        b.engines.load = replace(b.engines.load, adapters=AdapterLoad())
        pending = [b.submit() for _ in range(10)]
        first = await b.begun(4)
        assert len(b.engines.begun) == 4
        for waiting, sent in ((2, 6), (9, 8), (0, 8)):
            b.engines.load = replace(b.engines.load, adapters=AdapterLoad(waiting=waiting))
            b.engines.tell("r0")
            await b.begun(sent)
            assert len(b.engines.begun) == sent
        b.engines.say(first, b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        await until(lambda: any(each.done for each in pending))
        assert len(b.engines.begun) == 8  # no more than the engine runs, by now
        for each in pending:
            b.queue.cancel(each)


async def test_the_engines_own_account_is_kept(description: Describe) -> None:
    async with bench(description) as b:
        b.engines.load = replace(b.engines.load, running=3, cache_used=0.25, preemptions=2)
        pending = b.submit()
        b.engines.say(await b.begun(1), b"x", tokens=(1, 0, 1), end=StreamEnd.DONE)
        await read(pending)
        assert b.queue.loads["r0"].preemptions == 2
        assert b.queue.duty == {"r0": 0.25}
