"""Who may connect to a replica, what becomes of those who may not, and of connections that end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import numpy as np
import pytest
from channel_peers import Peer, until
from channel_stand import Stand, answer, batch, is_served

from deployments.contract.channel import frames
from deployments.contract.channel.frames import HEAD, Kind, framed
from deployments.contract.channel.handshake import GatewayHandshake, Proof, new_key
from deployments.process.sockets import is_dead
from deployments.replica import channel_server


def hello(stand: Stand, key: bytes | None = None, **more: Any) -> GatewayHandshake:
    fields = {"gateway": "gw", "replica": "rep"} | more
    return GatewayHandshake(key or stand.server.key, **fields)


# ---- who may ------------------------------------------------------------------------------------


async def test_a_gateway_that_shows_who_it_is_byte_by_byte_is_welcome_too(stand: Stand) -> None:
    peer, handshake = await Peer.connect(stand.server), hello(stand)
    for said in (handshake.hello(), None):
        if said is None:
            said = handshake.prove(memoryview(await peer.take(Kind.CHALLENGE)))
        kind = Kind.PROOF if peer.received_bytes else Kind.HELLO
        for byte in b"".join(framed(kind, 0, [said])):
            peer.write(bytes([byte]))
            await asyncio.sleep(0)
    await peer.take(Kind.WELCOME)
    assert await is_served(peer, 1)


async def test_a_batch_that_comes_with_the_proof_is_taken(stand: Stand) -> None:
    peer, handshake = await Peer.connect(stand.server), hello(stand)
    peer.send(Kind.HELLO, 0, [handshake.hello()])
    proof = handshake.prove(memoryview(await peer.take(Kind.CHALLENGE)))
    peer.write(b"".join([*framed(Kind.PROOF, 0, [proof]), *framed(Kind.BATCH, 3, batch(3))]))
    await peer.take(Kind.WELCOME)
    assert not (await answer(peer, 3)).busy


# ---- who may not --------------------------------------------------------------------------------

STRANGERS: dict[str, tuple[dict[str, Any], str]] = {
    "an old version": ({"versions": (0,)}, "speaks version 4, 3"),
    "no version": ({"versions": ()}, "speaks version 4, 3"),
    "another replica": ({"replica": "gone"}, "this is replica rep, not 'gone'"),
    "no name": ({"gateway": ""}, "names no gateway"),
}


@pytest.mark.parametrize(("said", "why"), STRANGERS.values(), ids=STRANGERS.keys())
async def test_who_does_not_belong_here_is_told_why(
    stand: Stand, said: dict[str, Any], why: str
) -> None:
    peer = await Peer.connect(stand.server)
    peer.send(Kind.HELLO, 0, [hello(stand, **said).hello()])
    assert why in await peer.refused()
    assert await is_served(await Peer.welcome(stand.server), 1)


async def test_who_does_not_know_the_key_is_told_so_and_finds_out_nothing(stand: Stand) -> None:
    peer, handshake = await Peer.connect(stand.server), hello(stand, new_key())
    peer.send(Kind.HELLO, 0, [handshake.hello()])
    await peer.take(Kind.CHALLENGE)
    peer.send(Kind.PROOF, 0, [msgspec.msgpack.encode(Proof(bytes(32)))])
    assert "does not know the replica's key" in await peer.refused()


async def test_what_was_overheard_lets_nobody_in(stand: Stand) -> None:
    first, handshake = await Peer.connect(stand.server), hello(stand)
    said = handshake.hello()
    first.send(Kind.HELLO, 0, [said])
    proof = handshake.prove(memoryview(await first.take(Kind.CHALLENGE)))
    first.send(Kind.PROOF, 0, [proof])
    await first.take(Kind.WELCOME)
    again = await Peer.connect(stand.server)
    again.send(Kind.HELLO, 0, [said])
    await again.take(Kind.CHALLENGE)
    again.send(Kind.PROOF, 0, [proof])
    assert "does not know the replica's key" in await again.refused()
    assert await is_served(first, 1)  # a stranger that uses a gateway's name does it no harm


GARBAGE = {
    "another protocol": (b"GET / HTTP/1.1\r\nHost: replica\r\n\r\n", "kind"),
    "TLS": (bytes.fromhex("160301020001000001fc0303") + bytes(40), "kind"),
    "zeros": (bytes(13), "kind 0"),
    "a batch": (b"".join(framed(Kind.BATCH, 1, batch(1))), f"kind {Kind.BATCH}"),
    "a proof": (b"".join(framed(Kind.PROOF, 0, [bytes(32)])), f"kind {Kind.PROOF}"),
    "a hello that is none": (b"".join(framed(Kind.HELLO, 0, [b"\xff" * 50])), "cannot be read"),
    "a hello of no text": (
        b"".join(framed(Kind.HELLO, 0, [b"\x81\xa7gateway\xa2\xff\xff"])), "cannot be read",
    ),
    "an empty hello": (HEAD.pack(0, Kind.HELLO, 0), "cannot be read"),
    "a hello without an end": (HEAD.pack(4097, Kind.HELLO, 0), "4097 bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "why"), GARBAGE.values(), ids=GARBAGE.keys())
async def test_whatever_else_comes_is_refused(stand: Stand, data: bytes, why: str) -> None:
    gateway = await Peer.welcome(stand.server)
    peer = await Peer.connect(stand.server)
    peer.write(data)
    assert why in await peer.refused()
    assert await is_served(gateway, 1)


async def test_a_second_hello_is_refused(stand: Stand) -> None:
    peer = await Peer.connect(stand.server)
    for _ in range(2):
        peer.send(Kind.HELLO, 0, [hello(stand).hello()])
    await peer.take(Kind.CHALLENGE)
    assert f"kind {Kind.HELLO}" in await peer.refused()


@pytest.mark.parametrize("said", [b"", b"\x2a\0"])
async def test_who_says_nothing_or_not_all_is_not_waited_for(
    stand: Stand, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_server, "HANDSHAKE_LIMIT_S", 0.02)
    peer = await Peer.connect(stand.server)
    peer.write(said)
    assert await peer.refused() == "no handshake within 0.02 s"


async def test_who_says_it_byte_by_byte_has_no_longer_for_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_server, "HANDSHAKE_LIMIT_S", 0.05)
    peer = await Peer.connect(stand.server)
    said = b"".join(framed(Kind.HELLO, 0, [hello(stand).hello()]))

    async def speak() -> None:
        for byte in said:
            peer.write(bytes([byte]))
            await asyncio.sleep(0.01)

    speaking = asyncio.create_task(speak())
    assert "no handshake within" in await peer.refused()
    speaking.cancel()


async def test_a_gateway_that_was_let_in_may_be_silent(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough for a handshake on a loaded machine. A stranger who comes later shows when it is over.
    monkeypatch.setattr(channel_server, "HANDSHAKE_LIMIT_S", 0.5)
    peer = await Peer.welcome(stand.server)
    stranger = await Peer.connect(stand.server)
    assert "no handshake within" in await stranger.refused()
    assert await is_served(peer, 1)


async def test_of_too_many_strangers_the_oldest_goes_and_gateways_come_in_all_the_same(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_server, "MAX_UNAUTHENTICATED", 3)
    known = [await Peer.welcome(stand.server, f"gw{n}") for n in range(5)]
    strangers = [await Peer.connect(stand.server) for _ in range(3)]
    await until(lambda: len(stand.server.unauthenticated) == 3)
    assert await is_served(await Peer.welcome(stand.server, "another"), 1)
    assert "too many connections" in await strangers[0].refused()
    await until(lambda: len(stand.server.unauthenticated) == 2)
    assert await is_served(known[0], 1)


async def test_many_refusals_are_a_line_a_second(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        peer = await Peer.connect(stand.server)
        peer.write(b"GET / HTTP/1.1\r\n\r\n")
        await peer.refused()
    stand.server._logged_at -= channel_server._LOG_EVERY_S
    stand.server.refused("gw", "the last one")
    lines = [r.getMessage() for r in caplog.records if "was refused" in r.getMessage()]
    assert len(lines) <= 3  # the machine may take more than a second for the twenty
    assert "others since the last line" in lines[-1]


# ---- connections that end -----------------------------------------------------------------------


async def test_a_gateway_that_connects_again_takes_the_place_of_its_first_connection(
    gated: Stand,
) -> None:
    first = await Peer.welcome(gated.server)
    first.send(Kind.BATCH, 1, batch(1))
    first.send(Kind.BATCH, 2, batch(2))
    await until(lambda: gated.core.inflight == 2)
    second = await Peer.welcome(gated.server)
    await first.gone()
    await until(lambda: gated.core.inflight == 1)  # the staged one is not run for nobody
    second.send(Kind.BATCH, 3, batch(3))
    gated.let()
    assert not (await answer(second, 3)).busy
    assert [bytes(b.inputs["x"].data) for b in gated.runtime.batches] == [
        np.array([n]).tobytes() for n in (1, 3)
    ]
    assert list(gated.server._links) == ["gw"]


async def test_half_a_frame_and_then_nobody_leaves_nothing(stand: Stand) -> None:
    other = await Peer.welcome(stand.server, "other")
    peer = await Peer.welcome(stand.server)
    whole = b"".join(framed(Kind.BATCH, 1, batch(1)))
    peer.write(whole[: len(whole) // 2])
    await until(lambda: any(c._reader.rest_bytes for c in stand.server._connections))
    peer.leave()
    await until(lambda: list(stand.server._links) == ["other"])
    assert stand.runtime.batches == []
    assert await is_served(other, 1)


@pytest.mark.parametrize("at", [1, 12, 13, 60])
async def test_a_frame_that_does_not_come_to_its_end_ends_its_connection(
    stand: Stand, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_server, "_CHECK_EVERY_S", 0.005)
    monkeypatch.setattr(frames, "STALLED_S", 0.03)
    stand.server._check()
    idle = await Peer.welcome(stand.server, "idle")
    peer = await Peer.welcome(stand.server)
    peer.write(b"".join(framed(Kind.BATCH, 1, batch(1)))[:at])
    await peer.gone()
    assert await is_served(idle, 1)


@pytest.mark.parametrize(
    "said",
    [
        HEAD.pack(0, Kind.HELLO, 0),
        b"".join([*framed(Kind.BATCH, 1, batch(1)), *framed(Kind.REPLY, 1)]),
        HEAD.pack((1 << 30) + 1, Kind.BATCH, 1),
    ],
    ids=["a second hello", "a replica's kind", "past the limit"],
)
async def test_a_frame_that_no_gateway_sends_ends_its_connection_alone(
    stand: Stand, said: bytes
) -> None:
    other = await Peer.welcome(stand.server, "other")
    peer = await Peer.welcome(stand.server)
    peer.write(said)
    await peer.gone()
    assert await is_served(other, 1)


async def test_closing_ends_every_connection_and_twice_is_once(stand: Stand) -> None:
    peers = [await Peer.welcome(stand.server, "gw"), await Peer.connect(stand.server)]
    await until(lambda: len(stand.server._connections) == 2)
    await stand.server.close()
    for peer in peers:
        await peer.gone()
    await stand.server.close()
    with pytest.raises(ConnectionRefusedError):
        await Peer.connect(stand.server)


async def test_closing_waits_for_nobody_for_ever(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_server, "_GOODBYE_S", 0.05)
    peer = await Peer.welcome(stand.server)
    peer.stop_reading()
    (session,) = stand.server._links.values()
    session.send(Kind.STEPS, 0, [bytes(32 << 20)])
    await asyncio.wait_for(stand.server.close(), 5.0)
    await until(lambda: not stand.server._connections)


# ---- where it listens ---------------------------------------------------------------------------


@pytest.fixture
def taken() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


async def test_the_first_port_that_is_free_is_taken(taken: int, free: int) -> None:
    stand = Stand()
    await stand.server.listen("127.0.0.1", [taken, free])
    assert stand.server.address == f"127.0.0.1:{free}"
    assert await is_served(await Peer.welcome(stand.server), 1)
    await stand.close()


async def test_without_a_free_port_it_says_which_and_what_to_do(taken: int) -> None:
    stand = Stand()
    with pytest.raises(
        OSError, match=rf"none of the ports {taken} to {taken} is free at 127.0.0.1"
    ):
        await stand.server.listen("127.0.0.1", range(taken, taken + 1))
    await stand.close()


async def test_an_address_that_is_not_this_machines_is_said_at_once(free: int) -> None:
    stand = Stand()
    with pytest.raises(OSError, match="assign"):
        await stand.server.listen("192.0.2.77", [free, free])
    await stand.close()


async def test_a_connection_finds_a_dead_peer_and_sends_small_frames_at_once(stand: Stand) -> None:
    await Peer.welcome(stand.server)
    (session,) = stand.server._links.values()
    sock = session._transport.get_extra_info("socket")  # type: ignore[union-attr]
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
    assert not is_dead(session._transport)  # type: ignore[arg-type]


async def test_a_gateway_whose_machine_does_not_answer_is_let_go(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, other = await Peer.welcome(stand.server), await Peer.welcome(stand.server, "other")
    gone = stand.server._links["gw"]._transport
    monkeypatch.setattr(channel_server, "is_dead", lambda transport: transport is gone)
    stand.server._check()
    await peer.gone()
    assert await is_served(other, 1)
    assert list(stand.server._links) == ["other"]
