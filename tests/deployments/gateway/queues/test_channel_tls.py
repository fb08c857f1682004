"""The channel under TLS: both sides show a certificate of one authority, or nothing is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from channel_net import Net, net
from fake_engines import until

from deployments.contract.channel.frames import Kind
from deployments.contract.channel.sockets import ChannelTls, client_tls, server_tls

x509 = pytest.importorskip("cryptography.x509")
pytestmark = pytest.mark.usefixtures("at_once")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policies: dict[str, Any] = {
        "asyncio": asyncio.DefaultEventLoopPolicy,
        "uvloop": uvloop.EventLoopPolicy,
    }
    policy: asyncio.AbstractEventLoopPolicy = policies[request.param]()
    return policy


class Authority:
    """Signs certificates, and keeps all in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key, self._certificate = None, None
        self._key, self._certificate = self._made(name)
        self._write("authority", self._certificate)

    def issue(self) -> ChannelTls:
        key, certificate = self._made("a node")
        self._write("certificate", certificate)
        self._write("key", key)
        return ChannelTls(self._path("certificate"), self._path("key"), self._path("authority"))

    def _made(self, name: str) -> tuple[Any, Any]:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._certificate.subject if self._certificate else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(self._certificate is None, None), critical=True)
            .sign(self._key or key, SHA256())
        )
        return key, certificate

    def _write(self, what: str, of: Any) -> None:
        from cryptography.hazmat.primitives import serialization as form

        if what == "key":
            pem = of.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        else:
            pem = of.public_bytes(form.Encoding.PEM)
        Path(self._path(what)).write_bytes(pem)

    def _path(self, what: str) -> str:
        return str(self._folder / f"{self._name}-{what}.pem")


@pytest.fixture
def ours(tmp_path: Path) -> ChannelTls:
    return Authority(tmp_path, "ours").issue()


@pytest.fixture
def theirs(tmp_path: Path) -> ChannelTls:
    return Authority(tmp_path, "theirs").issue()


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
