"""HTTP/2 at the real HAProxy, which speaks it over TLS: every rule holds as for HTTP/1.1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from certificates import Authority
from http2_frames import MAX_CONCURRENT_STREAMS, RST_STREAM, Http2, http2
from real_haproxy import in_front_of

from deployments.control.ingress import haproxy_rules
from deployments.process.sockets import ChannelTls

pytestmark = pytest.mark.slow  # a real HAProxy each

LARGE = 40_000  # more than HAProxy's buffer
CANCEL = (8).to_bytes(4, "big")


class Gateway:
    """Answers with what it was sent, in JSON; at /events with three events, each when `go` says so;
    where it `dies` it closes what it has read whole. `asked`: the heads it got; `open`: its
    connections."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Queue[None]()
        self.dies = False
        self.open = self.most_open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ValueError):
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower():
                self.asked.append(head)
                size = await _size(reader, head)
                if self.dies:
                    break
                await self._answer(writer, head, size)
        self.open -= 1
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, head: str, size: int) -> None:
        if head.startswith("get /events"):
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(3):
                await self.go.get()
                writer.write(b"6\r\ndata\n\n\r\n")
            writer.write(b"0\r\n\r\n")
            return
        said = json.dumps({"head": head, "size": size}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))


async def _size(reader: asyncio.StreamReader, head: str) -> int:
    names = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
    if "transfer-encoding" not in names:
        return len(await reader.readexactly(int(names.get("content-length", "0"))))
    size = 0
    while chunk := int(await reader.readline(), 16):
        size += len((await reader.readexactly(chunk + 2))[:-2])
    await reader.readline()
    return size


class Edge:
    def __init__(self, port: int, tls: ChannelTls, gateways: list[Gateway]) -> None:
        self.port, self.gateways = port, gateways
        self._tls = tls

    def trusting(self, own: ChannelTls | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._tls.authority)
        context.check_hostname = False
        if own:
            context.load_cert_chain(own.certificate, own.key)
        return context

    @asynccontextmanager
    async def connected(
        self, source: str = "127.0.0.1", own: ChannelTls | None = None
    ) -> AsyncIterator[Http2]:
        async with http2(self.port, self.trusting(own), source) as found:
            yield found


@asynccontextmanager
async def listening(folder: Path, gateways: int = 1, **told: object) -> AsyncIterator[Edge]:
    tls = Authority(folder).tls()
    made = [Gateway() for _ in range(gateways)]
    servers = [await asyncio.start_server(each, "127.0.0.1", 0, limit=1 << 20) for each in made]
    both = {"CERTIFICATE": tls.certificate, "KEY": tls.key, "BODY_S": 1, **told}
    async with in_front_of(*servers, folder=folder, **both) as url:
        yield Edge(urlsplit(url).port or 0, tls, made)


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with listening(tmp_path) as found:
        yield found


async def test_what_two_readers_may_understand_differently_reaches_no_gateway(edge: Edge):
    key = ("authorization", "Bearer a")
    async with edge.connected() as it:
        assert it.settings[MAX_CONCURRENT_STREAMS] == haproxy_rules.MAX_STREAMS
        for status, answer in (
            (400, await it.ask("/v1/x", authority=None)),
            (400, await it.ask("/v1/x", [key, key])),
            (403, await it.ask("/v1/x", [("x_tenant", "acme")])),
            (404, await it.ask("/v1/../admin/status")),
            (404, await it.ask("//admin")),
            (404, await it.ask("/-/routes")),
            (404, await it.ask("/v1/%zz")),
            (431, await it.ask("/v1/x", [(f"x-{n}", "1") for n in range(120)])),
            (431, await it.ask("/v1/x", [("x", "y" * 15_500)])),
            (414, await it.ask("/v1/x?" + "y" * 15_500)),
        ):
            assert answer.status == status
            assert json.loads(answer.body)["error"]
        # What HTTP/2 itself forbids ends the stream.
        for more, body in (
            ([("connection", "close")], None),
            ([("transfer-encoding", "chunked")], b"x"),
            ([("X-Upper", "1")], None),
            ([("content-length", "5")], b"123456"),
            ([("content-length", "5")], b"1234"),
        ):
            assert (await it.ask("/v1/x", more, body)).reset is not None, more
    assert edge.gateways[0].asked == []


