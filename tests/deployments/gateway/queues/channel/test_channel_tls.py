"""The channel under TLS: both sides show a certificate of one authority, or nothing is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from channel_net import Net, net
from fake_engines import until

from deployments.contract.channel.frames import Kind
from deployments.process.sockets import ChannelTls, client_tls, server_tls


@pytest.fixture
def ours(tmp_path: Path) -> ChannelTls:
    return Authority(tmp_path, "ours").tls()


@pytest.fixture
def theirs(tmp_path: Path) -> ChannelTls:
    return Authority(tmp_path, "theirs").tls()


async def test_what_is_sent_arrives_and_so_do_answers(ours: ChannelTls) -> None:
    async with net(tls=client_tls(ours)) as n:
        core = await n.start("r1", tls=server_tls(ours))
        n.list("r1")
        await n.reaches("r1")
        large = bytes(range(256)) * 4096
        n.channel.send("r1", Kind.BATCH, 1, [b"a", large])
        await until(lambda: bool(core.got))
        assert core.bodies == [b"a" + large]
        (await n.link("r1")).send(Kind.REPLY, 1, [large, b"z"])
        await until(lambda: bool(n.listener.frames))
        assert n.listener.frames == [("r1", Kind.REPLY, 1, large + b"z")]


async def test_a_broken_connection_is_opened_again(ours: ChannelTls) -> None:
    async with net(tls=client_tls(ours)) as n:
        await n.start("r1", tls=server_tls(ours))
        n.list("r1")
        await n.reaches("r1")
        (await n.link("r1")).abort("a test")
        await until(lambda: n.listener.told == [["r1"], [], "lost r1", ["r1"]])


async def not_reached(n: Net, said: pytest.LogCaptureFixture) -> None:
    n.list("r1")
    await until(lambda: said.text.count("replica r1: no connection") > 2)
    assert n.listener.told == []
    assert n.cores["r1"].links == []


Side = Callable[[ChannelTls, ChannelTls], Any]


@pytest.mark.parametrize(
    ("gateway", "replica"),
    [
        (lambda ours, theirs: None, lambda ours, theirs: server_tls(ours)),
        (lambda ours, theirs: client_tls(ours), lambda ours, theirs: None),
        (lambda ours, theirs: client_tls(theirs), lambda ours, theirs: server_tls(ours)),
    ],
    ids=["the gateway speaks plainly", "the replica speaks plainly", "of two authorities"],
)
async def test_sides_that_do_not_know_each_other_are_not_connected(
    ours: ChannelTls,
    theirs: ChannelTls,
    gateway: Side,
    replica: Side,
    said: pytest.LogCaptureFixture,
) -> None:
    async with net(tls=gateway(ours, theirs)) as n:
        await n.start("r1", tls=replica(ours, theirs))
        await not_reached(n, said)
