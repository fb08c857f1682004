"""Is a stream of tokens timed as it comes, from a real socket to the record?"""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtests.benches.trivial_server import whole_bytes
from loadtests.client.player import Player, PlayerSettings
from loadtests.client.protocols import PROTOCOLS
from loadtests.client.protocols.types import Endpoint
from loadtests.results.record import TenantLengthStats, merged
from loadtests.results.recorder import RecordingRules, RunRecorder
from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario_file import check

FIRST_S, TOKEN_S, TOKENS = 0.05, 0.02, 6
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(event: object) -> bytes:
    data = event if isinstance(event, bytes) else json.dumps(event).encode()
    text = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(text), text)


class Generating(asyncio.Protocol):
    """Answers each chat with `TOKENS` tokens, the last one cut off where it is told to."""

    def __init__(self, cut_off: bool, asked: list[dict]) -> None:
        self._cut_off, self._asked, self._buffer = cut_off, asked, b""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._buffer += data
        size = whole_bytes(self._buffer)
        if size is not None:
            self._asked.append(json.loads(self._buffer[:size].partition(b"\r\n\r\n")[2]))
            self._buffer = self._buffer[size:]
            asyncio.get_running_loop().create_task(self._generate())

    async def _generate(self):
        self._transport.write(HEAD)
        await asyncio.sleep(FIRST_S)
        for n in range(TOKENS):
            if n:
                await asyncio.sleep(TOKEN_S)
            self._transport.write(chunk({"choices": [{"delta": {"content": f" {n}"}}]}))
        if self._cut_off:
            self._transport.close()
            return
        self._transport.write(chunk({"choices": [], "usage": {"completion_tokens": TOKENS}}))
        self._transport.write(chunk(b"[DONE]") + b"0\r\n\r\n")


@asynccontextmanager
async def generating(cut_off: bool = False):
    asked: list[dict] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Generating(cut_off, asked), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


async def chatted(url: str) -> TenantLengthStats:
    scenario = check(
        {
            "duration_s": 0.2,
            "arrivals": {"process": "constant", "rate": 20},
            "lengths": {"fixed": 12},
            "output": {"fixed": TOKENS},
        }
    )
    wire = PROTOCOLS["openai-chat"](Endpoint(url, "m"))
    recorder = RunRecorder(RecordingRules({"default": None}, (32,), 0.0, 0.2))
    stand = PlayerSettings(wire.place.target, wire.request, wire.listener)
    await Player(TrafficPlan(scenario, Path()), stand, recorder.ended).run()
    return merged(recorder.cells["default"].values())


@pytest.mark.slow
async def test_first_token_and_time_a_token_are_those_of_the_stream():
    async with generating() as (url, asked):
        cell = await chatted(url)
    assert cell.latency.total == len(asked) == 3
    assert cell.tokens_out == 3 * TOKENS
    assert {each["max_tokens"] for each in asked} == {TOKENS}
    whole_s = FIRST_S + TOKEN_S * (TOKENS - 1)
    assert FIRST_S <= cell.first.percentile_s(1) < cell.latency.percentile_s(1)
    assert cell.latency.percentile_s(1) >= whole_s * 0.99
    assert cell.per_token.percentile_s(50) >= TOKEN_S * 0.9


@pytest.mark.slow
async def test_stream_that_ends_in_the_middle_is_no_answer():
    async with generating(cut_off=True) as (url, _):
        cell = await chatted(url)
    assert (cell.latency.total, cell.tokens_out) == (0, 0)
    assert cell.reasons == {"cut off": 3}
