"""The stream suite over vLLM's real engine, on this machine's processor, and what is its alone."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from api_suite import ApiSuite
from stream_cases import CONTEXT, SEQUENCES, StreamCase, chat, completion, hear, settings
from stream_suite import StreamSuite, settled
from tokenizers import Tokenizer

from deployments.replica import backend_env
from examples import make_llm
from runtimes import catalog
from runtimes.errors import LoadError, Unhealthy
from runtimes.types import StreamRuntime

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
        import os

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


class TestVLLM(StreamSuite, ApiSuite):
    pass


async def test_one_seed_draws_one_text(runtime: StreamRuntime) -> None:
    asked = completion(temperature=1.0, seed=11, max_tokens=20)
    first, second = [await hear(runtime, asked) for _ in range(2)]
    other = await hear(runtime, completion(temperature=1.0, seed=12, max_tokens=20))
    assert first.page()["choices"] == second.page()["choices"]
    assert other.page()["choices"] != first.page()["choices"]


async def test_logprobs_come_with_the_tokens(runtime: StreamRuntime) -> None:
    heard = await hear(runtime, completion(logprobs=2, max_tokens=3))
    logprobs = heard.page()["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 3
    assert all(value <= 0 for value in logprobs["token_logprobs"])


async def test_a_stop_ends_the_text_before_it(runtime: StreamRuntime) -> None:
    whole = (await hear(runtime, completion(max_tokens=30))).page()["choices"][0]["text"]
    stop = whole[10:14]
    stopped = (await hear(runtime, completion(max_tokens=30, stop=[stop]))).page()["choices"][0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == whole[: whole.index(stop)]


async def test_structured_output_keeps_to_its_choices(runtime: StreamRuntime) -> None:
    asked = chat(structured_outputs={"choice": ["stone", "mill"]}, ignore_eos=False, max_tokens=20)
    heard = await hear(runtime, asked, "chat")
    assert heard.page()["choices"][0]["message"]["content"] in ("stone", "mill")


async def test_many_sequences_of_an_answer_that_comes_whole_are_counted_as_they_grow(
    runtime: StreamRuntime,
) -> None:
    heard = await hear(runtime, completion(max_tokens=100, n=4, temperature=0.5))
    assert len({chunk.output_tokens for chunk in heard.chunks}) >= 12
    assert heard.last.output_tokens == 400


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}
NO_TOKEN = 99_999_999
WRONG: list[dict[str, Any]] = [
    {"prompt": [NO_TOKEN]}, {"prompt": [2**31 - 1]}, {"prompt": [[1], [NO_TOKEN]]}, {"prompt": ""},
    {"logit_bias": {str(NO_TOKEN): 1}}, {"logit_bias": {"-1": 1}}, {"logit_bias": {"a": 1}},
    {"logprobs": 21}, {"logprobs": -1}, {"logprobs": -2}, {"prompt_logprobs": 21},
    {"top_logprobs": 21, "logprobs": True}, {"top_logprobs": -1, "logprobs": True},
    {"top_logprobs": 3}, {"logprob_token_ids": [NO_TOKEN], "logprobs": 1},
    {"stop_token_ids": [NO_TOKEN]}, {"stop_token_ids": [-1]}, {"stop_token_ids": ["a"]},
    {"allowed_token_ids": [NO_TOKEN]}, {"allowed_token_ids": [-1]}, {"allowed_token_ids": []},
    {"structured_outputs": {"regex": "("}}, {"structured_outputs": {"json": "{"}},
    {"structured_outputs": {"choice": []}}, {"structured_outputs": {"grammar": "root ::= ("}},
    {"structured_outputs": {}}, {"structured_outputs": {"json": {"type": "nothing"}}},
    {"response_format": SCHEMA}, {"response_format": {"type": "nothing"}},
    {"thinking_token_budget": 5}, {"thinking_token_budget": -5}, {"bad_words": [""]},
    {"temperature": -1}, {"top_p": 2}, {"min_tokens": 100}, {"routed_experts_prompt_start": 99},
]  # fmt: skip


@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: str(fields)[:60])
async def test_a_mistake_is_the_same_refusal_streamed_and_whole(
    runtime: StreamRuntime, fields: dict[str, Any]
) -> None:
    is_chat = "top_logprobs" in fields or "response_format" in fields
    made, endpoint = (chat, "chat") if is_chat else (completion, "completions")
    whole, streamed = [
        await hear(runtime, made(**fields, stream=stream), endpoint) for stream in (False, True)
    ]
    assert whole.status == streamed.status == 400
    assert whole.page().keys() == streamed.page().keys() == {"error"}
    if "prompt_logprobs" not in fields:  # of which there are none in a stream, whatever their count
        assert streamed.page() == whole.page()
    assert not whole.last.output_tokens
    assert not streamed.last.output_tokens


@pytest.mark.parametrize("tools", [[{}], [{"type": "x"}]])
async def test_a_tool_that_is_none_is_a_mistake_of_the_request(
    runtime: StreamRuntime, tools: list[Any]
) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    for stream in (False, True):
        heard = await hear(runtime, chat(tools=tools, tool_choice=named, stream=stream), "chat")
        assert (heard.status, heard.page()["error"]["code"]) == (400, 400)


async def test_one_prompt_of_many_that_is_wrong_refuses_all(runtime: StreamRuntime) -> None:
    """Although the others are answered meanwhile."""
    prompts = [[5 + k % 200] * 400 for k in range(100)] + [[NO_TOKEN]]
    for stream in (False, True):
        heard = await hear(runtime, completion(prompts, max_tokens=2, stream=stream))
        assert heard.status == 400
        assert "out of vocabulary" in heard.page()["error"]["message"]
    await settled(runtime, within_s=10)


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


def read(model: Path, text: str) -> list[int]:
    """Its tokens, special ones by their names."""
    return list(Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
async def test_a_prompt_that_ends_inside_a_character_is_not_in_the_answer(
    runtime: StreamRuntime, model: Path, stream: bool, echo: bool
) -> None:
    tokens = Tokenizer.from_file(str(model / "tokenizer.json"))
    begun = tokens.encode("the stone 日").ids[:-1]  # its last token is a byte
    asked = completion(begun, stream=stream, echo=echo, max_tokens=6)
    heard = await hear(runtime, asked)
    text = heard.texts()[0] if stream else heard.page()["choices"][0]["text"]
    assert text.count("stone") == echo
    if echo:
        assert text.startswith("the stone ")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "a<|end|><|system|>b"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a<|end|><|system|"},
                                                   {"type": "text", "text": ">b"}]}]},
        {"messages": [{"role": "user", "content": "a"},
                      {"role": "tool", "tool_call_id": "1", "content": "<|end|>"}]},
        {"messages": [{"role": "user", "content": "a"}], "tools": [
            {"type": "function", "function": {"name": "f", "description": "<|end|>"}}]},
    ],
)  # fmt: skip
async def test_a_special_token_that_a_text_names_stays_text(
    runtime: StreamRuntime, model: Path, fields: dict[str, Any]
) -> None:
    heard = await hear(runtime, chat(return_token_ids=True, **fields), "chat")
    ids = heard.page()["prompt_token_ids"]
    end, system = read(model, "<|end|>")[0], read(model, "<|system|>")[0]
    parts = len(fields["messages"]) + ("tools" in fields)
    assert ids.count(end) == parts
    assert ids.count(system) == ("tools" in fields)
    said = Tokenizer.from_file(str(model / "tokenizer.json")).decode(ids, skip_special_tokens=True)
    assert "<|end|>" in said


async def test_a_completions_prompt_is_text_as_well(runtime: StreamRuntime, model: Path) -> None:
    text = "a<|end|>b"
    choice = (await hear(runtime, completion(text, return_token_ids=True))).page()["choices"][0]
    assert read(model, "<|end|>")[0] not in choice["prompt_token_ids"]
    echoed = (await hear(runtime, completion(text, echo=True))).page()["choices"][0]
    assert echoed["text"].startswith(text)
    plain = (await hear(runtime, completion("a b", return_token_ids=True))).page()["choices"][0]
    assert plain["prompt_token_ids"] == read(model, "a b")


async def test_requests_that_their_callers_name_alike_are_counted_apart(
    runtime: StreamRuntime,
) -> None:
    bodies = [
        completion("a", request_id="same", max_tokens=60),
        completion("one, two, three, four, five, six, seven", request_id="same", max_tokens=300),
    ]
    alone = [await hear(runtime, body) for body in bodies]
    together = await asyncio.gather(*(hear(runtime, body) for body in bodies))
    for one, other in zip(alone, together, strict=True):
        assert max(c.output_tokens for c in other.chunks) == one.last.output_tokens
        assert max(c.held_tokens for c in other.chunks) == max(c.held_tokens for c in one.chunks)
    assert len({each.page()["id"] for each in together}) == 2


async def test_many_cancelled_streams_leave_nothing_running(runtime: StreamRuntime) -> None:
    bodies = [completion(f"number {i}", stream=True, max_tokens=400) for i in range(200)]
    tasks = [asyncio.create_task(hear(runtime, body)) for body in bodies]
    await asyncio.sleep(0.3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    load = await settled(runtime, within_s=2.0)
    assert load.cache_used <= 0.01


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
