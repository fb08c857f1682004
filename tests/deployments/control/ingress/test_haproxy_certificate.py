"""TLS at the real HAProxy: what it shows, who may come, and that a renewal ends no connection."""

from __future__ import annotations

import asyncio
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from certificates import Authority
from real_haproxy import in_front_of

from deployments.control.ingress import haproxy
from deployments.process.certificate_files import CertificateFiles
from deployments.process.sockets import ChannelTls

pytestmark = pytest.mark.slow  # a real HAProxy each

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        writer.write(ANSWER % (len(head), head))


@asynccontextmanager
async def listening(folder: Path, **told: object) -> AsyncIterator[int]:
    """HAProxy's port."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with in_front_of(server, folder=folder, **told) as url:
        yield urlsplit(url).port or 0


def trusting(tls: ChannelTls, own: ChannelTls | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.authority)
    context.check_hostname = False
    if own:
        context.load_cert_chain(own.certificate, own.key)
    return context


async def connected(
    port: int, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def asked(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: bytes = b"/v1/models"
) -> bytes:
    reader, writer = connection
    writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length"))
        return head + await reader.readexactly(int(length.split(b":")[1]))


def shown(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    return connection[1].get_extra_info("ssl_object").getpeercert(binary_form=True)


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


def told(tls: ChannelTls) -> dict[str, str]:
    return {"CERTIFICATE": tls.certificate, "KEY": tls.key}


async def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(tmp_path: Path):
    authority = Authority(tmp_path)
    tls = authority.tls()
    async with listening(tmp_path, **told(tls)) as port:
        first = await connected(port, trusting(tls))
        answer = await asked(first)
        assert b"x-forwarded-proto: https" in answer
        assert stat.S_IMODE((tmp_path / "haproxy.cfg.pem").stat().st_mode) == 0o600

        before = shown(first)
        write(tls.key, "not a key")  # half of a renewal shows nothing new
        authority.tls()
        async with asyncio.timeout(10):
            while shown(newest := await connected(port, trusting(tls))) == before:
                newest[1].close()
                await asyncio.sleep(0.1)
        assert (await asked(newest)).startswith(b"HTTP/1.1 200 ")
        assert (await asked(first)).startswith(b"HTTP/1.1 200 ")
        for each in (first, newest):
            each[1].close()


async def test_http_2_and_1_over_new_enough_tls_are_spoken(tmp_path: Path):
    tls = Authority(tmp_path).tls()
    async with listening(tmp_path, **told(tls)) as port:
        for offered, chosen in (
            (["http/1.1", "h2"], "h2"),
            (["h3", "http/1.1"], "http/1.1"),
            (["h3"], None),
        ):
            context = trusting(tls)
            context.set_alpn_protocols(offered)
            connection = await connected(port, context)
            assert connection[1].get_extra_info("ssl_object").selected_alpn_protocol() == chosen
            connection[1].close()
        old = trusting(tls)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connected(port, old)


async def test_callers_show_a_certificate_where_an_authority_is_named(tmp_path: Path):
    server, callers, others = (tmp_path / name for name in ("server", "callers", "others"))
    for folder in (server, callers, others):
        folder.mkdir()
    tls, caller, other = Authority(server).tls(), Authority(callers).tls(), Authority(others).tls()
    async with listening(tmp_path, **told(tls), CLIENT_CA=caller.authority) as port:
        connection = await connected(port, trusting(tls, caller))
        assert (await asked(connection)).startswith(b"HTTP/1.1 200 ")
        connection[1].close()
        for unknown in (None, other):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await asked(await connected(port, trusting(tls, unknown)))


async def test_operators_alone_show_one_where_the_settings_say_so(tmp_path: Path):
    authority = Authority(tmp_path)
    tls = authority.tls()
    mine = {"CLIENT_CA": tls.authority, "CLIENT_CA_OPERATORS": 1}
    async with listening(tmp_path, **told(tls), **mine) as port:
        caller, operator = [await connected(port, trusting(tls, own)) for own in (None, tls)]
        assert (await asked(caller)).startswith(b"HTTP/1.1 200 ")
        assert (await asked(operator, b"/admin/status")).startswith(b"HTTP/1.1 200 ")
        refused = await asked(caller, b"/admin/status")
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert b"client certificate" in refused
        for each in (caller, operator):
            each[1].close()


OPERATORS_PATHS = [
    b"/admin", b"/%61dmin/status", b"/adm%69n/keys/revoke", b"/%41dmin/status", b"/ADMIN/status",
    b"/%61%64%6d%69%6e/status", b"/%2561dmin/status", b"/admin/status%zz", b"/%61dmin/status%zz",
    b"/%61dmin%", b"//admin/status", b"/%2fadmin/status", b"/./admin/status", b"/%2e/admin/status",
    b"/v1/../admin/status", b"/v1/%2E%2e/%61dmin/status", b"/admin%2fstatus", b"/admin%00/status",
    b"http://localhost/%61dmin/status", b"HTTP://localhost/admin/status", b"/%61dmin?x=%zz",
    b"/%61dmin;x/status", b"/adm\xc4\xb1n/status",
]  # fmt: skip


async def test_no_spelling_of_an_operators_path_passes_without_a_certificate(tmp_path: Path):
    """Those that reach the server here are no operator's path to any reader."""
    tls = Authority(tmp_path).tls()
    mine = {"CLIENT_CA": tls.authority, "CLIENT_CA_OPERATORS": 1}
    elsewhere = {b"/%2561dmin/status", b"/adm\xc4\xb1n/status"}
    async with listening(tmp_path, **told(tls), **mine) as port:
        passed = set()
        for path in OPERATORS_PATHS:
            caller = await connected(port, trusting(tls))
            if (await asked(caller, path)).startswith(b"HTTP/1.1 200 "):
                passed.add(path)
            caller[1].close()
    assert passed <= elsewhere


def test_files_that_do_not_fit_are_named(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    tls, other = Authority(one).tls(), Authority(two).tls()
    assert CertificateFiles(tls.certificate, tls.key, tls.authority).problem() is None
    wrong = {
        "nowhere/tls.crt cannot be read: No such": (str(tmp_path / "nowhere/tls.crt"), tls.key, ""),
        "two/authority-signed.key are no certificate": (tls.certificate, other.key, ""),
        "are no certificate in PEM and its key": (tls.certificate, tls.certificate, ""),
        "has no authority's certificate": (tls.certificate, tls.key, tls.key),
    }
    for expected, files in wrong.items():
        assert expected in (CertificateFiles(*files).problem() or ""), expected


async def test_haproxy_does_not_start_without_a_good_one_and_says_why(tmp_path: Path):
    tls = Authority(tmp_path).tls()
    tls = replace(tls, key=str(tmp_path / "none.key"))
    wrapper = str(haproxy.program(tmp_path / "program", tmp_path))
    (tmp_path / "haproxy.cfg").write_text("global\n")
    environ = {f"HEADRACE_HAPROXY_{name}": value for name, value in told(tls).items()}
    process = await asyncio.create_subprocess_exec(
        wrapper, "-db", "-f", str(tmp_path / "haproxy.cfg"), env=environ,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()
    assert process.returncode == 1
    assert f"{tls.key} cannot be read: No such file" in said.decode()
