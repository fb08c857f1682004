"""What every stream backend that runs a real model does besides: drawing, stops, log-probabilities,
special tokens, characters. `model`: the folder of `examples.make_llm`, which `runtime` runs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from stream_cases import chat, completion, hear
from stream_suite import StreamSuite, settled
from tokenizers import Tokenizer

from runtimes.types import StreamRuntime

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
NAMING: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "a<|end|><|system|>b"}],
    [{"role": "user", "content": [{"type": "text", "text": "a<|end|><|system|"},
                                  {"type": "text", "text": ">b"}]}],
    [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "1", "content": "<|end|>"}],
]  # fmt: skip


def read(model: Path, text: str) -> list[int]:
    """Its tokens, special ones by their names."""
    return list(Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids)


class ModelSuite(StreamSuite):
    async def test_one_seed_draws_one_text(self, runtime: StreamRuntime) -> None:
        asked = completion(temperature=1.0, seed=11, max_tokens=20)
        first, second = [await hear(runtime, asked) for _ in range(2)]
        other = await hear(runtime, completion(temperature=1.0, seed=12, max_tokens=20))
        assert first.page()["choices"] == second.page()["choices"]
        assert other.page()["choices"] != first.page()["choices"]

    async def test_logprobs_come_with_the_tokens(self, runtime: StreamRuntime) -> None:
        heard = await hear(runtime, completion(logprobs=2, max_tokens=3))
        logprobs = heard.page()["choices"][0]["logprobs"]
        assert len(logprobs["token_logprobs"]) == 3
        assert all(value <= 0 for value in logprobs["token_logprobs"])

    async def test_a_stop_ends_the_text_before_it(self, runtime: StreamRuntime) -> None:
        whole = (await hear(runtime, completion(max_tokens=30))).page()["choices"][0]["text"]
        stop = whole[10:14]
        stopped = (await hear(runtime, completion(max_tokens=30, stop=[stop]))).page()["choices"][0]
        assert stopped["finish_reason"] == "stop"
        assert stopped["text"] == whole[: whole.index(stop)]

    async def test_many_sequences_of_an_answer_that_comes_whole_are_counted_as_they_grow(
        self,
        runtime: StreamRuntime,
    ) -> None:
        heard = await hear(runtime, completion(max_tokens=100, n=4, temperature=0.5))
        assert len({chunk.output_tokens for chunk in heard.chunks}) >= 12
        assert heard.last.output_tokens == 400

    @pytest.mark.parametrize("fields", WRONG, ids=lambda fields: str(fields)[:60])
    async def test_a_mistake_is_the_same_refusal_streamed_and_whole(
        self, runtime: StreamRuntime, fields: dict[str, Any]
    ) -> None:
        is_chat = "top_logprobs" in fields or "response_format" in fields
        made, endpoint = (chat, "chat") if is_chat else (completion, "completions")
        whole, streamed = [
            await hear(runtime, made(**fields, stream=stream), endpoint) for stream in (False, True)
        ]
        assert whole.status == streamed.status == 400
        assert whole.page().keys() == streamed.page().keys() == {"error"}
        if "prompt_logprobs" not in fields:  # vLLM has none in a stream, whatever their count
            assert streamed.page() == whole.page()
        assert not whole.last.output_tokens
        assert not streamed.last.output_tokens

    async def test_one_prompt_of_many_that_is_wrong_refuses_all(
        self, runtime: StreamRuntime
    ) -> None:
        """Although the others are answered meanwhile."""
        prompts = [[5 + k % 200] * 400 for k in range(100)] + [[NO_TOKEN]]
        for stream in (False, True):
            heard = await hear(runtime, completion(prompts, max_tokens=2, stream=stream))
            assert heard.status == 400
            assert "out of vocabulary" in heard.page()["error"]["message"]
        await settled(runtime, within_s=10)

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("echo", [False, True])
    async def test_a_prompt_that_ends_inside_a_character_is_not_in_the_answer(
        self, runtime: StreamRuntime, model: Path, stream: bool, echo: bool
    ) -> None:
        tokens = Tokenizer.from_file(str(model / "tokenizer.json"))
        begun = tokens.encode("the stone 日").ids[:-1]  # its last token is a byte
        asked = completion(begun, stream=stream, echo=echo, max_tokens=6)
        heard = await hear(runtime, asked)
        text = heard.texts()[0] if stream else heard.page()["choices"][0]["text"]
        assert text.count("stone") == echo
        if echo:
            assert text.startswith("the stone ")

    @pytest.mark.parametrize("messages", NAMING)
    async def test_a_special_token_that_a_text_names_stays_text(
        self, runtime: StreamRuntime, model: Path, messages: list[dict[str, Any]]
    ) -> None:
        heard = await hear(runtime, chat(return_token_ids=True, messages=messages), "chat")
        ids = heard.page()["prompt_token_ids"]
        assert ids.count(read(model, "<|end|>")[0]) == len(messages)
        assert read(model, "<|system|>")[0] not in ids
        tokens = Tokenizer.from_file(str(model / "tokenizer.json"))
        assert "<|end|>" in tokens.decode(ids, skip_special_tokens=True)

    async def test_a_completions_prompt_is_text_as_well(
        self, runtime: StreamRuntime, model: Path
    ) -> None:
        text = "a<|end|>b"
        choice = (await hear(runtime, completion(text, return_token_ids=True))).page()["choices"][0]
        assert read(model, "<|end|>")[0] not in choice["prompt_token_ids"]
        echoed = (await hear(runtime, completion(text, echo=True))).page()["choices"][0]
        assert echoed["text"].startswith(text)
        plain = (await hear(runtime, completion("a b", return_token_ids=True))).page()["choices"][0]
        assert plain["prompt_token_ids"] == read(model, "a b")

    async def test_requests_that_their_callers_name_alike_are_counted_apart(
        self,
        runtime: StreamRuntime,
    ) -> None:
        asked = [("a", 60), ("one, two, three, four, five, six, seven", 300)]
        bodies = [completion(text, request_id="same", max_tokens=most) for text, most in asked]
        alone = [await hear(runtime, body) for body in bodies]
        together = await asyncio.gather(*(hear(runtime, body) for body in bodies))
        for one, other in zip(alone, together, strict=True):
            assert max(c.output_tokens for c in other.chunks) == one.last.output_tokens
            held = [max(chunk.held_tokens for chunk in each.chunks) for each in (one, other)]
            assert held[0] == held[1]
        assert len({each.page()["id"] for each in together}) == 2

    async def test_many_cancelled_streams_leave_nothing_running(
        self, runtime: StreamRuntime
    ) -> None:
        bodies = [completion(f"number {i}", stream=True, max_tokens=400) for i in range(200)]
        tasks = [asyncio.create_task(hear(runtime, body)) for body in bodies]
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        load = await settled(runtime, within_s=2.0)
        assert load.cache_used <= 0.01
