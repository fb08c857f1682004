"""What HAProxy takes and from whom, at the real one before a server that says what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from real_haproxy import in_front_of

from deployments.control.ingress import haproxy_rules
from deployments.control.ingress.haproxy_options import HAProxyOptions
from deployments.control.supervisor import ports

pytestmark = pytest.mark.slow  # a real HAProxy each

HOST = b"host: x\r\n"
LARGE = 40_000  # more than HAProxy's buffer


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the head and the body's length; as a gateway, waits for slow bodies."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            names = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
            size = await _body(reader, names)
            said = json.dumps({"head": head.decode("latin-1").lower(), "size": size}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
    writer.close()


async def _body(reader: asyncio.StreamReader, names: dict[bytes, bytes]) -> int:
    if names.get(b"transfer-encoding") != b"chunked":
        return len(await reader.readexactly(int(names.get(b"content-length", b"0"))))
    size = 0
    while chunk := int(await reader.readline(), 16):
        size += len((await reader.readexactly(chunk + 2))[:-2])
    await reader.readline()
    return size


@asynccontextmanager
async def listening(folder: Path, **told: object) -> AsyncIterator[Edge]:
    """HAProxy as it is told, before one gateway."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0, limit=1 << 20)
    async with in_front_of(server, folder=folder, **told) as url:
        yield Edge(urlsplit(url).port or 0)


class Edge:
    def __init__(self, port: int) -> None:
        self._port = port

    async def connected(
        self, source: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = "::1" if ":" in source else "127.0.0.1"
        return await asyncio.open_connection(host, self._port, local_addr=(source, 0))

    async def said(self, request: bytes, source: str = "127.0.0.1") -> bytes:
        """The first answer, and what came with it; nothing where the connection was refused."""
        with contextlib.suppress(ConnectionError):
            reader, writer = await self.connected(source)
            writer.write(request)
            async with asyncio.timeout(10):
                answer = await _whole(reader)
            writer.close()
            return answer
        return b""


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """One answer, in however many segments it comes; without a length up to the end, where the
    connection is closed after it."""
    found = b""
    while not _is_whole(found) and (more := await reader.read(65_536)):
        found += more
    return found


def _is_whole(found: bytes) -> bool:
    names, ends, body = found.lower().partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", names)
    if length:
        return len(body) >= int(length[1])
    return bool(ends) and b"connection: close" not in names


def ask(*lines: bytes, method: bytes = b"GET", path: bytes = b"/v1/models") -> bytes:
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, path, b"".join(lines))


def post(size: int, sent: int, source: str = "") -> bytes:
    said = f"x-forwarded-for: {source}\r\n".encode() if source else b""
    head = ask(HOST, said, b"content-length: %d\r\n" % size, method=b"POST")
    return head + b"x" * sent


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with listening(tmp_path) as found:
        yield found


OPENAI = {"message", "type", "param", "code"}
# HAProxy's parser answers these by itself, before there is a path.
HTML = {b"400 nobody"}


