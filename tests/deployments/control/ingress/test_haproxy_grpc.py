"""gRPC at the real HAProxy, by an unpatched client, before gateways that speak HTTP/1.1."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from certificates import Authority
from grpc_stub import SERVICE, StubCall, echoes, stub
from http2_frames import http2
from real_haproxy import in_front_of

from deployments.control.ingress import haproxy_rules
from deployments.control.ingress.haproxy_options import HAProxyOptions
from deployments.control.ingress.haproxy_wrapper import corrected
from deployments.control.supervisor import ports
from tests.deployments.control.ingress.test_haproxy_wrapper import CONFIG

pytestmark = pytest.mark.slow  # a real HAProxy each

INFER, STREAM = f"{SERVICE}ModelInfer", f"{SERVICE}ModelStreamInfer"
LARGE = 100_000  # more than HAProxy's buffer
Code = grpc.StatusCode
Answers = Callable[[StubCall], Awaitable[None]]


class Edge:
    """HAProxy's gRPC port."""

    def __init__(self, port: int, http: int) -> None:
        self.port, self.http = port, http

    def channel(self, **options: Any) -> grpc.aio.Channel:
        named = [(f"grpc.{name}", value) for name, value in options.items()]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=named)


@asynccontextmanager
async def listening(
    folder: Path, *answers: Answers, gateways: int | None = None, **told: object
) -> AsyncIterator[Edge]:
    """HAProxy as it is told, before gateways that answer so; `gateways`: a port where none is."""
    port = ports.any_free()
    before: list[Any] = [await stub(each) for each in answers or (echoes,)]
    if gateways is not None:
        before = [gateways]
    async with in_front_of(*before, folder=folder, GRPC_PORT=port, **told) as url:
        yield Edge(port, urlsplit(url).port or 0)


Failure = tuple[grpc.StatusCode, str, str]


