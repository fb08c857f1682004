"""Messages, responses and counts of tokens through the whole gateway, by the SDKs of those APIs and
over the synthetic engine; and how each ending looks from outside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from fake_engines import until
from generating import Client, Generated, Played, add
from in_process import Answer, Stand, ask, standing

from deployments.contract import errors
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import Generating, ModelDescription
from deployments.gateway.tenancy.tenants import hash_key
from runtimes import catalog
from runtimes.types import RuntimeSettings

Describe = Callable[..., ModelDescription]
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
ASKED: list[Any] = [{"role": "user", "content": "one two three"}]
SHAPE = Generating(context_tokens=512, cache_tokens=4096, max_sequences=4, block_tokens=16)
PATIENT = {"ttft_ms": 60_000, "timeout_ms": 60_000}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    tenants = {"default": {}, "slow": {"rate": {"tokens_per_s": 10, "burst_s": 1}}}
    async with standing({}, tmp_path, tenants=tenants) as stand:
        yield stand


@pytest.fixture
async def served(stand: Stand, description: Describe, tmp_path: Path) -> AsyncIterator[Stand]:
    """By the synthetic engine."""
    options = {"base_ms": 0, "max_sequences": 4, "cache_tokens": 4096}
    settings = RuntimeSettings(
        "chat", "synthetic", None, tmp_path / "cache", task="generate", max_length=512,
        options=options,
    )  # fmt: skip
    runtime = catalog.create_stream(settings)
    await runtime.load()
    add(stand, description, engines=Generated(runtime), shape=SHAPE, slo=PATIENT)
    yield stand
    await runtime.close()


@pytest.fixture
async def engines(stand: Stand, description: Describe) -> Played:
    return add(stand, description, replicas=2)


def http(stand: Stand) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=stand.app))


def anthropics(stand: Stand, key: str = "any") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key=key, base_url="http://local", http_client=http(stand), max_retries=0
    )


def openais(stand: Stand) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="any", base_url="http://local/v1", http_client=http(stand), max_retries=0
    )


async def post(stand: Stand, path: str, headers: Any = (), **body: Any) -> Answer:
    return await ask(stand.app, "POST", path, headers, json.dumps(body).encode())


async def begun(engines: Played) -> int:
    return (await engines.until_begun(1)).lease_id


# ---- through SDKs -------------------------------------------------------------------------------


async def test_anthropics_sdk_reads_a_message(served: Stand) -> None:
    client = anthropics(served)
    message = await client.messages.create(
        model="chat", max_tokens=5, messages=ASKED, system=[{"type": "text", "text": "be brief"}]
    )
    assert (message.type, message.role, message.stop_reason) == (
        "message", "assistant", "max_tokens"
    )  # fmt: skip
    (block,) = message.content
    assert block.type == "text"
    assert len(block.text.split()) == message.usage.output_tokens == 5
    assert message._request_id


async def test_anthropics_sdk_reads_each_event_of_a_stream(served: Stand) -> None:
    asked: dict[str, Any] = {"model": "chat", "max_tokens": 5, "messages": ASKED}
    whole = await anthropics(served).messages.create(**asked)
    async with anthropics(served).messages.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert [b.to_dict() for b in final.content] == [b.to_dict() for b in whole.content]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 5
    own = [kind for kind in kinds if kind != "text"]
    assert own == [
        "message_start", "content_block_start", *["content_block_delta"] * 5, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip


async def test_anthropics_sdk_counts_tokens(served: Stand) -> None:
    client = anthropics(served)
    message = await client.messages.create(model="chat", max_tokens=1, messages=ASKED)
    counted = await client.messages.count_tokens(model="chat", messages=ASKED)
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_openais_sdk_reads_a_response(served: Stand) -> None:
    response = await openais(served).responses.create(
        model="chat", input="one two three", instructions="be brief", max_output_tokens=5
    )
    assert (response.status, response.store) == ("incomplete", False)
    assert response.usage is not None
    assert len(response.output_text.split()) == response.usage.output_tokens == 5


async def test_openais_sdk_reads_each_event_of_a_stream(served: Stand) -> None:
    asked: dict[str, Any] = {"model": "chat", "input": ASKED, "max_output_tokens": 5}
    whole = await openais(served).responses.create(**asked)
    events = [event async for event in await openais(served).responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * 5, "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    last = events[-1]
    assert last.type == "response.completed"
    assert (last.response.output_text, last.response.store) == (whole.output_text, False)
    async with openais(served).responses.stream(**asked) as stream:
        assert (await stream.get_final_response()).output_text == whole.output_text


async def test_tokens_of_a_text_are_its_text_again(served: Stand) -> None:
    found = await post(served, "/tokenize", model="chat", prompt="one two three")
    page = json.loads(found.body)
    assert page["count"] == len(page["tokens"]) == 4
    assert page["max_model_len"] == 512
    text = await post(served, "/detokenize", model="chat", tokens=page["tokens"])
    assert json.loads(text.body) == {"prompt": "one two three"}
    chat = await post(served, "/tokenize", model="chat", messages=ASKED)
    counted = await post(served, "/v1/messages/count_tokens", model="chat", messages=ASKED)
    assert json.loads(chat.body)["count"] == json.loads(counted.body)["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "kind", "status"),
    [
        ({"model": "nobody"}, anthropic.NotFoundError, 404),
        ({"max_tokens": 0}, anthropic.BadRequestError, 400),
        ({"messages": []}, anthropic.BadRequestError, 400),
        ({"max_tokens": 10_000}, anthropic.BadRequestError, 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_sdk_reads_refusals(
    served: Stand, fields: Any, kind: Any, status: int, stream: bool
) -> None:
    asked = {"model": "chat", "max_tokens": 5, "messages": ASKED, **fields}
    with pytest.raises(kind) as refused:
        await anthropics(served).messages.create(**asked, stream=stream)
    assert refused.value.status_code == status
    assert refused.value.request_id
    assert refused.value.body["request_id"] == refused.value.request_id


# ---- what the engine gets -----------------------------------------------------------------------

BODIES: list[tuple[str, str, dict[str, Any]]] = [
    (MESSAGES, "messages", {"temperature": 1.50, "max_tokens": 4, "messages": ASKED}),
    ("/v1/messages/count_tokens", "count_tokens", {"messages": ASKED}),
    (RESPONSES, "responses", {"top_p": 0.50, "input": "a", "store": False}),
    ("/tokenize", "tokenize", {"prompt": "a"}),
    ("/detokenize", "detokenize", {"tokens": [1, 2]}),
]


@pytest.mark.parametrize(("path", "endpoint", "fields"), BODIES)
async def test_the_engine_gets_the_callers_own_bytes(
    stand: Stand, engines: Played, path: str, endpoint: str, fields: dict[str, Any]
) -> None:
    body = json.dumps({**fields, "model": "chat:sql"}, indent=2).encode()
    client = Client(stand, path, body)
    asked = await engines.until_begun(1)
    assert (asked.call.body, asked.call.endpoint) == (body, endpoint)
    engines.say(asked.lease_id, b'{"a": 1}', tokens=(0, 0, 0), end=StreamEnd.DONE)
    assert await client.end() == b'{"a": 1}'
    assert client.status == 200
    assert (b"request-id" in client.headers) is path.startswith(MESSAGES)


async def test_a_response_of_which_nothing_is_said_is_not_kept(
    stand: Stand, engines: Played
) -> None:
    stand.models.aliases = {"org/Chat": "chat"}
    client = Client(stand, RESPONSES, {"model": "org/Chat", "input": "a", "store": None})
    asked = await engines.until_begun(1)
    assert json.loads(asked.call.body) == {"model": "chat", "input": "a", "store": False}
    engines.say(asked.lease_id, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [(RESPONSES, {"input": "a"}, "max_output_tokens"), ("/tokenize", {"prompt": "a"}, "")],
)
async def test_the_bound_on_output_has_the_name_that_the_api_gives_it(
    stand: Stand, description: Describe, path: str, fields: dict[str, Any], name: str
) -> None:
    engines = add(stand, description, generation={"max_output_tokens": 7})
    client = Client(stand, path, {"model": "chat", **fields})
    asked = await engines.until_begun(1)
    sent = json.loads(asked.call.body)
    assert sent.get(name) == (7 if name else None)
    assert "max_tokens" not in sent
    engines.say(asked.lease_id, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()


async def test_what_is_only_counted_holds_no_tokens_and_pays_none(
    stand: Stand, engines: Played
) -> None:
    """A prompt of more tokens than the tenant's rate has, and than the context."""
    long = "a" * 3000
    for _ in range(3):
        client = Client(
            stand, "/tokenize", {"model": "chat", "prompt": long}, [(b"x-tenant", b"slow")]
        )
        asked = await engines.until_begun(len(engines.begun) + 1)
        held = sum(each.held for each in stand.models.queued["chat"].queue.snapshot().replicas)
        assert held == 1.0
        engines.say(asked.lease_id, b"{}", tokens=(0, 0, 0), end=StreamEnd.DONE)
        await client.end()
        assert client.status == 200