async def test_what_two_readers_may_understand_differently_reaches_no_gateway(edge: Edge):
    key = b"authorization: Bearer a\r\n"
    refused = {
        b"400 no host": ask(),
        b"400 no host, 1.0": b"GET /v1/models HTTP/1.0\r\n\r\n",
        b"400 two keys": ask(HOST, key, key),
        b"400 two keys of Anthropic's": ask(HOST, *[b"x-api-key: a\r\n"] * 2),
        b"400 nobody": ask(HOST, b": v\r\n"),
        b"403 underscore": ask(HOST, b"x_tenant: acme\r\n"),
        b"403 dot": ask(HOST, b"x.tenant: acme\r\n"),
        b"404 climbs": ask(HOST, path=b"/v1/../admin/status"),
        b"404 climbs at its end": ask(HOST, path=b"/v2/.."),
        b"404 doubled": ask(HOST, path=b"//admin/status"),
        b"404 dots encoded": ask(HOST, path=b"/v1/%2e%2e/admin/status"),
        b"404 slash encoded": ask(HOST, path=b"/v1%2Fmodels"),
        b"404 not to be decoded": ask(HOST, path=b"/v1/models/%zz"),
        b"404 half a code": ask(HOST, path=b"/v1/models/m%6"),
        b"404 Serve's own": ask(HOST, path=b"/-/routes"),
        b"404 what HAProxy asks": ask(HOST, path=b"/-/haproxy"),
        b"404 that, encoded": ask(HOST, path=b"/%2d/../-/haproxy"),
        b"431 many headers": ask(HOST, *(b"x-%d: 1\r\n" % n for n in range(120))),
        b"431 large headers": ask(HOST, b"x: " + b"y" * 20_000 + b"\r\n"),
        b"414 long path": ask(HOST, path=b"/v1/" + b"y" * 20_000),
        b"414 long query": ask(HOST, path=b"/v1/models?" + b"y" * 20_000),
    }
    for why, request in refused.items():
        head, _, body = (await edge.said(request)).partition(b"\r\n\r\n")
        assert head.split()[1] == why[:3], why
        if why in HTML:
            assert b"<html>" in body
        else:
            assert json.loads(body)["error"], why
    assert (await edge.said(ask(HOST, key))).startswith(b"HTTP/1.1 200 ")


async def test_a_load_balancers_check_may_be_of_http_1_0(edge: Edge):
    answer = await edge.said(b"GET /-/healthz HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("token", [b"foo", b"h2c", b"websocket"])
async def test_nothing_upgrades_and_a_body_is_read_whole(edge: Edge, token: bytes):
    """As RFC 9110 §7.8 allows. Java's own client sends `h2c` with every request."""
    lines = (b"connection: upgrade\r\n", b"upgrade: %b\r\n" % token,
             b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
             b"content-length: %d\r\n" % LARGE)  # fmt: skip
    answer = await edge.said(ask(HOST, *lines, method=b"POST") + b"x" * LARGE)
    assert b'"size": %d' % LARGE in answer
    assert b"\\r\\nupgrade:" not in answer


@pytest.mark.parametrize(
    ("path", "api"),
    [
        (b"/v1", "openai"),
        (b"/v1/models/a:b", "openai"),
        (b"/v1/responses", "openai"),
        (b"/v1/messagesx", "openai"),
        (b"/tokenize", "openai"),
        (b"/v1/messages", "anthropic"),
        (b"/v1/messages/count_tokens", "anthropic"),
        (b"/v1/models/a:predict", ""),
        (b"/v1/models/a%3Aclassify", ""),
        (b"/v1x", ""),
        (b"/v2/models/a/infer", ""),
        (b"/healthz", ""),
    ],
)
async def test_a_refusal_has_the_shape_of_the_api_it_belongs_to(edge, path, api):
    key = b"authorization: Bearer a\r\n"
    for request, status, kind, code in (
        (ask(HOST, key, key, path=path), b"400", "invalid_request_error", "invalid_request"),
        (ask(HOST, b"x_y: z\r\n", path=path), b"403", "permission_error", "forbidden"),
        (ask(HOST, b"x: " + b"y" * 20_000 + b"\r\n", path=path), b"431", "invalid_request_error",
         "headers_too_large"),
    ):  # fmt: skip
        head, _, body = (await edge.said(request)).partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert b"content-type: application/json" in head
        error = json.loads(body)["error"]
        if api == "anthropic":
            assert json.loads(body)["type"] == "error"
            assert error == {"message": error["message"], "type": kind}
        elif api:
            assert error == {"message": error["message"], "type": kind, "param": None, "code": code}
            assert error["message"]
        else:
            assert isinstance(error, str)
            assert error


PLAIN = b"HTTP/1.1 %d X\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nno!"


@pytest.mark.parametrize(
    ("said", "status"),
    [(b"", 502), (b"nonsense\r\n\r\n", 502), (None, 503)]
    + [(PLAIN % status, 503 if status == 404 else status) for status in (404, 408, 500, 503, 504)],
    ids=["nothing", "nonsense", "nobody", "404", "408", "500", "503", "504"],
)
@pytest.mark.parametrize(
    ("path", "api"), [(b"/v1/embeddings", "openai"), (b"/v1/messages", "anthropic"), (b"/v2", "")]
)
async def test_what_a_gateway_or_serve_did_not_answer_has_the_shape_too(
    tmp_path: Path, said: bytes | None, status: int, path: bytes, api: str
):
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said or b"")
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    gateway = ports.any_free() if said is None else server
    async with in_front_of(gateway, folder=tmp_path) as url, server:
        edge = Edge(urlsplit(url).port or 0)
        head, _, body = (await edge.said(ask(HOST, path=path))).partition(b"\r\n\r\n")
    overloaded = api == "anthropic" and status == 503
    assert head.split()[1] == (b"529" if overloaded else b"%d" % status)
    error = json.loads(body)["error"]
    if api == "anthropic":
        assert json.loads(body)["type"] == "error"
        kinds = {408: "invalid_request_error", 503: "overloaded_error", 504: "timeout_error"}
        assert error["type"] == kinds.get(status, "api_error")
    elif api:
        assert error.keys() == OPENAI
        assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    else:
        assert isinstance(error, str)
    assert (b"retry-after: 1" in head) == (status != 500)


