"""What a stream backend does alike at the other ways to ask it: Anthropic's messages, OpenAI's
responses, and counts of tokens. `runtime`: as in `stream_suite`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from stream_cases import CONTEXT, MODEL, Heard, hear
from stream_suite import settled

from runtimes.types import StreamRuntime

USER = [{"role": "user", "content": "one two three"}]
ASKED: dict[str, dict[str, Any]] = {
    "messages": {"messages": USER, "max_tokens": 8},
    "responses": {"input": "one two three", "max_output_tokens": 8, "ignore_eos": True},
}


def asked(endpoint: str, **fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "temperature": 0, **ASKED[endpoint], **fields}).encode()


def counted(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, **fields}).encode()


def events(heard: Heard) -> list[dict[str, Any]]:
    """Checks that events come whole, each with the name that it has within."""
    assert all(not c.data or c.data.endswith(b"\n\n") for c in heard.chunks)
    found = []
    for each in heard.data.split(b"\n\n")[:-1]:
        name, data = each.split(b"\n")
        found.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def text_of(page: dict[str, Any]) -> str:
    """Of a whole answer."""
    parts = page["content"] if "content" in page else page["output"][0]["content"]
    return "".join(part["text"] for part in parts)


def streamed_text(found: list[dict[str, Any]]) -> str:
    deltas = [each["delta"] for each in found if "delta" in each and each["type"].endswith("delta")]
    texts = (each if isinstance(each, str) else each.get("text", "") for each in deltas)
    return "".join(texts)


class ApiSuite:
    @pytest.mark.parametrize("endpoint", ASKED)
    async def test_what_streams_is_the_answer_that_comes_whole(
        self, runtime: StreamRuntime, endpoint: str
    ) -> None:
        whole = await hear(runtime, asked(endpoint), endpoint)
        streamed = await hear(runtime, asked(endpoint, stream=True), endpoint)
        assert whole.status == streamed.status == 200
        assert streamed_text(events(streamed)) == text_of(whole.page()) != ""

    async def test_a_messages_events_are_in_anthropics_order(self, runtime: StreamRuntime) -> None:
        heard = await hear(runtime, asked("messages", stream=True), "messages")
        kinds = [each["type"] for each in events(heard)]
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert set(kinds[2:-3]) == {"content_block_delta"}
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]

    async def test_a_responses_events_are_in_openais_order(self, runtime: StreamRuntime) -> None:
        heard = await hear(runtime, asked("responses", stream=True), "responses")
        found = events(heard)
        kinds = [each["type"].removeprefix("response.") for each in found]
        assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert set(kinds[4:-4]) == {"output_text.delta"}
        assert kinds[-4:] == [
            "output_text.done", "content_part.done", "output_item.done", "completed"
        ]  # fmt: skip
        assert [each["sequence_number"] for each in found] == list(range(len(found)))
        kept = [each["response"]["store"] for each in found if "response" in each]
        assert kept == [False] * 3

    @pytest.mark.parametrize("endpoint", ASKED)
    async def test_counts_are_those_that_the_answer_states_in_every_api(
        self, runtime: StreamRuntime, endpoint: str
    ) -> None:
        heard = await hear(runtime, asked(endpoint), endpoint)
        usage = heard.page()["usage"]
        read = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        assert heard.last.input_tokens == read
        assert heard.last.output_tokens == usage["output_tokens"] == 8

    @pytest.mark.parametrize("endpoint", ASKED)
    async def test_a_stream_begins_with_its_first_token_and_counts_each(
        self, runtime: StreamRuntime, endpoint: str
    ) -> None:
        heard = await hear(runtime, asked(endpoint, stream=True), endpoint)
        first = next(chunk for chunk in heard.chunks if chunk.data)
        assert 1 <= first.output_tokens <= 2
        assert heard.last.output_tokens == 8
        assert len(heard.chunks) >= 5

    @pytest.mark.parametrize("endpoint", ASKED)
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("fields", "status"),
        [({"model": "other"}, 404), ({"messages": [], "input": []}, 400),
         ({"max_tokens": -1, "max_output_tokens": -1}, 400)],
    )  # fmt: skip
    async def test_a_fault_of_the_request_is_openais_error_in_every_api(
        self, runtime: StreamRuntime, endpoint: str, stream: bool, fields: Any, status: int
    ) -> None:
        heard = await hear(runtime, asked(endpoint, stream=stream, **fields), endpoint)
        assert heard.status == status
        assert heard.page()["error"]["code"] == status
        assert heard.page()["error"]["message"]
        await settled(runtime)

    @pytest.mark.parametrize("endpoint", ASKED)
    async def test_a_prompt_that_another_tenant_sent_is_not_found_in_any_api(
        self, runtime: StreamRuntime, endpoint: str
    ) -> None:
        prompt = f"what acme asks again and again at {endpoint} " * 8
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        body = asked(endpoint, **(fields if endpoint == "messages" else {"input": prompt}))
        block, found = runtime.limits().block_tokens, []
        for salt in ("acme", "batch", "acme", "batch"):
            heard = await hear(runtime, body, endpoint, salt=salt)
            assert heard.status == 200
            found.append(heard.last.cached_tokens >= block)
        assert found == [False, False, True, True]

    async def test_tokens_are_counted_as_a_message_has_them(self, runtime: StreamRuntime) -> None:
        heard = await hear(runtime, asked("messages"), "messages")
        count = await hear(runtime, counted(messages=USER), "count_tokens")
        assert count.page()["input_tokens"] == heard.last.input_tokens
        assert (count.last.input_tokens, count.last.output_tokens, count.last.held_tokens) == (
            0, 0, 0
        )  # fmt: skip

    async def test_a_texts_tokens_are_that_text_again(self, runtime: StreamRuntime) -> None:
        page = (await hear(runtime, counted(prompt="one two three"), "tokenize")).page()
        assert page["count"] == len(page["tokens"]) > 0
        assert page["max_model_len"] == CONTEXT
        text = await hear(runtime, counted(tokens=page["tokens"]), "detokenize")
        assert text.page()["prompt"] == "one two three"

    @pytest.mark.parametrize("endpoint", ["count_tokens", "tokenize", "detokenize"])
    @pytest.mark.parametrize("body", [b"{", b"[]", counted(), counted(model="other", tokens=[1])])
    async def test_what_cannot_be_counted_is_refused(
        self, runtime: StreamRuntime, endpoint: str, body: bytes
    ) -> None:
        heard = await hear(runtime, body, endpoint)
        assert heard.status in (400, 404)
        assert heard.page()["error"]["code"] == heard.status