# ---- keys ---------------------------------------------------------------------------------------


@pytest.fixture
async def keyed(tmp_path: Path, description: Describe) -> AsyncIterator[Stand]:
    tenants = {name: {"keys": [hash_key(f"hr_{name}")]} for name in ("acme", "other")}
    async with standing({}, tmp_path, tenants=tenants) as stand:
        add(stand, description)
        yield stand


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({}, 401, "authentication_error"),
        ({"x-api-key": "hr_acme"}, 404, "not_found_error"),
        ({"authorization": "Bearer hr_acme"}, 404, "not_found_error"),
        ({"authorization": "Bearer hr_acme", "x-api-key": "hr_acme"}, 404, "not_found_error"),
        ({"authorization": "Bearer hr_acme", "x-api-key": "hr_other"}, 400, "invalid_request"),
        ({"authorization": "Basic hr_acme", "x-api-key": "hr_acme"}, 404, "not_found_error"),
        ({"x-api-key": "hr_nobody"}, 401, "authentication_error"),
        ({"x-api-key": ""}, 401, "authentication_error"),
        ({"x-api-key": "Bearer hr_acme"}, 401, "authentication_error"),
    ],
)
async def test_a_key_comes_in_either_header(
    keyed: Stand, headers: dict[str, str], status: int, kind: str
) -> None:
    """A model that nobody has: its 404 tells that the key was taken."""
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    answer = await post(keyed, MESSAGES, sent, model="x", max_tokens=1, messages=ASKED)
    error = json.loads(answer.body)
    assert answer.status == status
    assert error["error"]["type"].startswith(kind)
    assert b"hr_" not in answer.body
    page = await ask(keyed.app, "GET", "/v1/models", sent)
    assert (page.status == 200) is (status == 404)