async def test_a_gateway_hears_that_a_caller_speaks_http_1_0_and_may_end_its_stream(
    tmp_path: Path,
):
    """HAProxy would pass chunks on as they are."""

    async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b" HTTP/1.0\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none")
        await writer.drain()
        writer.write(b"two")
        writer.close()

    server = await asyncio.start_server(streams, "127.0.0.1", 0)
    async with in_front_of(server, folder=tmp_path) as url:
        edge = Edge(urlsplit(url).port or 0)
        head = b"GET /v1/models HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\n\r\n"
        answer = await edge.said(head)
    assert b"transfer-encoding" not in answer.lower()
    assert answer.endswith(b"\r\n\r\nonetwo")


FORGED = (b"x-forwarded-for: 6.6.6.6\r\n", b"x-forwarded-proto: https\r\n",
          b"x-forwarded-prefix: /forged\r\n")  # fmt: skip


async def test_the_callers_address_is_what_it_connects_from_not_what_it_says(edge: Edge):
    answer = await edge.said(ask(HOST, *FORGED), "127.0.0.7")
    assert b"x-forwarded-for: 127.0.0.7\\r\\n" in answer
    assert b"x-forwarded-proto: http\\r\\n" in answer
    assert b"6.6.6.6" not in answer
    assert b"/forged" not in answer


async def test_a_trusted_proxy_is_taken_at_its_word(tmp_path: Path):
    async with listening(tmp_path, TRUSTED_PROXIES="127.0.0.8/32 fd00::/8") as edge:
        answer = await edge.said(ask(HOST, *FORGED), "127.0.0.8")
        assert b"6.6.6.6" in answer
        assert b"/forged" in answer
        assert b"x-forwarded-for: 127.0.0.8" in await edge.said(ask(HOST), "127.0.0.8")
        assert b"6.6.6.6" not in await edge.said(ask(HOST, *FORGED), "127.0.0.7")


