"""A replica that goes: every gateway is told, what it has is finished, nobody is waited for for
ever."""

from __future__ import annotations

import asyncio

import pytest
from channel_peers import Peer, until
from channel_stand import Stand, answer, batch
from generating_stand import Generating, begun, reading

from deployments.contract.channel.frames import Kind
from deployments.contract.channel.handshake import GatewayHandshake
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.replica import channel_server, stream_core


async def told(peer: Peer) -> None:
    """Hears that the replica goes, and answers it."""
    await peer.take(Kind.GOAWAY)
    peer.send(Kind.GOAWAY)


def draining(stand: Stand | Generating) -> asyncio.Task[None]:
    return asyncio.create_task(stand.server.drain())


async def ends(drain: asyncio.Task[None]) -> None:
    await asyncio.wait_for(drain, 5.0)


async def test_what_a_replica_has_is_finished_and_answered_before_it_goes(gated: Stand) -> None:
    peers = [await Peer.welcome(gated.server, name) for name in ("a", "b")]
    for peer in peers:
        peer.send(Kind.BATCH, 1, batch(1))
    await until(lambda: gated.core.inflight == 2)
    drain = draining(gated)
    for peer in peers:
        await told(peer)
    await until(lambda: all(s.goodbye.done() for s in gated.server._links.values()))
    await asyncio.sleep(0.01)
    assert not drain.done()
    gated.let()
    await ends(drain)
    for peer in peers:
        assert not (await answer(peer, 1)).busy
    assert not any(peer.ended.done() for peer in peers)


async def test_a_batch_that_crosses_with_the_goodbye_is_answered_busy(gated: Stand) -> None:
    peer = await Peer.welcome(gated.server)
    peer.send(Kind.BATCH, 1, batch(1))
    await until(lambda: gated.core.inflight == 1)
    drain = draining(gated)
    await peer.take(Kind.GOAWAY)
    peer.send(Kind.BATCH, 2, batch(2))
    peer.send(Kind.GOAWAY)
    assert (await answer(peer, 2)).busy
    gated.let()
    assert not (await answer(peer, 1)).busy
    await ends(drain)
    assert len(gated.runtime.batches) == 1


async def test_the_drain_waits_for_what_crosses_with_the_goodbye(gated: Stand) -> None:
    peer = await Peer.welcome(gated.server)
    drain = draining(gated)
    await peer.take(Kind.GOAWAY)
    await asyncio.sleep(0.02)
    assert not drain.done()  # idle, but the gateway has not said that nothing more is on its way
    peer.send(Kind.GOAWAY)
    await ends(drain)


async def test_a_gateway_that_says_no_goodbye_does_not_hold_the_drain_for_ever(
    gated: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_server, "_GOODBYE_S", 0.03)
    silent, other = await Peer.welcome(gated.server), await Peer.welcome(gated.server, "other")
    drain = draining(gated)
    await told(other)
    await ends(drain)
    silent.send(Kind.BATCH, 1, batch(1))
    assert (await answer(silent, 1)).busy


async def test_a_gateway_that_goes_meanwhile_does_not_hold_the_drain(gated: Stand) -> None:
    peer = await Peer.welcome(gated.server)
    peer.send(Kind.BATCH, 1, batch(1))
    await until(lambda: gated.core.inflight == 1)
    drain = draining(gated)
    await peer.take(Kind.GOAWAY)
    peer.leave()
    await until(lambda: gated.server._links == {})
    gated.let()
    await ends(drain)


async def test_a_replica_that_goes_lets_nobody_else_in(gated: Stand) -> None:
    drain = draining(gated)
    await ends(drain)
    with pytest.raises(ConnectionRefusedError):
        await Peer.connect(gated.server)


async def test_who_was_about_to_come_in_is_told_as_well(gated: Stand) -> None:
    other = await Peer.welcome(gated.server, "other")
    peer, handshake = (
        await Peer.connect(gated.server),
        GatewayHandshake(gated.server.key, "gw", "rep"),
    )
    peer.send(Kind.HELLO, 0, [handshake.hello()])
    challenge = await peer.take(Kind.CHALLENGE)
    drain = draining(gated)
    await other.take(Kind.GOAWAY)
    peer.send(Kind.PROOF, 0, [handshake.prove(memoryview(challenge))])
    await peer.take(Kind.WELCOME)
    await told(peer)
    other.send(Kind.GOAWAY)
    await ends(drain)


async def test_a_gateway_that_said_goodbye_first_is_not_waited_for(gated: Stand) -> None:
    peer = await Peer.welcome(gated.server)
    peer.send(Kind.GOAWAY)
    await until(lambda: gated.server._links["gw"].goodbye.done())
    await ends(draining(gated))


async def test_what_is_generated_is_told_to_its_end_before_the_replica_goes(
    generating: Generating,
) -> None:
    reader = await reading(generating)
    await begun(generating, reader, 1, b"a")
    drain = draining(generating)
    await reader.peer.take(Kind.GOAWAY)
    reader.begin(2, b"b")
    reader.peer.send(Kind.GOAWAY)
    assert await reader.end_of(2) is StreamEnd.BUSY
    sent = await generating.stream(b"a", 3, 1000)
    assert not drain.done()
    generating.engine.end(b"a")
    await ends(drain)
    assert await reader.end_of(1) is StreamEnd.DONE
    assert reader.data(1) == sent
    await generating.core.close()
    await generating.server.close()
    await reader.peer.gone()


async def test_a_gateway_that_reads_nothing_does_not_hold_a_replica_that_generates_for_ever(
    generating: Generating, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WINDOW_BYTES", "_GOODBYE_S"):
        monkeypatch.setattr(channel_server, name, 0.03 if name == "_GOODBYE_S" else 1000)
    monkeypatch.setattr(stream_core, "STALLED_S", 0.03)
    stuck, other = await reading(generating), await reading(generating, "other")
    await begun(generating, stuck, 1, b"a")
    await begun(generating, other, 1, b"b")
    stuck.peer.stop_reading()
    await generating.stream(b"a", 10, 1000)
    for body in (b"a", b"b"):
        generating.engine.end(body)
    drain = draining(generating)
    await told(other.peer)
    assert await other.end_of(1) is StreamEnd.DONE
    await ends(drain)