async def test_where_no_key_is_needed_none_is_read(stand: Stand, engines: Played) -> None:
    sent = [(b"authorization", b"Bearer a"), (b"x-api-key", b"b"), (b"anthropic-version", b"1")]
    answer = await post(stand, MESSAGES, sent, model="x", max_tokens=1, messages=ASKED)
    assert answer.status == 404


async def test_two_headers_of_the_key_are_refused(keyed: Stand) -> None:
    twice = [(b"x-api-key", b"hr_acme"), (b"x-api-key", b"hr_other")]
    answer = await post(keyed, MESSAGES, twice, model="x", max_tokens=1, messages=ASKED)
    assert (answer.status, b"duplicate header" in answer.body) == (400, True)


# ---- endings ------------------------------------------------------------------------------------


async def test_an_overload_has_a_status_of_its_own_on_anthropics_paths_alone(
    stand: Stand, description: Describe
) -> None:
    add(stand, description, queue={"max_rows": 1}, replicas=0)
    asked: dict[str, Any] = {"model": "chat", "max_tokens": 1, "messages": ASKED}
    waits = Client(stand, MESSAGES, asked)
    await until(lambda: stand.models.queued["chat"].queue.snapshot().waiting_rows)
    refused = await post(stand, MESSAGES, **asked)
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["type"]) == (529, "overloaded_error")
    assert dict(refused.headers)[b"retry-after"]
    other = await post(stand, RESPONSES, model="chat", input="a")
    assert (other.status, json.loads(other.body)["error"]["code"]) == (503, "overloaded")
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    assert any("requests_total{" in line and 'protocol="messages"' in line for line in lines)
    waits.task.cancel()


async def test_a_model_that_is_not_ready_is_no_overload(stand: Stand) -> None:
    stand.models._declared |= {"soon"}
    answer = await post(stand, MESSAGES, model="soon", max_tokens=1, messages=ASKED)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["type"]) == (503, "api_error")


