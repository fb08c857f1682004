"""Batches and requests over real connections: in order, however large, and one gateway's pace is
its own."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from channel_peers import Peer, until
from channel_stand import Stand, answer, batch, is_served
from generating_stand import Generating, begun, reading

from deployments.contract.channel import frames
from deployments.contract.channel.frames import Kind, framed
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.replica import channel_server, stream_core

# ---- batches ------------------------------------------------------------------------------------


async def test_a_start_is_told_before_its_answer_to_who_asked_with_it_or_later(
    gated: Stand,
) -> None:
    peer, other = await Peer.welcome(gated.server), await Peer.welcome(gated.server, "other")
    peer.send(Kind.BATCH, 1, batch(1, tells_start=True))
    peer.send(Kind.BATCH, 2, batch(2))
    peer.send(Kind.WATCH, 2)
    await peer.take(Kind.STARTED, 1)
    other.send(Kind.WATCH, 2)  # another connection's leases are others
    gated.let()
    await until(lambda: len(peer.got) == 3)
    assert [each[:2] for each in peer.got] == [(Kind.REPLY, 1), (Kind.STARTED, 2), (Kind.REPLY, 2)]
    assert other.got == []


async def test_a_dropped_batch_is_answered_busy_and_a_running_one_is_not_dropped(
    gated: Stand,
) -> None:
    peer, other = await Peer.welcome(gated.server), await Peer.welcome(gated.server, "other")
    peer.send(Kind.BATCH, 1, batch(1))
    peer.send(Kind.BATCH, 2, batch(2))
    for each in (other, peer):
        each.send(Kind.DROP, 2)
        each.send(Kind.DROP, 1)
    assert (await answer(peer, 2)).busy
    gated.let()
    assert not (await answer(peer, 1)).busy


async def test_a_message_that_does_not_add_up_costs_its_own_lease_alone(stand: Stand) -> None:
    peer = await Peer.welcome(stand.server)
    peer.send(Kind.BATCH, 1, batch(1))
    peer.send(Kind.BATCH, 2, [b"\0" * 7])
    peer.send(Kind.BATCH, 3, batch(3))
    peer.send(Kind.BEGIN, 4, [b""])
    peer.send(Kind.ABORT, 5)
    assert b"header" in await peer.take(Kind.UNSENT, 2)
    assert b"BEGIN to a replica that takes batches" in await peer.take(Kind.UNSENT, 4)
    assert not (await answer(peer, 1)).busy
    assert not (await answer(peer, 3)).busy
    assert peer.got == []


async def test_a_fault_of_ours_costs_its_own_lease_alone(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await Peer.welcome(stand.server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand.worker.queue, "put", lambda job, waiting: 1 / 0)
        peer.send(Kind.BATCH, 1, batch(1))
        assert b"division" in await peer.take(Kind.UNSENT, 1)
    assert await is_served(peer, 2)


async def test_many_batches_in_one_write_and_one_in_many_are_answered(stand: Stand) -> None:
    peer = await Peer.welcome(stand.server)
    written = b"".join(
        [b"".join(framed(Kind.BATCH, n, batch(n, rank=(0, 0, float(n))))) for n in (1, 2)]
    )
    peer.write(written)
    for n in (1, 2):
        await answer(peer, n)
    for byte in b"".join(framed(Kind.BATCH, 3, batch(3))):
        peer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert not (await answer(peer, 3)).busy


@pytest.mark.slow
async def test_megabytes_go_both_ways_while_others_are_served(stand: Stand) -> None:
    peer, other = await Peer.welcome(stand.server), await Peer.welcome(stand.server, "other")
    values = np.arange(3 << 20)
    peer.send(Kind.BATCH, 1, batch(*values))
    for n in range(1, 5):
        assert await is_served(other, n)
    reply = await answer(peer, 1)
    assert (reply.outputs["y"].data == values).all()


async def test_an_answer_that_no_frame_holds_is_a_fault_and_the_next_is_sent(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await Peer.welcome(stand.server)
    large = b"".join(framed(Kind.BATCH, 1, batch(*range(1000))))
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    peer.write(large)
    assert b"do not fit into one frame" in await peer.take(Kind.UNSENT, 1)
    assert await is_served(peer, 2)


# ---- requests to generate -----------------------------------------------------------------------


async def test_an_abort_ends_a_request_and_a_broken_connection_all_of_its_gateways(
    generating: Generating,
) -> None:
    reader, other = await reading(generating), await reading(generating, "other")
    await begun(generating, reader, 1, b"a")
    await begun(generating, reader, 2, b"b")
    await begun(generating, other, 1, b"c")
    reader.peer.send(Kind.ABORT, 1)
    assert await reader.end_of(1) is StreamEnd.ABORTED
    assert generating.engine.freed == [b"a"]
    reader.peer.leave()
    await until(lambda: generating.engine.freed == [b"a", b"b"])
    generating.engine.end(b"c")
    assert await other.end_of(1) is StreamEnd.DONE


async def test_what_was_generated_and_no_frame_holds_ends_the_connection(
    generating: Generating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway cannot know which of its requests have ended."""
    reader = await reading(generating)
    await begun(generating, reader, 1, b"a")
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    await generating.stream(b"a", 1, 5000)
    await reader.peer.gone()
    await until(lambda: generating.engine.freed == [b"a"])


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """A small window, and messages that are no larger."""
    monkeypatch.setattr(channel_server, "WINDOW_BYTES", 1 << 16)
    monkeypatch.setattr(stream_core, "MAX_MESSAGE_BYTES", 1 << 14)
    return 1 << 16