async def test_no_tunnel_is_opened(edge: Edge):
    async with edge.connected() as it:
        for more in ([], [(":protocol", "websocket")]):
            found = await it.answer(it.begin("/v1/x", more, method="CONNECT"))
            assert found.reset is not None
    assert edge.gateways[0].asked == []


async def test_the_authority_is_the_host_and_says_it_alone(edge: Edge):
    async with edge.connected() as it:
        answer = await it.ask("/v1/x", [("host", "other"), ("x-forwarded-for", "6.6.6.6")])
        head = json.loads(answer.body)["head"]
        assert head.startswith("get /v1/x http/1.1\r\n")
        assert "\r\nhost: localhost\r\n" in head
        assert "other" not in head
        assert "x-forwarded-proto: https" in head
        assert "6.6.6.6" not in head


async def test_a_trusted_proxy_that_says_no_scheme_has_that_of_its_connection(tmp_path: Path):
    async with listening(tmp_path, TRUSTED_PROXIES="127.0.0.0/8") as edge:
        for more, scheme in (
            ([], "https"),
            ([("x-forwarded-proto", "http")], "http"),
            ([("forwarded", "for=6.6.6.6;proto=http")], "http"),
            ([("forwarded", "for=6.6.6.6")], "https"),
        ):
            async with edge.connected() as it:
                head = json.loads((await it.ask("/v1/x", more)).body)["head"]
                assert f"\r\nx-forwarded-proto: {scheme}\r\n" in head
                assert head.count("x-forwarded-proto") == 1


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("size", [1, 20, LARGE, 300_000])
async def test_bodies_arrive_whole_with_a_length_or_without(edge: Edge, size: int, length: bool):
    more = [("content-length", str(size))] if length else []
    async with edge.connected() as it:
        answer = await it.ask("/v1/x", more, b"x" * size)
        assert json.loads(answer.body)["size"] == size


@pytest.mark.parametrize("more", [[], [("content-length", "20")]])
@pytest.mark.parametrize("sent", [b"", b"x" * 19])
async def test_a_slow_small_body_is_refused_and_no_gateway_hears_of_it(edge: Edge, more, sent):
    async with edge.connected() as it:
        stream = it.begin("/v1/x", more)
        if sent:
            it.data(stream, sent)
        assert (await it.answer(stream)).status == 408
        assert (await it.ask("/v1/x")).status == 200  # on the same connection
    assert len(edge.gateways[0].asked) == 1


@pytest.mark.parametrize("length", [True, False])
async def test_slow_large_bodies_of_one_source_leave_others_their_places(
    tmp_path: Path, length: bool
):
    """Of 16 places: 8 for such bodies before a source with one of them is refused more."""
    more = [("content-length", str(LARGE))] if length else []
    async with (
        listening(tmp_path, MAX_REQUESTS=16, BODY_S=30) as edge,
        edge.connected("127.0.0.9") as slow,
        edge.connected() as other,
    ):
        streams = [slow.begin("/v1/x", more) for _ in range(40)]
        for each in streams:
            slow.data(each, b"x" * (LARGE - 1))
        found = [slow.streams[each] for each in streams]
        await slow.until(lambda: sum(each.ended for each in found) >= 32)
        assert {each.status for each in found if each.ended} == {503}
        assert sum(each.ended for each in found) == 32
        for size in (10, LARGE):
            assert (await other.ask("/v1/x", [], b"x" * size)).status == 200


