"""Connections that are encrypted: who shows no certificate of the right authority is not let in."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from channel_peers import Peer, until
from channel_stand import Stand, is_served

from deployments.contract.channel.frames import Kind, framed
from deployments.contract.channel.handshake import GatewayHandshake
from deployments.process.sockets import (
    ChannelTls,
    client_tls,
    host_and_port,
    server_tls,
)
from deployments.replica import channel_server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def stand(authority: Authority) -> AsyncIterator[Stand]:
    stand = Stand(tls=server_tls(authority.tls()))
    await stand.server.listen("127.0.0.1")
    yield stand
    await stand.close()


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    context = client_tls(authority.tls())
    assert context is not None
    return context


async def raw(stand: Stand) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*host_and_port(stand.server.address))


async def test_a_gateway_with_a_certificate_and_the_key_is_served(
    stand: Stand, tls: ssl.SSLContext
) -> None:
    peer = await Peer.welcome(stand.server, tls=tls)
    assert peer.transport.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
    assert await is_served(peer, 1)
    peer.send(Kind.BATCH, 2, [bytes(1 << 20)])  # what adds up to nothing
    assert b"header" in await peer.take(Kind.UNSENT, 2)


async def test_who_shows_no_certificate_is_not_let_in(
    stand: Stand, authority: Authority, tls: ssl.SSLContext
) -> None:
    without = ssl.create_default_context(cafile=authority.file)
    without.check_hostname = False
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        await Peer.welcome(stand.server, tls=without)
    assert await is_served(await Peer.welcome(stand.server, tls=tls), 1)


async def test_who_shows_one_of_another_authority_is_not_let_in(
    stand: Stand, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        await Peer.welcome(stand.server, tls=client_tls(other.tls(trusted=authority)))


async def test_a_gateway_does_not_talk_to_a_replica_of_another_authority(
    stand: Stand, tmp_path: Path
) -> None:
    with pytest.raises(ssl.SSLError):
        await Peer.connect(stand.server, tls=client_tls(Authority(tmp_path, "other").tls()))


async def test_a_certificate_does_not_stand_for_the_key(stand: Stand, tls: ssl.SSLContext) -> None:
    peer = await Peer.connect(stand.server, tls)
    peer.send(Kind.HELLO, 0, [GatewayHandshake(bytes(32), "gw", "rep").hello()])
    await peer.take(Kind.CHALLENGE)
    peer.send(Kind.PROOF, 0, [b"\x81\xa5proof\xc4\x00"])
    assert "does not know the replica's key" in await peer.refused()


async def test_who_speaks_plainly_is_not_let_in(stand: Stand) -> None:
    reader, writer = await raw(stand)
    writer.write(bytes(100))
    async with asyncio.timeout(5):
        assert b"kind" not in await reader.read()
    writer.close()


async def test_who_does_not_come_to_the_end_of_tls_is_not_waited_for(
    authority: Authority, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_server, "HANDSHAKE_LIMIT_S", 0.05)
    stand = Stand(tls=server_tls(authority.tls()))
    await stand.server.listen("127.0.0.1")
    reader, writer = await raw(stand)
    writer.write(bytes.fromhex("160301"))
    async with asyncio.timeout(2):
        await reader.read()
    writer.close()
    await stand.close()


async def test_who_takes_long_over_tls_has_no_longer_for_the_rest(
    authority: Authority, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that has passed before the connection was made would never pass again."""
    monkeypatch.setattr(channel_server, "HANDSHAKE_LIMIT_S", 0.2)
    stand = Stand(tls=server_tls(authority.tls()))
    await stand.server.listen("127.0.0.1")
    reader, writer = await raw(stand)
    await asyncio.sleep(0.15)
    await writer.start_tls(tls)
    async with asyncio.timeout(2):
        await reader.read()
    writer.close()
    await until(lambda: len(stand.server.unauthenticated) == 0)
    await stand.close()


async def test_what_comes_after_a_refusal_is_not_heard(stand: Stand, tls: ssl.SSLContext) -> None:
    """TLS reads on while it says goodbye."""
    peer = await Peer.connect(stand.server, tls)
    handshake = GatewayHandshake(stand.server.key, "gw", "rep")
    peer.send(Kind.HELLO, 0, [handshake.hello()])
    proof = handshake.prove(memoryview(await peer.take(Kind.CHALLENGE)))
    (connection,) = stand.server._connections
    connection._handshake_timed_out()
    connection.data_received(b"".join(framed(Kind.PROOF, 0, [proof])))
    assert not connection.welcome
    assert "no handshake within" in await peer.refused()


async def test_a_refused_one_that_does_not_say_goodbye_is_no_stranger_for_long(
    authority: Authority, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_server, "HANDSHAKE_LIMIT_S", 0.2)
    monkeypatch.setattr(channel_server, "_GOODBYE_S", 0.05)
    stand = Stand(tls=server_tls(authority.tls()))
    await stand.server.listen("127.0.0.1")
    peer = await Peer.connect(stand.server, tls)
    await until(lambda: len(stand.server.unauthenticated) == 1)
    peer.stop_reading()
    await until(lambda: len(stand.server.unauthenticated) == 0, 2.0)
    peer.leave()
    await stand.close()


@pytest.mark.parametrize("missing", ["certificate", "key", "authority"])
@pytest.mark.parametrize("side", [server_tls, client_tls])
def test_files_that_cannot_be_used_are_named(
    authority: Authority, side: Any, missing: str, tmp_path: Path
) -> None:
    good = authority.tls()
    for content in (None, b"no PEM"):
        file = tmp_path / "wrong.pem"
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        fields = {name: getattr(good, name) for name in ("certificate", "key", "authority")}
        with pytest.raises(ValueError, match=r"wrong\.pem.* cannot be used"):
            side(ChannelTls(**{**fields, missing: str(file)}))


def test_a_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    ours, theirs = authority.tls(), Authority(tmp_path, "other").tls()
    with pytest.raises(ValueError, match="cannot be used"):
        server_tls(ChannelTls(ours.certificate, theirs.key, ours.authority))


def test_without_files_nothing_is_encrypted() -> None:
    assert server_tls(None) is None
    assert client_tls(None) is None


@pytest.mark.parametrize("count", [1, 3, 4, 20])
async def test_of_too_many_handshakes_the_oldest_goes_and_gateways_come_in_all_the_same(
    stand: Stand, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(channel_server, "MAX_UNAUTHENTICATED", 3)
    known = await Peer.welcome(stand.server, tls=tls)
    idle = [await raw(stand) for _ in range(count)]
    assert await is_served(await Peer.welcome(stand.server, "another", tls=tls), 1)
    async with asyncio.timeout(2):
        for reader, _ in idle[: max(0, count + 1 - 3)]:
            assert not await reader.read()
    assert all(not reader.at_eof() for reader, _ in idle[-2:])
    assert await is_served(known, 1)
    for _, writer in idle:
        writer.close()