async def failure(call: Any) -> Failure:
    """Status, message and pushback of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    error = raised.value
    trailing = dict(error.trailing_metadata() or ())
    return error.code(), error.details() or "", str(trailing.get("grpc-retry-pushback-ms"))


def unary(channel: grpc.aio.Channel, message: bytes = b"x", path: str = INFER, **call: Any) -> Any:
    return channel.unary_unary(path)(message, timeout=call.pop("timeout", 20), **call)


def saying(raw: bytes) -> Answers:
    """A gateway that reads the whole request, and says this."""

    async def answers(call: StubCall) -> None:
        async for _ in call.messages():
            pass
        call.write(raw)

    return answers


@pytest.mark.parametrize("size", [0, 10, 31_000, LARGE, 3_000_000])
async def test_a_message_of_any_size_comes_back(tmp_path: Path, size: int) -> None:
    async with listening(tmp_path) as edge, edge.channel() as channel:
        assert await unary(channel, b"x" * size) == b"x" * size


async def test_a_gateway_gets_a_chunked_post_and_knows_where_it_came_from(tmp_path: Path) -> None:
    seen: list[StubCall] = []

    async def answers(call: StubCall) -> None:
        seen.append(call)
        await echoes(call)

    forged = (("x-forwarded-for", "6.6.6.6"), ("x-forwarded-proto", "https"),
              ("x_tenant", "acme"), ("a.b", "c"), ("x-tenant", "acme"))  # fmt: skip
    async with listening(tmp_path, answers) as edge, edge.channel() as channel:
        await unary(channel, metadata=forged)
    (call,) = seen
    assert (call.method, call.path, call.version) == ("POST", INFER, "HTTP/1.1")
    expected = {"transfer-encoding": "chunked", "te": "trailers", "x-tenant": "acme",
                "x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "http"}  # fmt: skip
    assert expected.items() <= call.headers.items()
    # Two readers may take these names for others.
    assert not {"x_tenant", "a.b"} & call.headers.keys()


async def test_messages_of_a_stream_go_both_ways_at_once(tmp_path: Path) -> None:
    async with listening(tmp_path) as edge, edge.channel() as channel:
        call = channel.stream_stream(STREAM)(timeout=20)
        for message in (b"one", b"two", b"x" * LARGE):
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == Code.OK


async def test_small_messages_of_a_stream_are_not_held_back(tmp_path: Path) -> None:
    """Without `option http-no-delay` each may wait for 40 to 200 ms."""
    async with listening(tmp_path) as edge, edge.channel() as channel:
        call = channel.stream_stream(STREAM)(timeout=20)
        await call.write(b"x")
        await call.read()
        began = asyncio.get_running_loop().time()
        for _ in range(50):
            await call.write(b"x")
            await call.read()
        assert asyncio.get_running_loop().time() - began < 1.0
        call.cancel()


async def test_a_stream_lives_as_long_as_it_may_be_idle(tmp_path: Path) -> None:
    """A body that is waited for has a time of its own, which an idle stream may exceed."""
    async with (
        listening(tmp_path, GRPC_IDLE_S=3, BODY_S=1) as edge,
        edge.channel() as channel,
    ):
        call = channel.stream_stream(STREAM)(timeout=20)
        await call.write(b"one")
        assert await call.read() == b"one"
        await asyncio.sleep(2)
        await call.write(b"two")
        assert await call.read() == b"two"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
        assert raised.value.code() == Code.CANCELLED


async def test_a_message_that_does_not_arrive_in_time_is_refused(tmp_path: Path) -> None:
    async def messages() -> AsyncIterator[bytes]:
        yield b"part"
        await asyncio.sleep(10)

    async with listening(tmp_path, BODY_S=1) as edge, edge.channel() as channel:
        call = channel.stream_unary(INFER)(messages(), timeout=20)
        code, message, pushback = await failure(call)
    assert (code, pushback) == (Code.DEADLINE_EXCEEDED, "1000")
    assert message == "the request did not arrive in time"


REFUSED: dict[str, tuple[dict[str, Any], grpc.StatusCode, str]] = {
    "another service": ({"path": "/a.Service/Call"}, Code.UNIMPLEMENTED, "no such service"),
    "Serve's own": ({"path": "/ray.serve.RayServeAPIService/Healthz"}, Code.UNIMPLEMENTED,
                    "no such service"),
    "HTTP's paths": ({"path": "/v2/models/m/infer"}, Code.UNIMPLEMENTED, "no such service"),
    "below a method": ({"path": f"{INFER}/../../admin"}, Code.UNIMPLEMENTED, "no such service"),
    "two keys": ({"metadata": (("authorization", "a"), ("authorization", "b"))},
                 Code.INVALID_ARGUMENT, "a request may have one authorization entry"),
    "much metadata": ({"metadata": (("x-a", "y" * 20_000),)}, Code.RESOURCE_EXHAUSTED,
                      "the path and the metadata have more than 15360 bytes"),
    "many entries": ({"metadata": tuple((f"x-{n}", "y") for n in range(120))},
                     Code.RESOURCE_EXHAUSTED, "the request has more than 100 headers"),
}  # fmt: skip


async def test_what_reaches_no_gateway_is_refused_as_grpc_refuses(tmp_path: Path) -> None:
    async with listening(tmp_path) as edge, edge.channel() as channel:
        for why, (call, code, message) in REFUSED.items():
            assert await failure(unary(channel, **call)) == (code, message, "-1"), why
        for path in ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
                     "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                     "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"):  # fmt: skip
            assert await unary(channel, path=path) == b"x", path


HEAD = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: 2\r\n\r\nno"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (HEAD % (400, b"application/json"), Code.INTERNAL),
        (HEAD % (401, b"application/json"), Code.UNAUTHENTICATED),
        (HEAD % (403, b"application/json"), Code.PERMISSION_DENIED),
        (HEAD % (404, b"text/plain"), Code.UNIMPLEMENTED),
        (HEAD % (408, b"text/plain"), Code.DEADLINE_EXCEEDED),
        (HEAD % (413, b"application/json"), Code.RESOURCE_EXHAUSTED),
        (HEAD % (429, b"application/json"), Code.RESOURCE_EXHAUSTED),
        (HEAD % (503, b"text/plain"), Code.UNAVAILABLE),
        (HEAD % (200, b"application/json"), Code.UNAVAILABLE),
        (b"", Code.UNAVAILABLE),
        (b"nonsense\r\n\r\n", Code.UNAVAILABLE),
    ],
)
async def test_what_is_no_answer_of_grpc_becomes_one(
    tmp_path: Path, said: bytes, code: grpc.StatusCode
) -> None:
    async def answers(call: StubCall) -> None:
        await saying(said)(call)
        if not said.startswith(b"HTTP"):
            raise ConnectionError

    async with listening(tmp_path, answers) as edge, edge.channel() as channel:
        found, message, pushback = await failure(unary(channel))
    assert found == code
    assert message
    assert pushback == ("1000" if code == Code.UNAVAILABLE else "-1")


async def test_a_gateways_own_refusal_passes_as_it_is(tmp_path: Path) -> None:
    own = (b"HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\ngrpc-status: 5\r\n"
           b"grpc-message: no such model\r\ngrpc-retry-pushback-ms: 7\r\n"
           b"content-length: 0\r\n\r\n")  # fmt: skip
    async with listening(tmp_path, saying(own)) as edge, edge.channel() as channel:
        assert await failure(unary(channel)) == (Code.NOT_FOUND, "no such model", "7")


async def test_without_a_gateway_the_answer_is_that_it_may_be_asked_again(tmp_path: Path) -> None:
    nobody = ports.any_free()
    async with listening(tmp_path, gateways=nobody) as edge, edge.channel() as channel:
        code, message, pushback = await failure(unary(channel))
    expected = (Code.UNAVAILABLE, "no gateway can take the request now", "1000")
    assert (code, message, pushback) == expected


async def test_a_client_that_leaves_or_runs_out_of_time_closes_the_gateways_connection(
    tmp_path: Path,
) -> None:
    left = asyncio.Queue[str]()

    async def waits(call: StubCall) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            async for _ in call.messages():
                pass
            await call.chunk()  # of no body: only an end comes
        left.put_nowait(call.path)
        raise ConnectionError

    async with listening(tmp_path, waits) as edge, edge.channel() as channel:
        code, _, _ = await failure(unary(channel, timeout=0.2))
        assert code == Code.DEADLINE_EXCEEDED
        assert await asyncio.wait_for(left.get(), 5) == INFER
        call = unary(channel)
        await asyncio.sleep(0.2)
        call.cancel()
        assert await asyncio.wait_for(left.get(), 5) == INFER
        stream = channel.stream_stream(STREAM)(timeout=20)
        await stream.write(b"x")
        await asyncio.sleep(0.2)
        stream.cancel()
        assert await asyncio.wait_for(left.get(), 5) == STREAM


class Dying:
    """A gateway that dies of its first request; a later one it answers."""

    def __init__(self) -> None:
        self.had = 0

    async def answers(self, call: StubCall) -> None:
        self.had += 1
        async for _ in call.messages():
            pass
        call.abort()
        raise ConnectionError


@pytest.mark.parametrize(
    ("metadata", "is_repeated"), [((), True), ((("x-idempotent", "false"),), False)]
)
async def test_what_a_gateway_had_when_it_died_goes_to_another_once(
    tmp_path: Path, metadata: tuple[tuple[str, str], ...], is_repeated: bool
) -> None:
    dying, calls = Dying(), list[str]()

    async def lives(call: StubCall) -> None:
        calls.append(call.path)
        await echoes(call)

    async with listening(tmp_path, dying.answers, lives) as edge, edge.channel() as channel:
        while not dying.had:
            calls.clear()
            try:
                assert await unary(channel, metadata=metadata) == b"x"
            except grpc.aio.AioRpcError as error:
                said = (error.code(), dict(error.trailing_metadata())["grpc-retry-pushback-ms"])
                assert said == (Code.UNAVAILABLE, "-1")
                assert not is_repeated
                assert not calls
                return
    assert is_repeated
    assert (dying.had, calls) == (1, [INFER])


async def test_what_does_not_fit_the_buffer_is_not_repeated(tmp_path: Path) -> None:
    dying = Dying()
    async with (
        listening(tmp_path, dying.answers, dying.answers) as edge,
        edge.channel() as channel,
    ):
        code, message, pushback = await failure(unary(channel, b"x" * LARGE))
    assert (code, pushback) == (Code.UNAVAILABLE, "1000")
    assert message == "the gateway ended before it had answered"
    assert dying.had == 1


async def test_streams_and_large_messages_under_way_leave_others_their_places(
    tmp_path: Path,
) -> None:
    """Of 16 places: 8 for those before an address with one of them is refused more."""
    async with listening(tmp_path, MAX_REQUESTS=16) as edge, edge.channel() as channel:
        held = [channel.stream_stream(STREAM)(timeout=20) for _ in range(8)]
        for each in held:
            await each.write(b"x")
            assert await each.read() == b"x"
        more = channel.stream_stream(STREAM)(timeout=20)  # a write would race with the refusal
        code, message, pushback = await failure(more.read())
        assert (code, pushback) == (Code.UNAVAILABLE, "1000")
        assert message.startswith("too many large messages and streams")
        code, _, _ = await failure(unary(channel, b"x" * LARGE))
        assert code == Code.UNAVAILABLE
        assert await unary(channel, b"x" * 20_000) == b"x" * 20_000  # which came whole
        for each in held:
            each.cancel()
        async with asyncio.timeout(5):
            while True:  # HAProxy tells nobody
                with contextlib.suppress(grpc.aio.AioRpcError):
                    assert await unary(channel, b"x" * LARGE)
                    break


TE = [("content-type", "application/grpc"), ("te", "trailers")]


async def test_streams_are_bounded_as_connections_are_without_tls_too(tmp_path: Path) -> None:
    """Of 100: 80 before a source with 10 of them is refused more."""
    async with contextlib.AsyncExitStack() as open_:
        edge = await open_.enter_async_context(listening(tmp_path, MAXCONN=100, BODY_S=20))
        busy = [
            await open_.enter_async_context(http2(edge.port, None, "127.0.0.9")) for _ in range(2)
        ]
        for each in busy:
            for _ in range(50):
                each.begin(INFER, TE)
        found = [stream for each in busy for stream in each.streams.values()]
        await busy[1].until(lambda: sum(each.ended for each in found) >= 19)
        assert sum(each.ended for each in found) <= 20
        more = busy[0].begin(INFER, TE)
        assert (await busy[0].answer(more)).status == 200  # a refusal in gRPC's shape
        other = await open_.enter_async_context(edge.channel())
        assert await unary(other) == b"x"


async def test_a_refused_stream_may_be_sent_again(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as open_:
        edge = await open_.enter_async_context(listening(tmp_path, MAXCONN=100, BODY_S=20))
        for _ in range(2):
            busy = await open_.enter_async_context(http2(edge.port, None))
            for _ in range(45):
                busy.begin(INFER, TE)
        channel = await open_.enter_async_context(edge.channel())
        code, message, pushback = await failure(unary(channel))
    assert (code, pushback) == (Code.UNAVAILABLE, "1000")
    assert message == "too many requests are on their way; send it again"


@pytest.mark.parametrize("headers", [0, 60])
async def test_a_length_that_just_fits_the_buffer_takes_no_place_unseen(
    tmp_path: Path, headers: int
) -> None:
    """A body that fills the buffer, and whose prefix says that it is whole there, is counted."""

    async def silent(_: StubCall) -> None:
        await asyncio.sleep(60)

    more = [*TE, *((f"x-{n}", "y" * 200) for n in range(headers))]
    async with contextlib.AsyncExitStack() as open_:
        told = {"MAX_REQUESTS": 1, "BODY_S": 20}
        edge = await open_.enter_async_context(listening(tmp_path, silent, **told))
        held = await open_.enter_async_context(http2(edge.port, None))
        for _ in range(3):
            held.data(held.begin(INFER, TE), b"\0\0\x10\0\0" + b"x" * LARGE)
        await held.until(lambda: any(each.ended for each in held.streams.values()))
        most = haproxy_rules.BUFFER_BYTES - sum(len(n) + len(v) for n, v in more)
        # HAProxy keeps 1 KiB free, and has 8 bytes a header and some of its own.
        fits = most - 1299 - 8 * headers
        for size in range(fits - 24, fits + 24):
            it = await open_.enter_async_context(http2(edge.port, None))
            stream = it.begin(INFER, more)
            it.data(stream, b"\0" + size.to_bytes(4, "big") + b"x" * (LARGE - 5))
            assert (await it.answer(stream)).ended


async def test_connections_of_one_address_have_one_bound_at_both_ports(tmp_path: Path) -> None:
    async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0))

    async with listening(tmp_path, SOURCE_CONNECTIONS=2) as edge:
        held = [await connected(port) for port in (edge.http, edge.port)]
        async with asyncio.timeout(5):  # each of HAProxy's threads counts once it has accepted
            refused = False
            while not refused:
                refused = await _is_refused(connected(edge.port))
        for _, writer in held:
            writer.close()


async def _is_refused(
    connects: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
) -> bool:
    try:
        reader, writer = await connects
        said = await asyncio.wait_for(reader.read(1), 0.2)
    except ConnectionError:
        return True
    except TimeoutError:
        writer.close()
        return False
    writer.close()
    return not said


async def test_whoever_does_not_speak_grpc_gets_no_success(tmp_path: Path) -> None:
    async with listening(tmp_path) as edge:
        url = f"http://127.0.0.1:{edge.port}{INFER}"
        for how, status in ((("-X", "POST", "-H", "content-type: application/json"), "415"),
                            (("-X", "POST", "-H", "content-type: application/grpc-web"), "415"),
                            (("-H", "content-type: application/grpc"), "405")):  # fmt: skip
            asks = ("-s", "--max-time", "5", "--http2-prior-knowledge", "-w", "%{http_code}", url)
            curl = await asyncio.create_subprocess_exec(
                "curl", *how, *asks, stdout=asyncio.subprocess.PIPE
            )
            assert (await curl.communicate())[0] == status.encode(), how


@pytest.mark.parametrize("port", ["http", "port"])
async def test_each_port_speaks_its_own_protocol(tmp_path: Path, port: str) -> None:
    asks = {"http": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "port": b"GET / HTTP/1.1\r\n\r\n"}
    async with listening(tmp_path, HEADERS_S=1) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", getattr(edge, port))
        writer.write(asks[port])
        said = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert not said.startswith(b"HTTP/1.1 2")


def trusting(authority: str, *own: str) -> grpc.ChannelCredentials:
    """Trusts the authority; `own`: key and certificate."""
    parts = [Path(each).read_bytes() for each in (authority, *own)]
    return grpc.ssl_channel_credentials(*parts)


async def test_tls_and_callers_certificates_are_those_of_http(tmp_path: Path) -> None:
    server, callers = (tmp_path / name for name in ("server", "callers"))
    for folder in (server, callers):
        folder.mkdir()
    tls, caller = Authority(server).tls(), Authority(callers).tls()
    told = {"CERTIFICATE": tls.certificate, "KEY": tls.key, "CLIENT_CA": caller.authority}
    seen: list[StubCall] = []

    async def answers(call: StubCall) -> None:
        seen.append(call)
        await echoes(call)

    known = trusting(tls.authority, caller.key, caller.certificate)
    async with listening(tmp_path, answers, **told) as edge:
        at = f"127.0.0.1:{edge.port}"
        async with grpc.aio.secure_channel(at, known) as channel:
            assert await unary(channel) == b"x"
        assert seen[0].headers["x-forwarded-proto"] == "https"
        async with grpc.aio.secure_channel(at, trusting(tls.authority)) as channel:
            assert (await failure(unary(channel, timeout=2)))[0] == Code.UNAVAILABLE
    async with listening(tmp_path, CLIENT_CA_OPERATORS=1, **told) as edge:  # none of them is here
        at = f"127.0.0.1:{edge.port}"
        async with grpc.aio.secure_channel(at, trusting(tls.authority)) as channel:
            assert await unary(channel) == b"x"
    async with listening(tmp_path, answers, GRPC_TLS=0, **told) as edge, edge.channel() as channel:
        assert await unary(channel) == b"x"
    assert seen[-1].headers["x-forwarded-proto"] == "http"


# ---- the configuration ---------------------------------------------------------------------------


def config(**options: Any) -> list[str]:
    return [line.strip() for line in corrected(CONFIG, HAProxyOptions(**options)).splitlines()]


def test_without_a_port_there_is_nothing_of_grpc() -> None:
    assert "grpc" not in corrected(CONFIG, HAProxyOptions())


def test_the_fallback_gets_no_grpc_and_needs_no_gateway_to_be_known() -> None:
    found = config(grpc_port=18001)
    assert "acl gateway_up srv_is_up(http-gateway/SERVE_REPLICA_gateway-1)" in found
    refuses = [line for line in found if line.endswith("!gateway_up")]
    assert refuses[0].startswith("http-request return status 200 hdr grpc-status 14 ")
    (server,) = [line for line in CONFIG.splitlines(keepends=True) if "SERVE_REPLICA" in line]
    without = corrected(CONFIG.replace(server, ""), HAProxyOptions(grpc_port=18001))
    assert "gateway_up" not in without
    assert "default_backend http-gateway" not in without  # so it answers by itself


@pytest.mark.parametrize(
    ("idle_s", "body_s", "expected"), [(3600, 30, 3600), (5, 30, 30), (70, 30, 70)]
)
def test_a_stream_may_be_idle_for_as_long_as_is_set_and_a_body_may_arrive(
    idle_s: int, body_s: int, expected: int
) -> None:
    found = config(grpc_port=18001, grpc_idle_s=idle_s, body_s=body_s)
    section = found[found.index("frontend headrace_grpc") :]
    assert f"timeout client {expected}s" in section
    # No answer has a time of its own at HAProxy: a gateway knows its requests' deadlines.
    assert not [line for line in found if line.startswith("timeout server")]


def test_a_large_message_is_not_held_back_by_the_window_of_http_2() -> None:
    line = "tune.h2.fe.initial-window-size 1048576"
    assert line in config(grpc_port=18001)
    assert line not in config()


def test_haproxys_own_refusals_are_in_the_frontends_alone() -> None:
    """HAProxy takes a backend's, or those of `defaults`, before those of a frontend."""
    section, found = "", set[str]()
    for line in corrected(CONFIG, HAProxyOptions(grpc_port=18001)).splitlines():
        section = line if line[:1].strip() else section
        if line.strip().startswith("http-error"):
            found.add(section)
    assert found == {"frontend http_frontend", "frontend headrace_grpc"}


def test_serves_own_frontend_of_grpc_stands_beside_ours() -> None:
    """Serve has one called grpc_frontend, where its own gRPC is on."""
    found = corrected(CONFIG, HAProxyOptions(grpc_port=18001))
    assert "frontend headrace_grpc\n" in found
    assert "grpc_frontend" not in found
