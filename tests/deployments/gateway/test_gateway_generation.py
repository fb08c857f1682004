"""Chats and completions through the whole gateway: what reaches the engine, what the client hears
and when, and how each ending looks from outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engines import until
from generating import CHAT, COMPLETIONS, SHAPE, Client, Played, add, chat, streamed
from in_process import Stand, ask, standing
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway import generation
from deployments.gateway.tenancy.rates import Rates
from deployments.gateway.tenancy.tenants import hash_key
from deployments.preprocess.tokenizer import TextTokenizer

Describe = Callable[..., ModelDescription]
SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}}
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    tenants = {
        "default": {},
        "slow": {"rate": {"tokens_per_s": 10, "burst_s": 1}},
        "plain": {"models": ["chat"]},
        "sql": {"models": ["chat:sql"]},
        "any": {"models": ["chat:*"]},
    }
    async with standing({"device": SYNTHETIC}, tmp_path, tenants=tenants) as stand:
        yield stand


@pytest.fixture
async def engines(stand: Stand, description: Describe) -> Played:
    return add(stand, description, replicas=2)


@pytest.fixture
def looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)


async def begun(engines: Played, count: int = 1) -> int:
    asked = await engines.until_begun(count)
    return asked.lease_id


async def test_a_stream_is_passed_on_piece_by_piece(stand: Stand, engines: Played) -> None:
    client = Client(stand, CHAT, streamed(), [(b"x-request-id", b"mine")])
    lease = await begun(engines)
    engines.say(lease, b"data: one\n\n", tokens=(10, 0, 1))
    assert await client.hears(1) == b"data: one\n\n"
    assert client.status == 200
    assert client.headers[b"content-type"].startswith(b"text/event-stream")
    assert client.headers[b"cache-control"] == b"no-cache"
    assert client.headers[b"x-accel-buffering"] == b"no"
    assert client.headers[b"x-request-id"] == b"mine"
    assert float(client.headers[b"x-queue-wait-ms"]) >= 0.0
    assert b"content-length" not in client.headers
    engines.say(lease, DONE, tokens=(10, 0, 2), end=StreamEnd.DONE)
    assert await client.end() == b"data: one\n\n" + DONE
    assert client.over


async def test_an_answer_that_is_not_streamed_is_one_reply(stand: Stand, engines: Played) -> None:
    client = Client(stand, CHAT, chat())
    engines.say(await begun(engines), b'{"choices": []}', tokens=(10, 0, 5), end=StreamEnd.DONE)
    assert json.loads(await client.end()) == {"choices": []}
    assert client.headers[b"content-type"] == b"application/json"
    assert client.headers[b"content-length"] == b"15"
    assert float(client.headers[b"x-service-time-ms"]) > 0.0


async def test_the_engine_gets_the_callers_own_bytes(stand: Stand, engines: Played) -> None:
    body = b'{"model":"chat", "tools": [{"x":1.50}], "messages":[{"role":"user","content":"a"}]}'
    client = Client(stand, CHAT, body)
    asked = await engines.until_begun(1)
    assert (asked.call.body, asked.call.endpoint) == (body, "chat")
    engines.say(asked.lease_id, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()


@pytest.mark.parametrize(
    ("named", "sent"), [("org/Chat-1B", "chat"), ("org/Chat-1B:sql", "chat:sql")]
)
async def test_the_engine_hears_the_models_own_name(
    stand: Stand, engines: Played, named: str, sent: str
) -> None:
    stand.models.aliases = {"org/Chat-1B": "chat"}
    client = Client(stand, COMPLETIONS, {"model": named, "prompt": "a"})
    asked = await engines.until_begun(1)
    assert json.loads(asked.call.body)["model"] == sent
    engines.say(asked.lease_id, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()


async def test_an_adapter_is_asked_of_the_model_it_belongs_to(
    stand: Stand, engines: Played
) -> None:
    client = Client(stand, COMPLETIONS, {"model": "chat:sql", "prompt": "a"})
    asked = await engines.until_begun(1)
    assert json.loads(asked.call.body)["model"] == "chat:sql"
    assert asked.call.endpoint == "completions"
    engines.say(asked.lease_id, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()


@pytest.mark.parametrize(
    ("tenant", "model"),
    [
        ("plain", "chat:sql"),
        ("sql", "chat"),
        ("sql", "chat:law"),
        ("any", "chat"),
        ("sql", "x:sql"),
        ("default", "chat:none"),
        ("any", "chat:none"),
    ],
)
async def test_an_adapter_that_a_tenant_does_not_have_is_as_one_that_is_not_there(
    stand: Stand, engines: Played, tenant: str, model: str
) -> None:
    client = Client(stand, CHAT, chat() | {"model": model}, [(b"x-tenant", tenant.encode())])
    error = await client.error()
    assert client.status == 404
    assert error["message"] == f"unknown model {model!r}; GET /v1/models lists the models"
    assert not engines.begun


@pytest.mark.parametrize(
    ("tenant", "model"),
    [("plain", "chat"), ("sql", "chat:sql"), ("any", "chat:law"), ("default", "chat:sql")],
)
async def test_an_adapter_that_a_tenant_has_reaches_the_engine(
    stand: Stand, engines: Played, tenant: str, model: str
) -> None:
    client = Client(stand, CHAT, chat() | {"model": model}, [(b"x-tenant", tenant.encode())])
    lease = await begun(engines)
    engines.say(lease, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()
    assert client.status == 200


async def test_a_request_that_does_not_say_how_much_gets_the_models_own_bound(
    stand: Stand, description: Describe
) -> None:
    engines = add(stand, description, generation={"max_output_tokens": 7})
    client = Client(stand, CHAT, chat())
    asked = await engines.until_begun(1)
    assert json.loads(asked.call.body)["max_tokens"] == 7
    engines.say(asked.lease_id, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_engines_refusal_is_the_answer(
    stand: Stand, engines: Played, stream: bool
) -> None:
    client = Client(stand, CHAT, chat(stream=stream))
    said = b'{"error": {"message": "no such tool"}}'
    engines.say(await begun(engines), said, status=422, end=StreamEnd.DONE)
    assert await client.end() == said
    assert (client.status, client.headers[b"content-type"]) == (422, b"application/json")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, b"{", None),
        (CHAT, {"model": "chat"}, "messages"),
        (CHAT, {"model": "chat", "messages": "hi"}, "messages"),
        (CHAT, chat(n=0), "n"),
        (CHAT, chat(max_tokens="5"), "max_tokens"),
        (CHAT, chat(stream=1), "stream"),
        (COMPLETIONS, {"model": "chat"}, "prompt"),
        (COMPLETIONS, {"model": "chat", "prompt": []}, "prompt"),
        (COMPLETIONS, {"model": "chat", "prompt": [1, "a"]}, "prompt"),
        (COMPLETIONS, {"prompt": "a"}, None),
    ],
)
async def test_what_is_wrong_with_a_request_is_said_before_anything_queues(
    stand: Stand, engines: Played, path: str, body: Any, param: str | None
) -> None:
    client = Client(stand, path, body)
    error = await client.error()
    assert (client.status, error["type"]) == (400, "invalid_request_error")
    assert param is None or error["param"] == param
    assert not engines.begun


async def test_what_cannot_fit_into_the_context_is_refused_in_openais_words(
    stand: Stand, engines: Played
) -> None:
    client = Client(stand, CHAT, chat("a" * 4 * 60, max_tokens=41))
    error = await client.error()
    assert client.status == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "maximum context length is 100 tokens" in error["message"]
    assert "you requested 101 tokens (60 in the messages, 41 in the completion)" in error["message"]


LARGE = replace(SHAPE, context_tokens=100_000, cache_tokens=400_000)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": 20}, "logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 20, "max_tokens": 3121}, "logprobs"),
        (CHAT, {"n": 64, "max_tokens": 32_769}, "n"),
        (COMPLETIONS, {"logprobs": 20, "n": 100, "max_tokens": 40}, "logprobs"),
        (COMPLETIONS, {"prompt": [1] * 3200, "prompt_logprobs": 20}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": [1] * 800, "n": 4, "logprobs": 20, "echo": True,
                       "stream": True}, "prompt_logprobs"),
    ],
)  # fmt: skip
async def test_an_answer_that_may_be_too_large_is_refused_before_it_queues(
    stand: Stand, description: Describe, path: str, fields: dict[str, Any], param: str
) -> None:
    engines = add(stand, description, shape=LARGE)
    asked = chat() if path == CHAT else {"model": "chat", "prompt": "a"}
    client = Client(stand, path, asked | fields)
    error = await client.error()
    assert (client.status, error["param"]) == (400, param)
    assert "may come in one piece" in error["message"]
    assert not engines.begun


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True, "top_logprobs": 20, "max_tokens": 3120},
        {"logprobs": True, "top_logprobs": 20, "stream": True},
        {"n": 64, "max_tokens": 32_768},
        {"n": 128, "max_tokens": 32_769, "stream": True},
    ],
)
async def test_the_largest_answer_and_any_that_streams_reach_the_engine(
    stand: Stand, description: Describe, fields: dict[str, Any]
) -> None:
    engines = add(stand, description, shape=LARGE)
    client = Client(stand, CHAT, chat(**fields))
    engines.say(await begun(engines), b"data: {}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()
    assert client.status == 200


async def test_documents_count_at_the_tenants_rate_and_bound(
    stand: Stand, engines: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(Rates, "take_tokens", lambda self, tenant, tokens: counted.append(tokens))
    bounds: list[tuple[int, ...]] = []
    monkeypatch.setattr(generation, "check_tenant_bounds", lambda caller, n: bounds.append(n))
    for number, documents in enumerate((None, [{"text": "a b c d " * 20}]), 1):
        client = Client(stand, CHAT, chat(documents=documents))
        lease = await begun(engines, number)
        engines.say(lease, b"{}", tokens=(60, 0, 1), end=StreamEnd.DONE)
        await client.end()
    assert counted[1] - counted[0] == bounds[1][0] - bounds[0][0] == (160 + 14) // 4


async def test_what_just_fits_is_left_to_the_engine(stand: Stand, engines: Played) -> None:
    client = Client(stand, CHAT, chat("a" * 4 * 60, max_tokens=40))
    engines.say(await begun(engines), b"{}", tokens=(60, 0, 1), end=StreamEnd.DONE)
    await client.end()
    assert client.status == 200


async def test_tensors_are_not_inferred_by_a_model_that_generates(
    stand: Stand, engines: Played
) -> None:
    tensor = {"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [1]}
    body = json.dumps({"inputs": [tensor]}).encode()
    answer = await ask(stand.app, "POST", "/v2/models/chat/infer", body=body)
    assert answer.status == 400
    assert "/v1/chat/completions" in json.loads(answer.body)["error"]


async def test_texts_are_not_generated_by_a_model_of_tensors(stand: Stand) -> None:
    client = Client(stand, CHAT, {**chat(), "model": "device"})
    error = await client.error()
    assert (client.status, error["param"]) == (400, "model")
    assert "does not generate text" in error["message"]


async def test_an_unknown_model_is_openais_404(stand: Stand) -> None:
    client = Client(stand, CHAT, {**chat(), "model": "nobody:here"})
    assert (await client.error())["code"] == "model_not_found"
    assert client.status == 404


async def test_a_model_that_generates_is_listed(stand: Stand, engines: Played) -> None:
    answer = await ask(stand.app, "GET", "/v1/models")
    listed = {model["id"]: model for model in json.loads(answer.body)["data"]}
    assert listed["chat"]["max_model_len"] == 100
    assert "max_model_len" not in listed["device"]


async def test_each_model_that_is_listed_can_be_asked_for_by_its_id(
    stand: Stand, description: Callable[..., ModelDescription]
) -> None:
    add(stand, description, "tuned", shape=replace(SHAPE, adapters=("sql", "law")))
    answer = await ask(stand.app, "GET", "/v1/models")
    listed = {model["id"]: model for model in json.loads(answer.body)["data"]}
    assert {"tuned", "tuned:sql", "tuned:law", "device"} <= set(listed)
    for name, model in listed.items():
        found = await ask(stand.app, "GET", f"/v1/models/{name}")
        assert (found.status, json.loads(found.body)) == (200, model)
    for name in ("tuned:other", "device:sql", "nobody:sql"):
        refused = await ask(stand.app, "GET", f"/v1/models/{name}")
        assert refused.status == 404
        assert json.loads(refused.body)["error"]["code"] == "model_not_found"


async def test_adapters_that_operators_change_are_asked_for_at_once(
    stand: Stand, engines: Played
) -> None:
    served = stand.models.queued["chat"]
    announced = served.announced
    served.adapt({"new": "/new", "sql": None})
    assert served.announced is announced, "nothing was announced"
    answer = await ask(stand.app, "GET", "/v1/models")
    listed = {model["id"] for model in json.loads(answer.body)["data"]}
    assert {"chat:new", "chat:law"} <= listed
    assert "chat:sql" not in listed
    client = Client(stand, CHAT, chat() | {"model": "chat:sql"})
    assert (await client.error())["code"] == "model_not_found"
    client = Client(stand, CHAT, chat() | {"model": "chat:new"})
    engines.say(await begun(engines), b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()
    assert client.status == 200
    served.adapt({})
    assert served.description == announced


async def test_a_stream_whose_replica_dies_ends_with_an_error_event(
    stand: Stand, engines: Played
) -> None:
    client = Client(stand, CHAT, streamed())
    engines.say(await begun(engines), b"data: half\n\n", tokens=(1, 0, 1))
    await client.hears(1)
    engines.kill(engines.begun[0][0])
    last = (await client.end()).removeprefix(b"data: half\n\n")
    assert last.startswith(b"data: {")
    assert last.endswith(b"\n\n")
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "replica_lost")
    assert error["usage"] == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    assert client.over


async def test_a_stream_whose_replica_dies_before_its_first_piece_is_not_noticed(
    stand: Stand, engines: Played
) -> None:
    client = Client(stand, CHAT, streamed())
    await begun(engines)
    engines.kill(engines.begun[0][0])
    engines.say(await begun(engines, 2), DONE, tokens=(1, 0, 1), end=StreamEnd.DONE)
    assert await client.end() == DONE
    assert client.status == 200


async def test_a_request_that_expires_before_its_first_piece_is_a_504(
    stand: Stand, engines: Played
) -> None:
    client = Client(stand, CHAT, streamed(), [(b"x-timeout-ms", b"20")])
    assert (await client.error())["code"] == "deadline_exceeded"
    assert client.status == 504
    await until(lambda: not engines.running)


async def test_a_request_that_expires_while_it_streams_ends_with_an_error_event(
    stand: Stand, engines: Played
) -> None:
    client = Client(stand, CHAT, streamed(), [(b"x-timeout-ms", b"50")])
    engines.say(await begun(engines), b"data: half\n\n", tokens=(1, 0, 1))
    body = await client.end()
    assert client.status == 200
    assert b"deadline_exceeded" in body
    assert b"[DONE]" not in body


@pytest.mark.usefixtures("looked_at_once")
@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_client_that_leaves_has_its_run_aborted(
    stand: Stand, engines: Played, pieces: int
) -> None:
    client = Client(stand, CHAT, streamed())
    lease = await begun(engines)
    if pieces:
        engines.say(lease, b"data: half\n\n", tokens=(1, 0, 1))
        await client.hears(1)
    client.leave.set()
    await client.end()
    await engines.until_aborted(1)
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    assert any("requests_total{" in line and 'outcome="cancelled"' in line for line in lines)


async def test_a_handler_that_is_cancelled_has_its_run_aborted(
    stand: Stand, engines: Played
) -> None:
    client = Client(stand, CHAT, streamed())
    engines.say(await begun(engines), b"data: half\n\n", tokens=(1, 0, 1))
    await client.hears(1)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    await engines.until_aborted(1)


async def test_a_client_that_reads_nothing_is_given_up(
    stand: Stand, engines: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.generation.STALL_S", 0.01)
    client = Client(stand, CHAT, streamed())
    client.reads.clear()
    engines.say(await begun(engines), b"data: half\n\n", tokens=(1, 0, 1))
    await client.end()
    await engines.until_aborted(1)
    assert (client.heard, client.over) == ([], False)
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    assert any("requests_total{" in line and 'outcome="too_slow"' in line for line in lines)


async def test_a_tenants_rate_counts_prompts_at_once_and_output_as_it_comes(
    stand: Stand, engines: Played
) -> None:
    slow = [(b"x-tenant", b"slow")]
    client = Client(stand, CHAT, streamed("a"), slow)
    lease = await begun(engines)
    engines.say(lease, b"data: x\n\n", tokens=(1, 0, 50))
    await client.hears(1)
    refused = Client(stand, CHAT, streamed("a"), slow)
    error = await refused.error()
    assert (refused.status, error["code"]) == (429, "rate_limit_exceeded")
    engines.say(lease, DONE, tokens=(1, 0, 51), end=StreamEnd.DONE)
    await client.end()


@pytest.mark.parametrize(("counted", "status"), [(1, 200), (10, 429)])
async def test_a_tenants_rate_counts_the_prompts_tokens_that_the_engine_found(
    stand: Stand, engines: Played, counted: int, status: int
) -> None:
    """Eight as the gateway counts them, of ten that may come at once."""
    slow, asked = [(b"x-tenant", b"slow")], {"model": "chat", "prompt": "a" * 32}
    client = Client(stand, COMPLETIONS, asked, slow)
    engines.say(await begun(engines), b"{}", tokens=(counted, 0, 1), end=StreamEnd.DONE)
    await client.end()
    again = Client(stand, COMPLETIONS, asked, slow)
    if status == 200:
        engines.say(await begun(engines, 2), b"{}", tokens=(8, 0, 1), end=StreamEnd.DONE)
    await again.end()
    assert again.status == status


async def test_a_cheaper_model_takes_what_the_asked_one_refuses(
    stand: Stand, description: Describe
) -> None:
    one = replace(SHAPE, max_sequences=1)
    full = add(stand, description, shape=one, fallback="small", queue={"max_rows": 1})
    small = add(stand, description, "small")
    held = [Client(stand, CHAT, chat("a" * 360))]
    await begun(full)
    held.append(Client(stand, CHAT, chat("a" * 360)))
    await stand.waiting("chat", 1)
    late = Client(stand, CHAT, chat("a" * 360))
    asked = await small.until_begun(1)
    assert json.loads(asked.call.body)["model"] == "small"
    small.say(asked.lease_id, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await late.end()
    assert late.headers[b"x-served-by"] == b"small"
    adapted = Client(stand, CHAT, {**chat("a" * 360), "model": "chat:sql"})
    assert (await adapted.error())["code"] == "overloaded"
    for count, client in enumerate(held, 1):
        full.say(await begun(full, count), b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
        await client.end()


async def test_several_prompts_and_sequences_are_one_row_of_all_their_tokens(
    stand: Stand, engines: Played
) -> None:
    body = {"model": "chat", "prompt": ["aaaa" * 5, "aaaa" * 6], "n": 2, "max_tokens": 3}
    client = Client(stand, COMPLETIONS, body)
    lease = await begun(engines)
    (pending,) = stand.models.served["chat"].queue._pending.values()
    assert pending.request.lengths == (11,)
    assert pending.request.generation is not None
    assert (pending.request.generation.sequences, pending.request.generation.max_tokens) == (4, 12)
    engines.say(lease, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()


def words() -> TextTokenizer:
    """One that takes each word for a token."""
    made = Tokenizer(WordLevel({"?": 0, "a": 1, "b": 2}, unk_token="?"))
    made.pre_tokenizer = WhitespaceSplit()
    return TextTokenizer(made.to_str().encode(), 100, False, 1 << 16)


async def test_prompts_are_measured_by_the_models_own_tokeniser(
    stand: Stand, description: Describe
) -> None:
    engines = add(stand, description, tokenizer=words())
    client = Client(stand, COMPLETIONS, {"model": "chat", "prompt": ["a b " * 4, "", "b"]})
    lease = await begun(engines)
    (pending,) = stand.models.served["chat"].queue._pending.values()
    assert pending.request.lengths == (9,)
    assert pending.request.generation is not None
    assert len(pending.request.generation.blocks) == 2
    engines.say(lease, b"{}", tokens=(9, 0, 1), end=StreamEnd.DONE)
    await client.end()


@pytest.mark.parametrize("count", [101, 5000])
async def test_a_text_that_is_too_long_is_refused_in_openais_words(
    stand: Stand, description: Describe, count: int
) -> None:
    add(stand, description, tokenizer=words())
    error = await Client(stand, CHAT, chat("a " * count)).error()
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "maximum context length is 100 tokens" in error["message"]


async def test_a_text_that_no_tokeniser_looks_at_is_refused_by_the_parameters_name(
    stand: Stand, description: Describe
) -> None:
    add(stand, description, tokenizer=words())
    body = {"model": "chat", "prompt": ["", "a" * (1 << 20) + "a"]}
    error = await Client(stand, COMPLETIONS, body).error()
    assert error["param"] == "prompt"
    assert error["message"].startswith("prompt[1] has 1048577 characters")


async def test_whether_nothing_is_a_prompt_is_for_the_engine_to_say(
    stand: Stand, description: Describe
) -> None:
    engines = add(stand, description, tokenizer=words())
    client = Client(stand, CHAT, chat("  "))
    engines.say(await begun(engines), b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()
    assert client.status == 200


async def test_a_users_requests_are_one_session(stand: Stand, engines: Played) -> None:
    client = Client(stand, CHAT, chat(user="ann"))
    lease = await begun(engines)
    (pending,) = stand.models.served["chat"].queue._pending.values()
    assert pending.request.session == "default/ann"
    engines.say(lease, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)
    await client.end()


async def test_an_answer_that_flows_ends_with_its_key(
    tmp_path: Path, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "CHECKS_KEY_S", 0.0)
    tenants = {"acme": {"keys": [{"id": "k", "hash": hash_key("hr_k")}]}}
    async with standing({"device": SYNTHETIC}, tmp_path, tenants=tenants) as stand:
        engines = add(stand, description)
        client = Client(stand, CHAT, streamed(), [(b"authorization", b"Bearer hr_k")])
        lease = await begun(engines)
        engines.say(lease, b"data: one\n\n", tokens=(10, 0, 1))
        await client.hears(1)
        stand.tenants.operators(revoked=[hash_key("hr_k")])
        engines.say(lease, b"data: two\n\n", tokens=(10, 0, 2))
        said = await client.end()
        assert said.startswith(b"data: one\n\ndata: two\n\n")
        assert b"the API key has ended meanwhile" in said
        assert DONE not in said
        await engines.until_aborted(1)
