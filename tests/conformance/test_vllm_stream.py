"""The stream suite over vLLM's real engine, on this machine's processor, and what is its alone."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from adapter_suite import PLACES, Adapted, AdapterSuite, adapters
from api_suite import ApiSuite
from stream_cases import CONTEXT, SEQUENCES, StreamCase, chat, completion, hear, settings
from stream_model_suite import ModelSuite, read

from deployments.contract.channel.frames import Kind
from deployments.contract.channel.stream_messages import GenerateCall, encode_generate
from deployments.replica import backend_env
from deployments.replica.stream_core import StreamCore
from examples import make_llm
from runtimes import catalog
from runtimes.errors import LoadError, Unhealthy
from runtimes.types import StreamRuntime
from tests.deployments.fake_sessions import FakeSession, frame

MISSING = catalog.available("vllm", "generate")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

VLLM = StreamCase(
    "vllm",
    {
        "max_num_seqs": SEQUENCES,
        "block_size": 32,
        "kv_cache_gib": 0.25,
        "tool_call_parser": "hermes",
        "enforce_eager": True,
    },
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llm.make(tmp_path_factory.mktemp("made") / "llm")


@pytest.fixture(scope="module")
def environment(cache: Path) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    with patch.context() as changed:
        environ = dict(os.environ)
        backend_env.set_engine_variables(settings(VLLM, None, cache, threads=1), environ)
        for name, value in environ.items():
            changed.setenv(name, value)
        yield


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def runtime(model: Path, cache: Path, environment: None) -> AsyncIterator[StreamRuntime]:
    runtime = catalog.create_stream(settings(VLLM, model, cache, threads=1))
    await runtime.load()
    await runtime.warm()
    yield runtime
    await runtime.close()


class TestVLLM(ModelSuite, ApiSuite):
    pass


async def test_structured_output_keeps_to_its_choices(runtime: StreamRuntime) -> None:
    asked = chat(structured_outputs={"choice": ["stone", "mill"]}, ignore_eos=False, max_tokens=20)
    heard = await hear(runtime, asked, "chat")
    assert heard.page()["choices"][0]["message"]["content"] in ("stone", "mill")


@pytest.mark.parametrize("tools", [[{}], [{"type": "x"}]])
async def test_a_tool_that_is_none_is_a_mistake_of_the_request(
    runtime: StreamRuntime, tools: list[Any]
) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    for stream in (False, True):
        heard = await hear(runtime, chat(tools=tools, tool_choice=named, stream=stream), "chat")
        assert (heard.status, heard.page()["error"]["code"]) == (400, 400)


TOOL = {
    "type": "function",
    "function": {"name": "turn", "parameters": {"type": "object", "properties": {"by": {}}}},
}


def form(schema: object) -> dict[str, object]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_what_one_caller_demands_changes_nothing_for_others(
    runtime: StreamRuntime, stream: bool
) -> None:
    demands = [
        {"structured_outputs": {"regex": "foo**"}},
        form({"type": "object", "properties": {"a": {"not": {}}}}),
        form({"if": {}, "then": {}}),
        form({"enum": ["x" * 100 + str(i) for i in range(10_000)]}),
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "turn"}}},
        form({"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}),
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
    ]
    expected = [400, 400, 400, 400, 200, 200, 200, 200]
    for order in (1, -1):
        heard = [
            await hear(runtime, chat(ignore_eos=False, stream=stream, **demand), "chat")
            for demand in demands[::order]
        ]
        assert [each.status for each in heard][::order] == expected


async def test_a_schema_that_cannot_be_held_is_refused_by_its_part(runtime: StreamRuntime) -> None:
    heard = await hear(runtime, chat(**form({"anyOf": [{"not": {}}]})), "chat")
    error = heard.page()["error"]
    assert heard.status == 400
    assert error["param"] == "response_format"
    assert error["message"].startswith("response_format.json_schema.schema/anyOf/0/not cannot")


async def test_a_special_token_that_a_tool_names_stays_text(
    runtime: StreamRuntime, model: Path
) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "<|end|>"}}
    heard = await hear(runtime, chat(return_token_ids=True, tools=[tool]), "chat")
    ids = heard.page()["prompt_token_ids"]
    assert ids.count(read(model, "<|end|>")[0]) == 2
    assert ids.count(read(model, "<|system|>")[0]) == 1


async def test_a_context_beyond_the_models_is_refused_in_vllms_words(
    model: Path, cache: Path, environment: None
) -> None:
    chosen = replace(settings(VLLM, model, cache), max_length=CONTEXT * 100)
    with pytest.raises(LoadError, match="max_model_len"):
        await catalog.create_stream(chosen).load()


async def test_an_unknown_tool_parser_is_refused(
    model: Path, cache: Path, environment: None
) -> None:
    chosen = settings(VLLM, model, cache, options={"tool_call_parser": "nobodys"})
    with pytest.raises(LoadError, match="nobodys"):
        await catalog.create_stream(chosen).load()


async def until_running(runtime: StreamRuntime, count: int) -> None:
    async with asyncio.timeout(10):
        while (await runtime.health()).running < count:  # noqa: ASYNC110 - its process says no more
            await asyncio.sleep(0.005)


async def test_the_death_of_the_engine_is_no_fault_of_a_request(
    model: Path, cache: Path, environment: None
) -> None:
    """Neither answers that flow nor those that come whole end with vLLM's own error."""
    before = set(multiprocessing.active_children())
    runtime = catalog.create_stream(settings(VLLM, model, cache, threads=1))
    await runtime.load()
    asked = [completion(max_tokens=400, stream=stream) for stream in (True, False)]
    running = [asyncio.create_task(hear(runtime, body)) for body in asked]
    await until_running(runtime, len(asked))
    for engine in set(multiprocessing.active_children()) - before:
        engine.kill()
    async with asyncio.timeout(10):
        ends = await asyncio.gather(*running, return_exceptions=True)
    assert [type(end) for end in ends] == [Unhealthy, Unhealthy]
    with pytest.raises(Unhealthy, match="died"):
        await runtime.health()
    with pytest.raises(Unhealthy, match="died"):
        await hear(runtime, completion())
    await runtime.close()