async def test_streams_are_bounded_as_connections_are(tmp_path: Path):
    """Of 100: 80 before a source with 10 of them is refused more."""
    async with contextlib.AsyncExitStack() as open_:
        edge = await open_.enter_async_context(listening(tmp_path, MAXCONN=100, BODY_S=20))
        busy = [await open_.enter_async_context(edge.connected("127.0.0.9")) for _ in range(2)]
        for each in busy:
            for _ in range(50):
                each.begin("/v1/x")
        found = [stream for each in busy for stream in each.streams.values()]
        await busy[1].until(lambda: sum(each.ended for each in found) >= 19)
        assert {each.status for each in found if each.ended} == {503}
        other = await open_.enter_async_context(edge.connected())
        assert (await other.ask("/v1/x")).status == 200


async def test_events_are_passed_on_as_they_come(edge: Edge):
    gateway = edge.gateways[0]
    async with edge.connected() as it:
        stream = it.streams[it.begin("/events", method="GET", ends=True)]
        for n in range(1, 4):
            assert stream.pieces < n
            gateway.go.put_nowait(None)
            await it.until(lambda n=n: len(stream.body) >= 6 * n)  # type: ignore[misc]
        await it.until(lambda: stream.ended)
        assert stream.body == b"data\n\n" * 3


async def test_what_is_reset_at_once_makes_no_room_for_more(edge: Edge):
    """As in CVE-2023-44487. Another caller is answered meanwhile; nothing is left of it."""
    gateway, other_took = edge.gateways[0], []
    async with edge.connected("127.0.0.9") as attacker, edge.connected() as other:
        for _ in range(100):
            for _ in range(100):
                number = attacker.begin("/v1/x", method="GET", ends=True)
                attacker.frame(RST_STREAM, stream=number, body=CANCEL)
            began = time.monotonic()
            assert (await other.ask("/v1/x")).status == 200
            other_took.append(time.monotonic() - began)
        assert sorted(other_took)[50] < 1.0
        assert gateway.most_open <= haproxy_rules.MAX_STREAMS + 2
        async with asyncio.timeout(10):
            while gateway.open > 2:  # noqa: ASYNC110 - HAProxy tells nobody
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("length", [True, False])
async def test_what_a_dying_gateway_had_goes_to_another(tmp_path: Path, length: bool):
    more = [("content-length", "20")] if length else []
    async with listening(tmp_path, gateways=2) as edge, edge.connected() as it:
        edge.gateways[0].dies = True
        for _ in range(4):
            answer = await it.ask("/v1/x", more, b"x" * 20)
            assert (answer.status, json.loads(answer.body)["size"]) == (200, 20)
        assert edge.gateways[0].asked
        edge.gateways[1].dies = True
        once = await it.ask("/v1/x", [*more, ("x-idempotent", "false")], b"x" * 20)
        assert once.status == 502


async def test_operators_show_a_certificate_here_too(tmp_path: Path):
    authority = Authority(tmp_path, "callers")
    own = authority.tls()
    told = {"CLIENT_CA": own.authority, "CLIENT_CA_OPERATORS": 1}
    async with listening(tmp_path, **told) as edge:
        for shown, status in ((None, 403), (own, 200)):
            async with edge.connected(own=shown) as it:
                assert (await it.ask("/%61dmin/status")).status == status
                assert (await it.ask("/v1/x")).status == 200


async def test_curl_speaks_it_and_who_does_not_gets_http_1(edge: Edge):
    if shutil.which("curl") is None:
        pytest.skip("CURL'S HTTP/2 IS NOT CHECKED: no curl")
    for version in ("2", "1.1"):
        done = await asyncio.create_subprocess_exec(
            "curl", "-sk", f"--http{version}", "-w", "\n%{http_version}", "-d", "x" * LARGE,
            f"https://127.0.0.1:{edge.port}/v1/x", stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await done.communicate()
        body, spoken = said.decode().rsplit("\n", 1)
        assert (spoken, json.loads(body)["size"]) == (version, LARGE)