@pytest.mark.parametrize("size", [10, LARGE])
async def test_chunked_bodies_of_any_size_are_taken(edge: Edge, size):
    chunks = b"".join(b"%x\r\n%b\r\n" % (n, b"x" * n) for n in [size // 2, size - size // 2])
    head = ask(HOST, b"transfer-encoding: chunked\r\n", method=b"POST")
    assert b'"size": %d' % size in await edge.said(head + chunks + b"0\r\n\r\n")


async def test_a_body_that_fits_the_buffer_comes_whole_or_not_at_all(tmp_path: Path):
    async with listening(tmp_path, BODY_S=1) as edge:
        assert (await edge.said(post(20, 19))).startswith(b"HTTP/1.1 408 ")
        assert b'"size": 20' in await edge.said(post(20, 20))


async def test_nobody_is_asked_to_send_what_is_too_long(tmp_path: Path):
    """It goes on to the gateway, which refuses it by its head."""
    async with listening(tmp_path, MAX_BODY_BYTES=50) as edge:
        for size, asked in ((50, True), (51, False)):
            expects = ask(
                HOST, b"expect: 100-continue\r\ncontent-length: %d\r\n" % size, method=b"POST"
            )
            reader, writer = await edge.connected()
            writer.write(expects)
            if asked:
                assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.readline(), 0.2)
            writer.close()


async def test_slow_large_bodies_of_one_source_leave_others_their_places(tmp_path: Path):
    """Of 16 places: 8 for such bodies before a source with one of them is refused more."""
    async with listening(tmp_path, MAX_REQUESTS=16) as edge:
        slow = [await edge.connected("127.0.0.9") for _ in range(40)]
        for _, writer in slow:
            writer.write(post(LARGE, LARGE - 1))
        assert await _first_answers(slow, 40 - 8) == {b"503"}
        for size in (10, LARGE):
            assert b'"size": %d' % size in await edge.said(post(size, size)), size
        for _, writer in slow:
            writer.close()
        async with asyncio.timeout(5):
            while b'"size"' not in await edge.said(post(LARGE, LARGE), "127.0.0.9"):  # noqa: ASYNC110 - HAProxy tells nobody
                await asyncio.sleep(0.02)


async def _first_answers(
    asked: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]], count: int, most: int = 0
) -> set[bytes]:
    """Statuses of those who are answered, once they are `count`, at `most` (`count` where that is
    not said); the others go on."""
    reading = {asyncio.create_task(reader.readline()) for reader, _ in asked}
    done: set[asyncio.Task[bytes]] = set()
    async with asyncio.timeout(10):
        while len(done) < count:
            now, reading = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            done |= now
    for each in reading:
        each.cancel()
    assert len(done) <= (most or count)
    return {each.result()[9:12] for each in done}


async def test_slow_large_bodies_of_many_sources_leave_whole_requests_a_quarter(tmp_path: Path):
    async with listening(tmp_path, MAX_REQUESTS=16) as edge:
        slow = [await edge.connected(f"127.0.1.{n + 1}") for n in range(20)]
        for _, writer in slow:
            writer.write(post(LARGE, LARGE - 1))
        assert await _first_answers(slow, 20 - 16, 20 - 12) == {b"503"}
        assert b'"size": 10' in await edge.said(post(10, 10), "127.0.0.9")
        for _, writer in slow:
            writer.close()


async def test_a_network_of_ipv6_is_one_source_of_bodies(tmp_path: Path):
    """Whoever has one address of it has 2^64. Another network is another source."""
    async with listening(tmp_path, MAX_REQUESTS=16, TRUSTED_PROXIES="127.0.0.8/32") as edge:
        slow = [await edge.connected("127.0.0.8") for _ in range(40)]
        for n, (_, writer) in enumerate(slow):
            writer.write(post(LARGE, LARGE - 1, f"2001:db8:0:1::{n + 1:x}"))
        assert await _first_answers(slow, 40 - 8) == {b"503"}
        for source, status in (("2001:db8:0:1:ffff::1", b"503"), ("2001:db8:0:2::1", b"200"),
                               ("192.0.2.1", b"200"), ("::ffff:192.0.2.2", b"200")):  # fmt: skip
            said = await edge.said(post(LARGE, LARGE, source), "127.0.0.8")
            assert said[9:12] == status, source
        for _, writer in slow:
            writer.close()


async def test_connections_are_counted_by_address_or_by_network_of_ipv6(tmp_path: Path):
    async with listening(tmp_path, HOST="::") as edge:
        held = [await edge.connected(f"127.0.0.{n}") for n in (5, 6)]
        held.append(await edge.connected("::1"))
        expected, counted = {"::ffff:127.0.0.5", "::ffff:127.0.0.6", "::"}, set[str]()
        async with asyncio.timeout(5):  # each of HAProxy's threads counts once it has accepted
            while not expected <= counted:
                counted = await _table(tmp_path, "http_frontend")
        assert "::1" not in counted
        for _, writer in held:
            writer.close()


