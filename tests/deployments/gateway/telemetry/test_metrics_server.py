"""The page of metrics on a port of its own, for whoever asks, whatever they send."""

import asyncio
import logging

import pytest

from deployments.gateway.telemetry.metrics_server import MetricsServer


@pytest.fixture
async def server():
    made = MetricsServer("127.0.0.1", 0, lambda accept: (b"page " + accept.encode(), "text/x"))
    made.start()
    await made.listening()
    yield made
    await made.close()


async def ask(server, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_port_serves_the_page_with_what_the_scraper_accepts(server):
    answer = await ask(server, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: text/x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/x\r\ncontent-length: 11\r\n")
    assert answer.endswith(b"\r\n\r\npage text/x")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"HEAD /metrics HTTP/1.1", b"200"), (b"POST /metrics HTTP/1.1", b"405"),
        (b"GET /other HTTP/1.1", b"404"), (b"rubbish", b"404"), (b"\xff\xfe", b"404"),
    ],
)  # fmt: skip
async def test_other_requests_get_their_status(server, request_line, status):
    answer = await ask(server, request_line + b"\r\n\r\n")
    assert answer.split()[1] == status
    assert b"page" not in answer


async def test_a_head_that_is_too_long_is_hung_up_on(server):
    with pytest.raises((ConnectionError, AssertionError)):
        assert await ask(server, b"x" * 40_000)


PAGE = b"GET /metrics HTTP/1.1\r\n\r\n"


async def idle(server, count, source="127.0.0.1"):
    """Connections that send nothing."""
    made = [
        await asyncio.open_connection("127.0.0.1", server.port, local_addr=(source, 0))
        for _ in range(count)
    ]
    return [writer for _, writer in made]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 64])
async def test_idle_connections_keep_no_scraper_out(server, count):
    idlers = await idle(server, count)
    assert b"page" in await ask(server, PAGE)
    assert server.connections <= 8
    for writer in idlers:
        writer.close()


async def test_idle_connections_from_everywhere_keep_no_scraper_out(server):
    idlers = [w for n in range(2, 10) for w in await idle(server, 8, f"127.0.0.{n}")]
    assert server.connections <= 32
    assert b"page" in await ask(server, PAGE)
    for writer in idlers:
        writer.close()


async def test_one_address_cuts_its_own_connections_first(server):
    reader, theirs = await asyncio.open_connection(
        "127.0.0.1", server.port, local_addr=("127.0.0.2", 0)
    )
    mine = await idle(server, 40)
    theirs.write(PAGE)
    assert b"page" in await reader.read()
    for writer in (theirs, *mine):
        writer.close()


async def until(holds):
    async with asyncio.timeout(5.0):
        while not holds():  # noqa: ASYNC110 - a server tells nobody of its connections
            await asyncio.sleep(0.001)


async def test_a_caller_that_does_not_read_is_cut():
    large = b"x" * (16 << 20)
    server = MetricsServer("127.0.0.1", 0, lambda _: (large, "t"), answer_timeout_s=0.02)
    server.start()
    await server.listening()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    reader._transport.pause_reading()
    writer.write(PAGE)
    await until(lambda: server.connections)
    await until(lambda: not server.connections)
    writer.close()
    await server.close()


async def test_a_caller_that_says_nothing_is_cut():
    server = MetricsServer("127.0.0.1", 0, lambda _: (b"", "t"), head_timeout_s=0.02)
    server.start()
    await server.listening()
    (writer,) = await idle(server, 1)
    await until(lambda: server.connections)
    await until(lambda: not server.connections)
    writer.close()
    await server.close()


async def test_a_taken_port_is_tried_again_until_it_is_free_and_mentioned_once(server, caplog):
    pauses, freed = [], asyncio.Event()

    async def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            freed.set()
            await server.close()

    second = MetricsServer("127.0.0.1", server.port, lambda accept: (b"2", "t"), pause=pause)
    with caplog.at_level(logging.WARNING, "headrace.metrics"):
        second.start()
        assert second.port is None
        await second.listening()
    assert freed.is_set()
    assert len(pauses) == 3
    assert len([r for r in caplog.records if "cannot be had" in r.message]) == 1
    assert (await ask(second, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b"2")
    await second.close()


async def test_closing_while_the_port_is_still_taken_ends_the_retries(server):
    second = MetricsServer("127.0.0.1", server.port, lambda accept: (b"", "t"))
    second.start()
    await asyncio.sleep(0)
    await second.close()
    assert second.port is None