async def test_a_gateway_that_stops_reading_holds_up_neither_the_engine_nor_others(
    generating: Generating, narrow: int
) -> None:
    stuck, other = await reading(generating), await reading(generating, "other")
    await begun(generating, stuck, 1, b"a")
    await begun(generating, other, 1, b"b")
    stuck.peer.stop_reading()
    total = 0
    for _ in range(50):
        total += await generating.stream(b"a", 2, 50_000)
        await generating.stream(b"b", 1, 100)
        await asyncio.sleep(0.001)
        other.look()
    generating.engine.end(b"b")
    assert await other.end_of(1) is StreamEnd.DONE
    assert other.data(1) == 50 * 100
    link = generating.link("gw")
    assert link._transport is not None
    assert link._transport.get_write_buffer_size() <= narrow + 60_000
    assert link._sent_bytes <= narrow + 60_000
    generating.engine.end(b"a")
    stuck.peer.read_on()
    assert await stuck.end_of(1) is StreamEnd.DONE
    assert stuck.data(1) == total


async def test_a_gateway_that_reads_and_does_not_say_so_gets_a_window_and_no_more(
    generating: Generating, narrow: int
) -> None:
    reader = await reading(generating, credits=False)
    await begun(generating, reader, 1, b"a")
    total = await generating.stream(b"a", 100, 10_000)
    generating.engine.end(b"a")
    await asyncio.sleep(0.03)
    reader.look()
    assert narrow <= reader.taken <= narrow + 30_000
    reader.credits = True
    assert await reader.end_of(1) is StreamEnd.DONE
    assert reader.data(1) == total


async def test_credit_for_more_than_was_sent_opens_no_more_than_a_window(
    generating: Generating, narrow: int
) -> None:
    reader = await reading(generating, credits=False)
    await begun(generating, reader, 1, b"a")
    reader.peer.send(Kind.CREDIT, 2**64 - 1)
    await generating.stream(b"a", 100, 10_000)
    reader.peer.send(Kind.CREDIT, 0)  # and none is taken back
    await asyncio.sleep(0.03)
    reader.look()
    assert reader.taken <= narrow + 40_000
    reader.peer.leave()


async def test_a_gateway_that_is_gone_while_it_took_nothing_in_leaves_nothing(
    generating: Generating, narrow: int
) -> None:
    stuck = await reading(generating)
    await begun(generating, stuck, 1, b"a")
    stuck.peer.stop_reading()
    await generating.stream(b"a", 20, 50_000)
    stream = generating.core._streams[generating.link("gw")]
    stuck.peer.leave()
    await until(lambda: generating.engine.freed == [b"a"])
    assert stream.pump is not None
    await asyncio.wait_for(stream.pump, 5.0)
    assert generating.core._streams == {}
