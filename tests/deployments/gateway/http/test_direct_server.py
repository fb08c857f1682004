"""The gateway's own server: who may connect, when a request begins, and how it ends."""

import asyncio
import shutil
import ssl
from contextlib import asynccontextmanager

import pytest
from certificates import Authority

from deployments.control.supervisor.ingress_socket import IngressSocket
from deployments.gateway.http import direct_protocol, strict_protocol
from deployments.gateway.http.direct_protocol import Connections
from deployments.gateway.http.direct_server import CertificateRenewal, DirectServer
from deployments.settings.gateway import GatewaySettings, TlsSettings

HEAD = b"POST /v2/x HTTP/1.1\r\nhost: x\r\n"


class App:
    """Answers with what it heard; `gate`: to wait for before it does."""

    def __init__(self):
        self.asked, self.gate = [], asyncio.Event()
        self.gate.set()

    async def __call__(self, scope, receive, send):
        self.asked.append(scope)
        await self.gate.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


class Started:
    def __init__(self, app, server, port):
        self.app, self.server, self._port = app, server, port

    async def connected(self, **more):
        return await asyncio.open_connection("127.0.0.1", self._port, **more)

    async def said(self, request):
        reader, writer = await self.connected()
        writer.write(request)
        return await answer(reader)


async def answer(reader):
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return head + await reader.readexactly(size)


async def ended(reader):
    async with asyncio.timeout(10):
        return await reader.read()


@asynccontextmanager
async def direct(folder, **gateway):
    held = IngressSocket("127.0.0.1", 0, folder / "ingress.sock")
    app, settings = App(), GatewaySettings.model_validate(gateway)
    server = DirectServer(app, settings)
    await server.start(str(folder / "ingress.sock"))
    try:
        yield Started(app, server, held._listening.getsockname()[1])
    finally:
        server.should_exit = True
        server.close()
        await asyncio.to_thread(held.close)


