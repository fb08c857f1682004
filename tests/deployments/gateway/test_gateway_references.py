"""Inputs by URL through the whole gateway: tensors, images, documents, and the media of chats."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engines import until
from generating import CHAT, Client, add
from image_models import jpeg, picture, write_model
from in_process import Answer, Stand, ask, standing
from object_server import HOST, ObjectServer, answer, serving

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import embeddings, rerank
from deployments.gateway.http.protocols.tensors import ExternalInput, Fetched
from deployments.gateway.inputs.external import MAX_URLS

SYNTHETIC = {"runtime": "synthetic", "version": "1", "options": {"base_ms": 0}}
MODELS = {"device": SYNTHETIC, "kept": {**SYNTHETIC, "cache": {"max_bytes": 1_000_000}}}
IDS = np.array([[1, 2, 3], [4, 5, 6]], np.int64)
LIMITS = {"max_body_bytes": 100_000, "max_held_bytes": 200_000}
Describe = Callable[..., ModelDescription]


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectServer]:
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)
    async with serving(tmp_path, monkeypatch) as server:
        server.objects["/ids"] = answer(IDS.tobytes())
        yield server
        await until(lambda: server.open == 0)


@pytest.fixture
async def stand(tmp_path: Path, server: ObjectServer) -> AsyncIterator[Stand]:
    gateway = {"references": server.settings(max_bytes=50_000), "limits": LIMITS}
    async with standing(MODELS, tmp_path, gateway=gateway) as stand:
        yield stand
        assert stand.app._services.limits.room.held_bytes == 0


def tensor(url: str, **changes: Any) -> dict[str, Any]:
    whole = {"name": "ids", "datatype": "INT64", "shape": [2, 3], "parameters": {"url": url}}
    return {"inputs": [{**whole, **changes}], "outputs": [{"name": "sum"}]}


async def infer(
    stand: Stand, request: Any, model: str = "device", headers: Any = (), **more: Any
) -> Answer:
    path = f"/v2/models/{model}/infer"
    return await ask(stand.app, "POST", path, headers, json.dumps(request).encode(), **more)


def refused(answer: Answer, status: int = 400) -> str:
    assert answer.status == status, answer.body
    said: str = json.loads(answer.body)["error"]
    return said


async def test_a_tensor_is_the_bytes_that_its_url_gives(stand: Stand, server: ObjectServer) -> None:
    answer = await infer(stand, tensor(server.url("/ids")))
    assert answer.status == 200, answer.body
    assert json.loads(answer.body)["outputs"][0]["data"] == [6, 15]


async def test_a_tensor_may_be_a_data_url(stand: Stand, server: ObjectServer) -> None:
    url = "data:;base64," + base64.b64encode(IDS.tobytes()).decode()
    answer = await infer(stand, tensor(url))
    assert json.loads(answer.body)["outputs"][0]["data"] == [6, 15]
    assert server.heads == []


async def test_what_is_kept_is_by_what_was_fetched_and_not_by_its_url(
    stand: Stand, server: ObjectServer
) -> None:
    request = tensor(server.url("/ids"))
    assert (await infer(stand, request, "kept")).header(b"x-cache") == b"miss"
    assert (await infer(stand, request, "kept")).header(b"x-cache") == b"hit"
    server.objects["/ids"] = answer((IDS + 1).tobytes())
    assert (await infer(stand, request, "kept")).header(b"x-cache") == b"miss"
    assert len(server.heads) == 3


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (answer(IDS.tobytes()[:-1]), "takes 48 bytes, the size of what the URL gave is 47"),
        (answer(IDS.tobytes() + b"x"), "takes 48 bytes, the size of what the URL gave is 49"),
        (answer(b"<html>"), "takes 48 bytes, the size of what the URL gave is 6"),
        (answer(b"", status="404 Not Found"), "answered 404, not 200"),
        (answer(b"", "location: https://169.254.169.254/", status="302 F"), "not followed"),
    ],
)
async def test_what_is_no_such_tensor_is_told_with_its_name(
    stand: Stand, server: ObjectServer, reply: bytes, says: str
) -> None:
    server.objects["/ids"] = reply
    said = refused(await infer(stand, tensor(server.url("/ids?sig=s3cr3t"))))
    assert said.startswith("Tensor 'ids'")
    assert says in said
    assert "s3cr3t" not in said


async def test_an_object_over_the_bound_is_too_large(stand: Stand, server: ObjectServer) -> None:
    server.objects["/ids"] = answer(bytes(50_001))
    said = refused(await infer(stand, tensor(server.url("/ids"))), 413)
    assert "gateway.references.max_bytes (50000)" in said


async def test_all_urls_of_a_request_together_are_as_large_as_a_body_at_most(
    stand: Stand, server: ObjectServer
) -> None:
    server.objects["/big"] = answer(bytes(40_000))
    one = tensor(server.url("/big"), shape=[1, 5000])["inputs"][0]
    request = {"inputs": [{**one, "name": name} for name in ("ids", "b", "c")]}
    said = refused(await infer(stand, request), 413)
    assert "larger together than 100000 bytes" in said


async def test_a_request_has_so_many_urls_at_most(stand: Stand, server: ObjectServer) -> None:
    one = tensor(server.url("/ids"))["inputs"][0]
    request = {"inputs": [{**one, "name": str(at)} for at in range(MAX_URLS + 1)]}
    assert f"it may have {MAX_URLS}" in refused(await infer(stand, request))
    assert server.heads == []


async def test_memory_is_asked_for_as_it_comes(stand: Stand, server: ObjectServer) -> None:
    room = stand.app._services.limits.room
    server.objects["/ids"] = answer(bytes(40_000))
    room.keep(("other", 1.0), 399_000)
    said = refused(await infer(stand, tensor(server.url("/ids"), shape=[1, 5000])), 503)
    assert "max_held_bytes" in said
    room.give(("other", 1.0), 399_000)


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 48\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_a_slow_server_takes_no_more_than_the_requests_own_time(
    stand: Stand, server: ObjectServer
) -> None:
    server.objects["/ids"] = drip
    request, headers = tensor(server.url("/ids")), [(b"x-timeout-ms", b"150")]
    async with asyncio.timeout(5.0):
        said = refused(await infer(stand, request, headers=headers), 504)
    assert "while its URLs were fetched" in said


async def test_a_caller_that_leaves_ends_the_fetch(stand: Stand, server: ObjectServer) -> None:
    server.objects["/ids"] = drip
    leave = asyncio.Event()
    asked = asyncio.create_task(infer(stand, tensor(server.url("/ids")), leave=leave))
    await until(lambda: server.open == 1)
    leave.set()
    assert (await asyncio.wait_for(asked, 5.0)).status == 0
    await until(lambda: server.open == 0)


async def test_the_first_that_fails_ends_the_others(stand: Stand, server: ObjectServer) -> None:
    server.objects["/ids"] = drip
    one = tensor(server.url("/ids"))["inputs"][0]
    gone = {**one, "name": "gone", "parameters": {"url": server.url("/gone")}}
    async with asyncio.timeout(5.0):
        said = refused(await infer(stand, {"inputs": [one, gone]}))
    assert said == f"Tensor 'gone': {HOST}:{server.port} answered 404, not 200"


async def test_without_the_setting_a_url_is_refused_by_name(tmp_path: Path) -> None:
    async with standing(MODELS, tmp_path) as stand:
        said = refused(await infer(stand, tensor(f"https://{HOST}/ids")))
        assert said == (
            "Tensor 'ids': inputs by URL are off (gateway.references); send the data in the body."
        )


# ---- images ------------------------------------------------------------------------------------


@pytest.fixture
async def tiny(tmp_path: Path, server: ObjectServer) -> AsyncIterator[Stand]:
    model = {
        "runtime": "onnxruntime", "source": str(write_model(tmp_path / "tiny")),
        "task": "classify", "slo": {"latency_ms": 20_000},
        "image": {"size": [16], "mean": [0.4, 0.5, 0.6], "std": 0.25},
    }  # fmt: skip
    gateway = {"references": server.settings()}
    async with standing({"tiny": model}, tmp_path, gateway=gateway) as stand:
        yield stand


async def test_an_image_by_url_is_answered_as_one_in_the_body(
    tiny: Stand, server: ObjectServer
) -> None:
    file = jpeg(picture(20, 30))
    server.objects["/a.jpg"] = answer(file, "content-type: image/jpeg")
    here = {"b64": base64.b64encode(file).decode()}
    body = {"instances": [here, {"url": server.url("/a.jpg")}]}
    path = "/v1/models/tiny:classify"
    found = json.loads((await ask(tiny.app, "POST", path, (), json.dumps(body).encode())).body)
    assert found["predictions"][0] == found["predictions"][1]
    parameters = {"url": server.url("/a.jpg")}
    name = tiny.models.served["tiny"].description.image.input  # type: ignore[union-attr]
    image = {"name": name, "datatype": "BYTES", "shape": [1], "parameters": parameters}
    answered = await infer(tiny, {"inputs": [image]}, "tiny")
    assert answered.status == 200, answered.body


async def test_what_is_no_image_is_told(tiny: Stand, server: ObjectServer) -> None:
    server.objects["/a.jpg"] = answer(b"<html>")
    body = json.dumps({"instances": [{"url": server.url("/a.jpg")}]}).encode()
    found = await ask(tiny.app, "POST", "/v1/models/tiny:classify", (), body)
    assert "is not a JPEG or PNG image" in refused(found)


def test_an_image_to_embed_may_be_a_url() -> None:
    body = {"model": "m", "input": [{"image": "AAEC"}, {"image": "https://a.test/b"}]}
    call = embeddings.decode(json.dumps(body).encode())
    (one,) = call.external
    assert isinstance(one, ExternalInput)
    assert (one.label, one.at) == ("input[1].image", "https://a.test/b")
    one.take(Fetched(memoryview(b"file")))
    assert call.images == [b"\0\1\2", b"file"]


# ---- documents ---------------------------------------------------------------------------------


def documents(*given: Any) -> rerank.PairsCall:
    body = {"model": "m", "query": "q", "documents": list(given)}
    return rerank.decode(json.dumps(body).encode(), returns=False)


def test_a_document_to_rerank_may_be_a_url() -> None:
    call = documents("here", {"url": "https://a.test/b"}, {"text": "too"})
    (one,) = call.external
    assert isinstance(one, ExternalInput)
    assert one.label == "documents[1].url"
    one.take(Fetched(memoryview("größer".encode())))
    assert call.documents == ["here", "größer", "too"]
    with pytest.raises(BadRequest, match=r"documents\[1\].url holds no UTF-8 text"):
        one.take(Fetched(memoryview(b"\xff")))


@pytest.mark.parametrize("given", [{}, {"text": "a", "url": "https://a.test/b"}])
def test_a_document_is_a_text_or_a_url(given: Any) -> None:
    with pytest.raises(BadRequest, match=r"documents\[0\] must have a text or a url"):
        documents(given)


# ---- chats -------------------------------------------------------------------------------------


def asked(*parts: Any, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "what is it?"}, *parts]
    return {"model": "chat", "messages": [{"role": "user", "content": content}], **more}


async def test_the_engine_gets_the_image_and_not_its_url(
    stand: Stand, server: ObjectServer, description: Describe
) -> None:
    engines = add(stand, description)
    server.objects["/a.png"] = answer(b"\x89PNG", "content-type: image/png")
    url, inline = server.url("/a.png?sig=s3cr3t"), "data:image/png;base64,AAEC"
    parts = [
        {"type": "image_url", "image_url": {"detail": "low", "url": url}, "uuid": "u"},
        {"type": "image_url", "image_url": {"url": inline}},
        {"type": "video_url", "video_url": url},
        {"type": "image_url", "image_url": None, "uuid": "v"},
    ]
    client = Client(stand, CHAT, asked(*parts, temperature=0.5, seed=3))
    lease = (await engines.until_begun(1)).lease_id
    body = json.loads(engines.begun[0].call.body)
    fetched = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    wanted = [
        {**parts[0], "image_url": {"detail": "low", "url": fetched}},
        parts[1],
        {**parts[2], "video_url": fetched},
        parts[3],
    ]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "what is it?"}, *wanted]}
    ]
    assert (body["temperature"], body["seed"], body["model"]) == (0.5, 3, "chat")
    assert b"s3cr3t" not in engines.begun[0].call.body
    engines.say(lease, b'{"choices": []}', tokens=(10, 0, 1), end=StreamEnd.DONE)
    await client.end()
    assert client.status == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/messages/count_tokens"])
async def test_images_of_other_apis_are_fetched_as_well(
    stand: Stand, server: ObjectServer, description: Describe, path: str
) -> None:
    engines = add(stand, description)
    server.objects["/a.png"] = answer(b"\x89PNG", "content-type: image/png")
    url = server.url("/a.png?sig=s3cr3t")
    fetched = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()

    def of(at: str) -> dict[str, Any]:
        if path == "/v1/responses":
            part = {"type": "input_image", "image_url": at, "detail": "low"}
            return {"input": [{"role": "user", "content": [part]}], "store": False}
        part = {"type": "image", "source": {"type": "url", "url": at}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": [part]}
        more = {} if path.endswith("count_tokens") else {"max_tokens": 4}
        return {"messages": [{"role": "user", "content": [part, result]}], **more}

    client = Client(stand, path, {"model": "chat", **of(url)})
    lease = (await engines.until_begun(1)).lease_id
    assert json.loads(engines.begun[0].call.body) == {"model": "chat", **of(fetched)}
    engines.say(lease, b"{}", tokens=(10, 0, 1), end=StreamEnd.DONE)
    await client.end()
    assert client.status == 200


async def test_a_chat_with_its_media_in_the_body_reaches_the_engine_byte_for_byte(
    stand: Stand, description: Describe
) -> None:
    engines = add(stand, description)
    part = '{"type":"image_url" , "image_url":{"url":"data:image/png;base64,AAEC"}}'
    content = f'[{{"type": "text","text":"a"}}, {part}]'
    body = f'{{"model":"chat","messages":[{{"role":"user","content":{content}}}],"max_tokens":4}}'
    client = Client(stand, CHAT, body.encode())
    lease = (await engines.until_begun(1)).lease_id
    assert engines.begun[0].call.body == body.encode()
    engines.say(lease, b"{}", tokens=(10, 0, 1), end=StreamEnd.DONE)
    await client.end()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://objects.test/a.png", "must be https"),
        ("file:///etc/passwd", "file: is not fetched"),
        (" https://objects.test/a.png", "its URL must be"),
        ("https://169.254.169.254/latest", "not one of gateway.references.hosts"),
    ],
)
async def test_media_that_may_not_be_fetched_never_reach_the_engine(
    stand: Stand, description: Describe, url: str, says: str
) -> None:
    engines = add(stand, description)
    client = Client(stand, CHAT, asked({"type": "image_url", "image_url": {"url": url}}))
    error = await client.error()
    assert (client.status, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith("messages[0].content[1].image_url: ")
    assert says in error["message"]
    assert engines.begun == []


async def test_media_that_look_different_are_different_requests(
    stand: Stand, server: ObjectServer, description: Describe
) -> None:
    """What an engine may share by fingerprint is what was fetched."""
    engines = add(stand, description)
    url = server.url("/a.png")
    for content in (b"one", b"two"):
        server.objects["/a.png"] = answer(content)
        client = Client(stand, CHAT, asked({"type": "image_url", "image_url": {"url": url}}))
        lease = (await engines.until_begun(len(engines.begun) + 1)).lease_id
        engines.say(lease, b"{}", tokens=(10, 0, 1), end=StreamEnd.DONE)
        await client.end()
    one, two = (json.loads(each.call.body)["messages"] for each in engines.begun)
    assert one != two
