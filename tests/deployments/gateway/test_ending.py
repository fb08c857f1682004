"""A gateway ends: what it has is finished in time, or its callers hear that it will not be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fake_engines import until
from generating import CHAT, Client, Played, add, chat, streamed
from in_process import Stand, standing
from uvicorn_server import serving

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.ending import GatewayShutdown
from deployments.gateway.http import strict_protocol

Describe = Callable[..., ModelDescription]
SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}}
SOON_S = 0.05


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({"device": SYNTHETIC}, tmp_path) as stand:
        yield stand


@pytest.fixture
async def engines(stand: Stand, description: Describe) -> Played:
    return add(stand, description)


class Left:
    """Counts how often the process would have ended."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self) -> None:
        self.times += 1


def ending(
    stand: Stand, drain_s: float = SOON_S, left: Left | None = None, gateways: int = 2
) -> GatewayShutdown:
    return GatewayShutdown(
        stand.models, drain_s, lambda: stand.app.under_way, lambda: gateways, left or Left()
    )


async def begun(stand: Stand, engines: Played, text: str = "hello") -> tuple[Client, int]:
    """A stream whose caller has a part of its answer; and its lease."""
    client = Client(stand, CHAT, streamed(text))
    lease = (await engines.until_begun(len(engines.begun) + 1)).lease_id
    engines.say(lease, b"data: one\n\n", tokens=(1, 0, 1))
    await client.hears(1)
    return client, lease


def event(heard: bytes) -> dict[str, Any]:
    """The last event of a stream, which is an error."""
    *_, last, end = heard.decode().split("\n\n")
    assert end == ""
    error: dict[str, Any] = json.loads(last.removeprefix("data: "))["error"]
    return error


async def test_a_stream_that_is_whole_within_the_drain_ends_as_ever(stand, engines):
    client, lease = await begun(stand, engines)
    ending(stand, drain_s=5.0).gateway_ends()
    engines.say(lease, b"data: [DONE]\n\n", tokens=(1, 0, 2), end=StreamEnd.DONE)
    assert (await client.end()).endswith(b"[DONE]\n\n")


async def test_a_stream_that_is_not_whole_by_then_ends_with_an_error_event(stand, engines):
    client, _ = await begun(stand, engines)
    ending(stand).gateway_ends()
    error = event(await client.end())
    assert "gateway.drain_s" in error["message"]
    assert client.over


async def test_what_no_caller_has_a_part_of_is_left_for_another_gateway(stand, engines):
    client = Client(stand, CHAT, chat())
    await engines.until_begun(1)
    ending(stand, drain_s=0.0).gateway_ends()
    await asyncio.sleep(SOON_S)
    assert not client.over
    assert stand.app.under_way == 1
    client.leave.set()
    await client.end()


async def test_the_only_gateway_refuses_what_it_has_not_finished(stand, engines):
    client, streaming = Client(stand, CHAT, chat()), Client(stand, CHAT, streamed())
    await engines.until_begun(2)
    assert stand.app.rates.gateways == 1
    ending(stand, gateways=stand.app.rates.gateways).gateway_ends()
    for each in (client, streaming):
        assert "gateway.drain_s" in (await each.error())["message"]
        assert each.status == 503
        assert b"retry-after" in each.headers


@pytest.mark.parametrize("stopped_first", [False, True])
async def test_a_server_that_ends_refuses_what_it_has_not_finished(stand, engines, stopped_first):
    client, streaming = Client(stand, CHAT, chat()), Client(stand, CHAT, streamed())
    await engines.until_begun(2)
    end = ending(stand)
    if stopped_first:  # Serve had just taken this gateway out of several
        end.gateway_ends()
    end.server_ends()
    for each in (client, streaming):
        assert "gateway.drain_s" in (await each.error())["message"]
        assert each.status == 503
        assert b"retry-after" in each.headers


async def test_after_sigterm_the_process_ends_with_its_last_request(stand, engines):
    client, lease = await begun(stand, engines)
    left = Left()
    end = ending(stand, 5.0, left)
    end.terminated()
    end.terminated()
    await asyncio.sleep(3 * SOON_S)
    assert not left.times
    engines.say(lease, b"data: [DONE]\n\n", tokens=(1, 0, 2), end=StreamEnd.DONE)
    assert (await client.end()).endswith(b"[DONE]\n\n")
    await until(lambda: left.times == 1)


async def test_after_sigterm_the_process_ends_when_the_drain_is_over(stand, engines):
    client, _ = await begun(stand, engines)
    left = Left()
    ending(stand, left=left).terminated()
    event(await client.end())
    await until(lambda: left.times == 1)


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_a_server_that_stops_accepting_says_so():
    told = asyncio.Event()
    strict_protocol.enforce()
    strict_protocol.on_stop(told.set)
    async with serving(uvicorn.Config(answers, port=0, lifespan="off", log_config=None)) as port:
        strict_protocol.stop_accepting()
        await asyncio.wait_for(told.wait(), 5.0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


# As Ray does: the handler is installed by the main thread, which then waits in its core.
WORKER = """
import asyncio, signal, threading, time
import ray._private.worker as worker
from deployments.gateway import ending

def handler(signum, frame):
    worker.raise_sys_exit_with_custom_error_message("SIGTERM", exit_code=1)

async def gateway():
    told = asyncio.Event()
    ending._on_sigterm(told.set)
    print("up", flush=True)
    await told.wait()
    print("told", flush=True)
    await asyncio.sleep(60)

signal.signal(signal.SIGTERM, handler)
threading.Thread(target=lambda: asyncio.run(gateway()), daemon=True).start()
while True:
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_the_first_sigterm_is_the_gateways_and_the_second_one_rays():
    process = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
        assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 1