STREAMED: list[tuple[str, dict[str, Any]]] = [
    (MESSAGES, {"max_tokens": 4, "messages": ASKED}),
    (RESPONSES, {"input": "a"}),
]
PIECE = b'event: x\ndata: {"type":"x","sequence_number":4}\n\n'


@pytest.mark.parametrize(("path", "fields"), STREAMED)
async def test_a_stream_whose_replica_dies_ends_with_the_apis_own_event(
    stand: Stand, engines: Played, path: str, fields: dict[str, Any]
) -> None:
    client = Client(stand, path, {"model": "chat", "stream": True, **fields})
    engines.say(await begun(engines), PIECE, tokens=(1, 0, 1))
    await client.hears(1)
    engines.kill(engines.begun[0][0])
    name, data, *_ = (await client.end()).removeprefix(PIECE).split(b"\n")
    page = json.loads(data.removeprefix(b"data: "))
    if path == MESSAGES:
        assert name == b"event: error"
        assert page["error"]["type"] == "api_error"
        assert page["error"]["usage"] == {"input_tokens": 1, "output_tokens": 1}
        assert page["request_id"] == client.headers[b"request-id"].decode()
    else:
        assert name == b"event: response.failed"
        assert (page["type"], page["response"]["status"]) == ("response.failed", "failed")
        assert page["response"]["usage"]["output_tokens"] == 1
        assert page["sequence_number"] == 5


@pytest.mark.parametrize(("path", "fields"), STREAMED)
async def test_a_stream_whose_replica_dies_before_its_first_piece_is_not_noticed(
    stand: Stand, engines: Played, path: str, fields: dict[str, Any]
) -> None:
    client = Client(stand, path, {"model": "chat", "stream": True, **fields})
    await begun(engines)
    engines.kill(engines.begun[0][0])
    again = (await engines.until_begun(2)).lease_id
    engines.say(again, PIECE, tokens=(1, 0, 1), end=StreamEnd.DONE)
    assert await client.end() == PIECE
    assert client.headers[b"content-type"].startswith(b"text/event-stream")


@pytest.mark.parametrize(("path", "fields"), STREAMED)
async def test_an_engines_refusal_has_the_shape_of_the_api(
    stand: Stand, engines: Played, path: str, fields: dict[str, Any]
) -> None:
    said = {"message": "no", "type": "BadRequestError", "param": None, "code": 400}
    for stream in (False, True):
        client = Client(stand, path, {"model": "chat", "stream": stream, **fields})
        lease = (await engines.until_begun(1 + stream)).lease_id
        body = json.dumps({"error": said}).encode()
        engines.say(lease, body, tokens=(0, 0, 0), status=400, end=StreamEnd.DONE)
        page = json.loads(await client.end())
        assert client.status == 400
        if path == RESPONSES:
            assert page == {"error": said}
        else:
            assert page["error"] == {"type": "invalid_request_error", "message": "no"}
            assert page["type"] == "error"


async def test_an_unknown_path_and_method_have_anthropics_shape(stand: Stand) -> None:
    for method, path, status in (("GET", MESSAGES, 405), ("POST", f"{MESSAGES}/batches", 404)):
        answer = await ask(stand.app, method, path)
        page = json.loads(answer.body)
        assert (answer.status, page["type"]) == (status, "error")
        assert page["request_id"] == dict(answer.headers)[b"request-id"].decode()


@pytest.mark.parametrize(
    ("path", "said"),
    [("/v1/responses/resp_1", b"nothing is kept here"), ("/v1/files/f", b"nothing is kept here"),
     ("/v1/messages/batches", b"send each message"), ("/v1/responsesx", b"lists the API")],
)  # fmt: skip
async def test_what_others_keep_is_told_to_be_nowhere(stand: Stand, path: str, said: bytes) -> None:
    answer = await ask(stand.app, "GET", path)
    assert (answer.status, said in answer.body) == (404, True)


def test_each_error_has_a_type_that_anthropics_sdk_knows() -> None:
    kinds = {
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error",
        "request_too_large", "rate_limit_error", "api_error", "timeout_error", "overloaded_error",
    }  # fmt: skip
    from deployments.gateway.http.protocols.error_shapes import anthropic_error

    known = [errors.HeadraceError, *errors.HeadraceError.__subclasses__()]
    for kind in known:
        made = kind("m") if kind is not errors.BadText else kind(0, "m")
        assert json.loads(anthropic_error(made).body)["error"]["type"] in kinds