async def test_the_probe_of_a_cluster_is_answered(tmp_path):
    async with direct(tmp_path) as it:
        said = await it.said(b"GET /-/healthz HTTP/1.0\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.endswith(b"success")
        assert not it.app.asked


async def test_a_small_body_is_there_before_its_request_begins(tmp_path):
    async with direct(tmp_path) as it:
        reader, writer = await it.connected()
        writer.write(HEAD + b"content-length: 4\r\n\r\nab")
        await it.said(HEAD + b"content-length: 0\r\n\r\n")
        assert len(it.app.asked) == 1
        writer.write(b"cd")
        assert b" 200 " in await answer(reader)
        assert len(it.app.asked) == 2


async def test_a_body_that_does_not_come_is_refused_and_its_connection_ends(tmp_path):
    async with direct(tmp_path, limits={"body_timeout_s": 0.05}) as it:
        reader, writer = await it.connected()
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        said = await ended(reader)
        assert said.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in said
        assert not it.app.asked


async def test_of_a_large_body_so_much_is_waited_for_as_haproxy_would(tmp_path):
    async with direct(tmp_path) as it:
        reader, writer = await it.connected()
        writer.write(HEAD + b"content-length: 100000\r\n\r\n" + bytes(direct_protocol._WHOLE_BYTES))
        assert b" 200 " in await answer(reader)


async def test_who_waits_to_be_asked_for_a_body_is_asked(tmp_path):
    async with direct(tmp_path) as it:
        reader, writer = await it.connected()
        writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        async with asyncio.timeout(10):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ab")
        assert b" 200 " in await answer(reader)


async def test_nobody_says_where_a_request_came_from_but_a_trusted_proxy(tmp_path):
    request = b"GET /v2/x HTTP/1.1\r\nhost: x\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"
    async with direct(tmp_path) as it:
        await it.said(request)
        assert b"x-forwarded-for" not in dict(it.app.asked[0]["headers"])
    (tmp_path / "ingress.sock").unlink()
    async with direct(tmp_path, trusted_proxies=["127.0.0.0/8"]) as it:
        await it.said(request)
        assert dict(it.app.asked[0]["headers"])[b"x-forwarded-for"] == b"192.0.2.1"


async def test_more_connections_of_one_address_than_it_may_have_end_at_once(tmp_path):
    async with direct(tmp_path, limits={"connections_per_source": 2}) as it:
        kept = [await it.connected() for _ in range(2)]
        reader, _ = await it.connected()
        assert await ended(reader) == b""
        kept[0][1].close()
        while it.server.open == 2:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
        assert b" 200 " in await it.said(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")


def test_when_few_connections_are_left_one_address_may_have_a_tenth():
    connections = Connections(100, 0, ["10.0.0.0/8"])

    def taken(address):
        return connections.take(connections.source(address))

    assert all(taken(f"2001:db8:0:{n}::1") for n in range(80))
    assert all(taken(f"2001:db8:1::{n}") for n in range(1, 11))
    assert not taken("2001:db8:1::ffff")  # of the same 64 bits
    assert all(taken("10.1.2.3") for _ in range(10))
    assert not taken("10.1.2.3")  # there are no more
    connections.give(connections.source("10.1.2.3"))
    assert taken("::ffff:192.0.2.1")


async def test_when_it_stops_an_idle_connection_may_be_used_once_more(tmp_path):
    async with direct(tmp_path) as it:
        reader, writer = await it.connected()
        request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        writer.write(request)
        await answer(reader)
        strict_protocol.stop_accepting()
        while it.server.servers[0].is_serving():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
        writer.write(request)
        said = await ended(reader)
        assert b" 200 " in said
        assert b"connection: close" in said
        while it.server.open:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


async def test_when_it_stops_what_is_under_way_is_answered(tmp_path):
    async with direct(tmp_path) as it:
        it.app.gate.clear()
        reader, writer = await it.connected()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        while not it.app.asked:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
        strict_protocol.stop_accepting()
        it.app.gate.set()
        assert b" 200 " in await ended(reader)


def tls_of(made):
    return {"certificate": made.certificate, "key": made.key}


async def test_a_renewed_certificate_counts_for_new_connections(tmp_path):
    first = Authority(tmp_path, "first")
    shown = first.tls()
    trusts = ssl.create_default_context(cafile=first.file)
    trusts.check_hostname = False
    second = Authority(tmp_path, "second")
    renewed = ssl.create_default_context(cafile=second.file)
    renewed.check_hostname = False
    async with direct(tmp_path, tls=tls_of(shown)) as it:
        await it.connected(ssl=trusts)
        other = second.tls()
        for new, old in ((other.certificate, shown.certificate), (other.key, shown.key)):
            shutil.copyfile(new, old)
        it.server._renewal.look()
        await it.connected(ssl=renewed)
        with pytest.raises(ssl.SSLError):
            await it.connected(ssl=trusts)


async def test_a_trusted_proxy_that_says_no_scheme_has_that_of_its_connection(tmp_path):
    shown = Authority(tmp_path).tls()
    trusts = ssl.create_default_context(cafile=shown.authority)
    trusts.check_hostname = False
    for tls, trusted, line, scheme in (
        (True, True, b"", [b"https"]),
        (True, True, b"x-forwarded-proto: http\r\n", [b"http"]),
        (True, True, b"forwarded: for=6.6.6.6;proto=http\r\n", [b"http"]),
        (True, False, b"x-forwarded-proto: http\r\n", [b"https"]),
        (False, True, b"", []),
    ):
        settings = {"trusted_proxies": ["127.0.0.0/8"] if trusted else []}
        async with direct(tmp_path, tls=tls_of(shown) if tls else None, **settings) as it:
            reader, writer = await it.connected(ssl=trusts if tls else None)
            writer.write(b"GET /v2 HTTP/1.1\r\nhost: x\r\n" + line + b"\r\n")
            await answer(reader)
            (scope,) = it.app.asked
            assert [v for n, v in scope["headers"] if n == b"x-forwarded-proto"] == scheme
            writer.close()


def certified(authority, by):
    """Of a caller that trusts the server's authority, with a certificate of `by`."""
    context, own = ssl.create_default_context(cafile=authority.file), by.tls()
    context.check_hostname = False
    context.load_cert_chain(own.certificate, own.key)
    return context


async def test_a_renewed_authority_of_callers_takes_the_place_of_the_one_before(tmp_path):
    server, before, after = (Authority(tmp_path, name) for name in ("server", "before", "after"))
    tls = tls_of(server.tls()) | {"client_ca": before.file}
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    async with direct(tmp_path, tls=tls) as it:

        async def said(context):
            reader, writer = await it.connected(ssl=context)
            writer.write(request)
            return await answer(reader)

        old, new = certified(server, before), certified(server, after)
        assert b" 200 " in await said(old)
        shutil.copyfile(after.file, before.file)
        it.server._renewal.look()
        assert b" 200 " in await said(new)
        with pytest.raises((ssl.SSLError, EOFError)):  # TLS 1.3 refuses after the handshake
            await said(old)


def test_files_that_do_not_fit_leave_the_last_good_ones(tmp_path, caplog):
    shown = Authority(tmp_path).tls()
    renewal = CertificateRenewal(TlsSettings.model_validate(tls_of(shown)))
    before = renewal._last
    with open(shown.key, "w") as key:
        key.write("no key")
    renewal.look()
    renewal.look()
    (said,) = (each.getMessage() for each in caplog.records)
    assert said.startswith("the certificate is not renewed: ")
    assert renewal._last is before