async def _table(folder: Path, name: str) -> set[str]:
    """Its keys, as the admin socket has them."""
    return set(re.findall(r"key=(\S+)", await _shown(folder, name)))


async def _shown(folder: Path, name: str) -> str:
    """A table, as the admin socket shows it: a line a key."""
    reader, writer = await asyncio.open_unix_connection(folder / "admin.sock")
    writer.write(f"show table {name}\n".encode())
    async with asyncio.timeout(5):
        said = (await reader.read()).decode()
    writer.close()
    return said


async def test_the_one_who_takes_most_connections_is_refused_more_of_them(tmp_path: Path):
    """Once four fifths of 100 are taken a source may have ten."""
    async with listening(tmp_path, MAXCONN=100) as edge:
        held = [(await edge.connected("127.0.0.9"))[1] for _ in range(75)]
        async with asyncio.timeout(5):
            while await edge.said(ask(HOST), "127.0.0.9"):
                with contextlib.suppress(ConnectionError):
                    held.append((await edge.connected("127.0.0.9"))[1])
        assert (await edge.said(ask(HOST), "127.0.0.7")).startswith(b"HTTP/1.1 200 ")
        for writer in held:
            writer.close()


async def test_connections_of_one_source_have_a_bound_where_it_is_set(tmp_path: Path):
    async with listening(tmp_path, SOURCE_CONNECTIONS=3) as edge:
        held = [await edge.connected("127.0.0.9") for _ in range(3)]
        assert (await edge.said(ask(HOST), "127.0.0.7")).startswith(b"HTTP/1.1 200 ")
        async with asyncio.timeout(5):  # each of HAProxy's threads counts once it has accepted
            shown = ""
            while not re.search(r"127\.0\.0\.9 .*conn_cur=3", shown):
                shown = await _shown(tmp_path, "http_frontend")
        assert await edge.said(ask(HOST), "127.0.0.9") == b""
        for _, writer in held:
            writer.close()


async def test_the_admin_socket_is_its_owners_on_the_disk(edge: Edge, tmp_path: Path):
    assert stat.S_IMODE((tmp_path / "admin.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize("options", [HAProxyOptions(), HAProxyOptions(source_connections=5)])
def test_a_source_has_a_bound_of_its_own_only_where_one_is_set(options):
    rules = haproxy_rules.frontend(options, 1000, 1)
    assert ("sc0_conn_cur gt 5 }" in rules) == bool(options.source_connections)
    assert "fe_conn(http_frontend) gt 800 } { sc0_conn_cur gt 100 }" in rules


def test_more_gateways_take_more_large_bodies():
    rules = haproxy_rules.frontend(HAProxyOptions(max_requests=100), 1000, gateways=2)
    assert "gt 100 }" in rules
    assert "gt 150 }" in rules


@pytest.mark.parametrize("has_gateway", [False, True])
async def test_large_bodies_go_to_no_fallback(has_gateway: bool, tmp_path: Path) -> None:
    """Serve's proxy never hands them on."""
    stands_in = await asyncio.start_server(echo, "127.0.0.1", 0, limit=1 << 20)
    gateways = [await asyncio.start_server(echo, "127.0.0.1", 0, limit=1 << 20)] * has_gateway
    port = stands_in.sockets[0].getsockname()[1]
    async with in_front_of(*gateways, folder=tmp_path, fallback=port) as url:
        edge = Edge(urlsplit(url).port or 0)
        for size, expected in ((1 << 20, b"200"), (9 << 20, b"200" if has_gateway else b"503")):
            head = b"POST / HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (
                HOST,
                size,
            )
            answer = await edge.said(head + bytes(size))
            assert answer.split(b" ", 2)[1] == expected, (size, answer[:300])
        chunked = b"POST /v2/models/m/infer HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\n" % HOST
        for size, expected in ((100, b"200"), (30_000, b"200" if has_gateway else b"503")):
            answer = await edge.said(chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (size, bytes(size)))
            assert answer.split(b" ", 2)[1] == expected, (size, answer[:300])
    stands_in.close()