def texts(data: bytes) -> str:
    """Of a completion's events."""
    events = [event for event in data.split(b"\n\n") if event.startswith(b"data: {")]
    return "".join(json.loads(event[6:])["choices"][0]["text"] for event in events)


async def test_a_replica_whose_engine_is_killed_says_so_and_tells_no_wrong_token(
    model: Path, cache: Path, environment: None
) -> None:
    """The engine's process, by its id; the replica's own lives."""
    before = set(multiprocessing.active_children())
    runtime = catalog.create_stream(settings(VLLM, model, cache, threads=1))
    await runtime.load()
    asked = completion(max_tokens=400, stream=True)
    whole = texts((await hear(runtime, asked)).data)
    deaths: list[str] = []
    core, gateway = StreamCore(runtime, room=8, on_death=deaths.append), FakeSession()
    core.joined(gateway)  # type: ignore[arg-type]
    for lease_id, body in enumerate((asked, completion(max_tokens=400)), start=1):
        call = GenerateCall("completions", body, 60.0)
        core.received(gateway, frame(Kind.BEGIN, lease_id, encode_generate(call)))  # type: ignore[arg-type]
    await gateway.until(lambda: sum(p.lease_id == 1 for p in gateway.pieces) > 3, 30)
    (engine,) = set(multiprocessing.active_children()) - before
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await gateway.until(lambda: bool(gateway.ended), 10)
    assert gateway.ended == ["vLLM's engine died, and 2 requests with it"]
    assert [piece.end for piece in gateway.pieces if piece.end is not None] == []
    shown = texts(b"".join(p.data for p in gateway.pieces if p.lease_id == 1))
    assert shown
    assert whole.startswith(shown)
    assert whole != shown
    assert deaths == []
    core.left(gateway)  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert deaths == gateway.ended
    await core.close()
    await runtime.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def adapted(
    environment: None, model: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    sizes = json.loads((model / "config.json").read_text())
    hidden, layers = sizes["hidden_size"], sizes["num_hidden_layers"]
    (folder / "sizes").write_text(json.dumps([hidden, layers]))
    table = adapters(folder, hidden, layers)
    runtime = catalog.create_stream(
        settings(
            VLLM, model, cache, threads=1, adapters=table,
            adapters_resident=PLACES, max_lora_rank=16,
        )
    )  # fmt: skip
    await runtime.load()
    yield Adapted(runtime, folder, table)
    await runtime.close()


class TestVLLMAdapters(AdapterSuite):
    async def test_one_of_another_model_fails_its_requests_alone(self, adapted: Adapted) -> None:
        await self.test_one_that_cannot_be_loaded_fails_its_requests_alone(adapted, "broken")
