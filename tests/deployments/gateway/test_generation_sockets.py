"""Chats over real connections, from engines that are nothing but time: OpenAI's own client is at
home, tokens come as they are made, and what ends early leaves nothing behind at the replica.

The gateway behind uvicorn with httptools, as Ray Serve runs it; replicas' cores in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import uvicorn
from fake_engines import until
from in_process import LocalChannel, Stand, ask, standing
from process_ends import Deaths

from deployments.gateway.models.served_model import ServedModel
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica
from deployments.replica import describe
from deployments.replica.stream_core import StreamCore
from deployments.settings.model import ModelSettings
from runtimes import catalog
from runtimes.errors import Unhealthy
from runtimes.types import StreamRequest

pytestmark = pytest.mark.slow  # OpenAI's client, slow to import

STEP_MS = 4
SAID: Any = [{"role": "user", "content": "hello there"}]
CHAT = {
    "runtime": "synthetic",
    "task": "generate",
    "lengths": {"max": 400},
    "options": {
        "base_ms": STEP_MS,
        "max_sequences": 8,
        "fail_words": ["fail"],
        "engine_die_words": ["deadly"],
    },
}


class Chats:
    """A stand that listens, and its engines."""

    def __init__(
        self, stand: Stand, url: str, channel: LocalChannel, engines: Sequence[Any]
    ) -> None:
        self.stand, self.url, self.channel, self.engines = stand, url, channel, engines
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self.http = httpx.AsyncClient(base_url=url, timeout=10)

    @property
    def inflight(self) -> int:
        """Requests that run at its replicas."""
        return sum(core.inflight for core in self.channel.cores.values())

    async def metrics(self) -> list[str]:
        return (await ask(self.stand.app, "GET", "/metrics")).body.decode().splitlines()


def _end(channel: LocalChannel, deaths: Deaths, replica_id: str, reason: str) -> None:
    """As the end of its process: what was written arrives, nothing more does."""
    asyncio.get_running_loop().call_later(0.01, channel.lose, replica_id)
    deaths.end(reason)


async def engines(stand: Stand, folder: Path, count: int) -> tuple[LocalChannel, list[Any]]:
    model = ModelSettings.model_validate(CHAT)
    settings = describe.runtime_settings("chat", model, folder, lambda phase, share: None)
    channel, deaths, runtimes = LocalChannel("g0"), Deaths(), []
    for index in range(count):
        runtime = catalog.create_stream(settings)
        await runtime.load()
        runtimes.append(runtime)
        name = f"chat-{index}"
        ends = partial(_end, channel, deaths, name)
        channel.cores[name] = StreamCore(runtime, 64, on_death=ends)
    description, _ = describe.describe_stream("chat", model, "digest", runtimes[0])
    directory = ReplicaDirectory()
    served = ServedModel(
        description, None, channel, directory, stand.identity, stand.telemetry.batch
    )
    stand.models._served["chat"], stand.models._live["chat"] = served, description
    stand.channels["chat"], stand.books["chat"] = channel, directory
    directory.update([RunningReplica(name, (("digest", "digest"),)) for name in channel.cores])
    stand.telemetry.refresh()
    return channel, runtimes


@pytest.fixture
async def chats(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Chats]:
    """With two replicas, or as many as a test says."""
    async with standing({}, tmp_path) as stand:
        channel, runtimes = await engines(stand, tmp_path, getattr(request, "param", 2))
        server = uvicorn.Server(
            uvicorn.Config(stand.app, port=0, http="httptools", log_config=None)
        )
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        found = Chats(stand, f"http://127.0.0.1:{port}", channel, runtimes)
        yield found
        await found.client.close()
        await found.http.aclose()
        await until(lambda: not found.inflight)
        server.should_exit = server.force_exit = True
        await serving
        for runtime in runtimes:
            await runtime.close()


async def test_tokens_come_while_the_engine_makes_further_ones(chats: Chats) -> None:
    stream = await chats.client.chat.completions.create(
        model="chat", messages=SAID, max_tokens=100, stream=True
    )
    running = [
        chats.inflight async for chunk in stream if chunk.choices and chunk.choices[0].delta.content
    ]
    assert len(running) == 100
    assert running[:50] == [1] * 50


async def test_streamed_and_whole_answers_are_the_same(chats: Chats) -> None:
    asked: Any = {"model": "chat", "messages": SAID, "max_tokens": 6}
    whole = await chats.client.chat.completions.create(**asked)
    stream = await chats.client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


async def test_several_sequences_and_a_completion(chats: Chats) -> None:
    answer = await chats.client.completions.create(model="chat", prompt="a b", max_tokens=3, n=2)
    assert len(answer.choices) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


async def test_refusals_are_openais_own_exceptions(chats: Chats) -> None:
    create = chats.client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as long:
        await create(model="chat", messages=SAID, max_tokens=5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await create(model="nobody", messages=SAID)
    with pytest.raises(openai.InternalServerError):
        await create(model="chat", messages=[{"role": "user", "content": "fail"}], max_tokens=5)


async def test_many_at_once_are_all_answered_and_leave_nothing(chats: Chats) -> None:
    async def one(number: int) -> int:
        stream = await chats.client.chat.completions.create(
            model="chat", messages=SAID, max_tokens=5 + number % 7, stream=True
        )
        return len([c async for c in stream if c.choices and c.choices[0].delta.content])

    heard = await asyncio.gather(*[one(number) for number in range(40)])
    assert heard == [5 + number % 7 for number in range(40)]


async def test_a_client_that_leaves_frees_the_engine(chats: Chats) -> None:
    asked = {"model": "chat", "messages": SAID, "max_tokens": 350, "stream": True}
    async with chats.http.stream("POST", "/v1/chat/completions", json=asked) as answer:
        async for _ in answer.aiter_lines():
            break
        assert chats.inflight == 1
    await until(lambda: not chats.inflight)
    loads = [await core.health() for core in chats.channel.cores.values()]
    assert [load.running for load in loads] == [0, 0]
    lines = await chats.metrics()
    assert any('protocol="chat"' in x and 'outcome="cancelled"' in x for x in lines)


async def test_a_dying_replica_ends_what_it_had_begun_and_nothing_else(chats: Chats) -> None:
    asked = {"model": "chat", "messages": SAID, "max_tokens": 60, "stream": True}

    async def one(begun: asyncio.Event) -> str:
        async with chats.http.stream("POST", "/v1/chat/completions", json=asked) as answer:
            last = ""
            async for line in answer.aiter_lines():
                begun.set()
                last = line or last
        return last

    events = [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(one(event)) for event in events]
    for event in events:
        await event.wait()
    running = {name: core.inflight for name, core in chats.channel.cores.items()}
    assert min(running.values()) > 0
    chats.channel.lose("chat-0")
    ends = await asyncio.gather(*tasks)
    broken = [json.loads(end[6:])["error"]["code"] for end in ends if end != "data: [DONE]"]
    assert broken == ["replica_lost"] * running["chat-0"]


async def _dies_with(chats: Chats, engine: Any) -> None:
    """The engine of a replica, while its process lives."""
    body = json.dumps({"prompt": "deadly", "max_tokens": 1}).encode()
    with suppress(Unhealthy):
        async with aclosing(engine.run(StreamRequest("d", "completions", body))) as chunks:
            await anext(chunks)


@pytest.mark.parametrize("chats", [1], indirect=True)
async def test_the_clients_of_both_makers_are_told_what_is_paid(chats: Chats) -> None:
    """OpenAI's and Anthropic's own, of an answer that had begun when its engine died."""
    messages = anthropic.AsyncAnthropic(base_url=chats.url, api_key="none", max_retries=0)
    asked: Any = {"model": "chat", "stream": True}
    chat = await chats.client.chat.completions.create(**asked, messages=SAID, max_tokens=300)
    response = await chats.client.responses.create(**asked, input="hello", max_output_tokens=300)
    message = await messages.messages.create(**asked, messages=SAID, max_tokens=300)
    heard: dict[str, list[Any]] = {"chat": [], "response": [], "message": []}

    async def hear(name: str, stream: Any) -> None:
        async for event in stream:
            heard[name].append(event)

    streams = {"chat": chat, "response": response, "message": message}
    ends = [asyncio.create_task(hear(*each)) for each in streams.items()]
    await until(lambda: min(map(len, heard.values())) > 8)
    (engine,) = chats.engines
    await _dies_with(chats, engine)
    of_chat, of_response, of_message = await asyncio.gather(*ends, return_exceptions=True)

    shown = [each for each in heard["chat"] if each.choices[0].delta.content]
    assert type(of_chat) is openai.APIError
    assert of_chat.body["code"] == "replica_lost"
    assert of_chat.body["usage"]["completion_tokens"] == len(shown)

    assert of_response is None  # the client hands the event on
    failed = heard["response"][-1]
    assert type(failed).__name__ == "ResponseFailedEvent"
    shown = [each for each in heard["response"] if each.type == "response.output_text.delta"]
    assert (failed.response.status, failed.response.error.code) == ("failed", "server_error")
    assert failed.response.usage.output_tokens == len(shown)
    assert failed.response.id == heard["response"][0].response.id
    numbers = [each.sequence_number for each in heard["response"]]
    assert numbers == list(range(len(numbers)))

    shown = [each for each in heard["message"] if each.type == "content_block_delta"]
    assert isinstance(of_message, anthropic.APIStatusError)
    assert of_message.body["error"]["type"] == "api_error"
    assert of_message.body["error"]["usage"]["output_tokens"] == len(shown)
    await messages.close()


@pytest.mark.parametrize("chats", [3], indirect=True)
async def test_a_prompt_that_kills_engines_is_quarantined_as_if_it_killed_replicas(
    chats: Chats,
) -> None:
    said = [{"role": "user", "content": "deadly"}]
    deadly = {"model": "chat", "messages": said, "max_tokens": 5}

    async def sent() -> tuple[int, str, bool, int]:
        answer = await chats.http.post("/v1/chat/completions", json=deadly)
        code = answer.json()["error"]["code"]
        return answer.status_code, code, "retry-after" in answer.headers, len(chats.channel.reached)

    assert await sent() == (503, "replica_lost", True, 1)  # it ran once more, elsewhere
    assert await sent() == (422, "input_ends_replicas", False, 0)
    assert await sent() == (422, "input_ends_replicas", False, 0)
