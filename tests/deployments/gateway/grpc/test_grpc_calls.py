"""What a gRPC client sees: grpcio and others' generated messages, through HAProxy, unpatched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from generating import Played, add
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_stand import KEY, GrpcStand, grpc_standing

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.grpc import frames, messages

INFER = f"/{messages.INFERENCE}/ModelInfer"
STREAM = f"/{messages.INFERENCE}/ModelStreamInfer"
PATIENT = (("x-timeout-ms", "20000"),)
Describe = Callable[..., ModelDescription]


def request(model: str = "device", length: int = 4, **more: Any) -> Any:
    made = messages.ModelInferRequest(model_name=model, **more)
    entry = made.inputs.add(name="ids", datatype="INT64", shape=[1, length])
    entry.contents.int64_contents.extend(range(1, length + 1))
    return made


def infer(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        INFER,
        request_serializer=messages.ModelInferRequest.SerializeToString,
        response_deserializer=messages.ModelInferResponse.FromString,
    )


def stream(channel: grpc.aio.Channel, metadata: Any = None) -> Any:
    return channel.stream_stream(
        STREAM,
        request_serializer=messages.ModelInferRequest.SerializeToString,
        response_deserializer=messages.ModelStreamInferResponse.FromString,
    )(metadata=metadata)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call
    return refusal.value


async def test_typed_contents_are_answered_typed_and_raw_ones_raw(
    channel: grpc.aio.Channel,
) -> None:
    typed = await infer(channel)(request(id="a"))
    assert (typed.id, typed.outputs[0].contents.fp32_contents[0]) == ("a", 10.0)
    assert not typed.raw_output_contents
    raw = request()
    raw.inputs[0].ClearField("contents")
    raw.raw_input_contents.append(b"".join(n.to_bytes(8, "little") for n in (1, 2, 3, 4)))
    assert (await infer(channel)(raw)).raw_output_contents == [b"\x00\x00\x20\x41"]


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_read(channel: grpc.aio.Channel, how: Any) -> None:
    answer = await infer(channel)(request(length=400), compression=how)
    assert answer.outputs[0].contents.fp32_contents[0] == 400 * 401 / 2


async def test_a_refusal_has_a_status_a_message_and_when_to_come_again(
    channel: grpc.aio.Channel,
) -> None:
    error = await refused(infer(channel)(request("nobody")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "unknown model 'nobody'" in (error.details() or "")
    assert ("grpc-retry-pushback-ms", "-1") in tuple(error.trailing_metadata())


async def test_a_wrong_shape_is_an_invalid_argument(channel: grpc.aio.Channel) -> None:
    wrong = request()
    wrong.inputs[0].shape[:] = [1, 5]
    error = await refused(infer(channel)(wrong))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_version_is_not_found(channel: grpc.aio.Channel) -> None:
    error = await refused(infer(channel)(request(model_version="99")))
    assert error.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "method", ["RepositoryModelLoad", "TraceSetting", "CudaSharedMemoryStatus"]
)
async def test_what_is_not_offered_is_unimplemented(channel: grpc.aio.Channel, method: str) -> None:
    error = await refused(channel.unary_unary(f"/{messages.INFERENCE}/{method}")(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_bytes_that_are_no_message_are_refused(channel: grpc.aio.Channel) -> None:
    error = await refused(channel.unary_unary(INFER)(b"\xff" * 40))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_the_bound_is_refused(tmp_path: Path) -> None:
    model = {"runtime": "synthetic", "options": {"base_ms": 0}}
    gateway = {"grpc": {"max_message_bytes": 2048}}
    async with (
        grpc_standing({"device": model}, tmp_path, gateway=gateway) as served,
        grpc.aio.insecure_channel(served.target) as channel,
    ):
        error = await refused(channel.unary_unary(INFER)(bytes(2049)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "gateway.grpc.max_message_bytes" in (error.details() or "")


async def test_a_deadline_withdraws_the_request_from_its_queue(served: GrpcStand) -> None:
    served.stand.channels["device"].hold()
    async with grpc.aio.insecure_channel(served.target) as channel:
        began = time.perf_counter()
        error = await refused(infer(channel)(request(), timeout=0.3))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.perf_counter() - began < 2.0
        await nothing_is_under_way(served)


async def test_cancelling_withdraws_the_request(served: GrpcStand) -> None:
    served.stand.channels["device"].hold()
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = infer(channel)(request(), metadata=PATIENT)
        await until(lambda: served.stand.app.under_way == 1)
        call.cancel()
        await nothing_is_under_way(served)


async def nothing_is_under_way(served: GrpcStand) -> None:
    await until(lambda: served.stand.app.under_way == 0)
    served.stand.channels["device"].let_go()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.005)


async def test_keys_are_needed_where_they_are(closed: GrpcStand) -> None:
    async with grpc.aio.insecure_channel(closed.target) as channel:
        error = await refused(infer(channel)(request()))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        answer = await infer(channel)(
            request(), metadata=(("authorization", f"Bearer {KEY}"), ("x-request-id", "mine"))
        )
        assert len(answer.outputs) == 1
        error = await refused(health_pb2_grpc.HealthStub(channel).Check(asked("device")))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await health_pb2_grpc.HealthStub(channel).Check(asked(""))).status == 1


async def test_answers_carry_the_request_id_and_the_trace(channel: grpc.aio.Channel) -> None:
    call = infer(channel)(request(), metadata=(("x-request-id", "mine"),))
    await call
    head = dict(await call.initial_metadata())
    assert head["x-request-id"] == "mine"
    assert "traceparent" in head


# ---- streams ------------------------------------------------------------------------------------


async def test_each_message_of_a_stream_is_answered(channel: grpc.aio.Channel) -> None:
    call = stream(channel)
    for number in range(200):
        await call.write(request(id=str(number), length=1 + number % 7))
    await call.done_writing()
    answers = [answer async for answer in call]
    assert {answer.infer_response.id for answer in answers} == {str(n) for n in range(200)}
    assert all(
        answer.infer_response.parameters["triton_final_response"].bool_param for answer in answers
    )


async def test_a_refused_message_leaves_the_stream_open(channel: grpc.aio.Channel) -> None:
    call = stream(channel)
    await call.write(request("nobody", id="bad"))
    refusal = await call.read()
    assert "unknown model" in refusal.error_message
    assert refusal.infer_response.id == "bad"
    await call.write(request(id="good"))
    assert (await call.read()).infer_response.id == "good"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_leaving_a_stream_withdraws_what_it_asked(served: GrpcStand) -> None:
    served.stand.channels["device"].hold()
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = stream(channel, PATIENT)
        for number in range(3):
            await call.write(request(id=str(number)))
        await until(lambda: served.stand.app.under_way == 4)  # with the stream itself
        call.cancel()
        await nothing_is_under_way(served)


async def test_no_more_than_its_share_of_a_stream_is_under_way(served: GrpcStand) -> None:
    served.stand.channels["device"].hold()
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = stream(channel, PATIENT)
        for number in range(100):
            await call.write(request(id=str(number)))
        await until(lambda: served.stand.app.under_way == 65)
        await asyncio.sleep(0.05)
        assert served.stand.app.under_way == 65
        call.cancel()
        await nothing_is_under_way(served)


async def test_a_stream_has_a_bound_of_what_waits(
    served: GrpcStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.grpc.stream.MAX_WAITING", 3)
    served.stand.channels["device"].hold()
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = stream(channel, PATIENT)
        for number in range(4):
            await call.write(request(id=str(number)))
        refusal = await call.read()
        assert "3 messages of this stream are not answered" in refusal.error_message
        assert refusal.infer_response.id == "3"
        served.stand.channels["device"].let_go()
        answers = [(await call.read()).infer_response.id for _ in range(3)]
        assert set(answers) == {"0", "1", "2"}
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_message_that_is_no_request_is_answered_in_the_stream(
    channel: grpc.aio.Channel,
) -> None:
    call = channel.stream_stream(
        STREAM, response_deserializer=messages.ModelStreamInferResponse.FromString
    )()
    await call.write(b"\xff\xff")
    assert "no inference.ModelInferRequest" in (await call.read()).error_message
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_wrong_frame_ends_a_stream_behind_what_was_accepted(served: GrpcStand) -> None:
    held = served.stand.channels["device"]
    held.hold()
    good = request(id="a").SerializeToString()
    body = frames.prefix(len(good)) + good + b"\x07\0\0\0\0"
    async with httpx.AsyncClient() as client:
        asked = client.post(
            f"http://127.0.0.1:{served.http_port}{STREAM}",
            content=body,
            headers={"content-type": "application/grpc", "x-timeout-ms": "20000"},
        )
        answering = asyncio.ensure_future(asked)
        await until(lambda: served.stand.app.under_way == 2)
        held.let_go()
        answer = await answering
    found = messages.ModelStreamInferResponse.FromString(answer.content[5:])
    assert found.infer_response.id == "a"
    await nothing_is_under_way(served)


async def test_who_has_left_has_nothing_more_run(served: GrpcStand) -> None:
    held = served.stand.channels["device"]
    held.hold()
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = stream(channel, PATIENT)
        for number in range(300):
            await call.write(request(id=str(number)))
        await until(lambda: served.stand.app.under_way == 65)
        sent = len(held.calls)
        call.cancel()
        await nothing_is_under_way(served)
        assert len(held.calls) - sent <= 3  # batches, of what was under way


async def test_a_stream_that_is_whole_ends_well_while_the_server_drains(served: GrpcStand) -> None:
    held = served.stand.channels["device"]
    held.hold()
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = stream(channel, PATIENT)
        await call.write(request(id="a"))
        await call.done_writing()
        await until(lambda: served.stand.app.under_way == 2)
        served.stand.models.draining = True
        held.let_go()
        assert (await call.read()).infer_response.id == "a"
        assert await call.read() is grpc.aio.EOF


async def test_a_draining_server_ends_its_streams(
    served: GrpcStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.grpc.stream._DRAIN_LOOK_S", 0.02)
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = stream(channel)
        await call.write(request(id="a"))
        assert (await call.read()).infer_response.id == "a"
        served.stand.models.draining = True
        error = await refused(call.read())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert ("grpc-retry-pushback-ms", "2000") in tuple(error.trailing_metadata())


# ---- health and reflection ----------------------------------------------------------------------


def asked(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


async def test_health_is_the_servers_and_each_models(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", messages.INFERENCE, "device"):
        assert (await stub.Check(asked(service))).status == 1
    assert (await refused(stub.Check(asked("nobody")))).code() is grpc.StatusCode.NOT_FOUND


async def test_the_servers_health_is_watched_without_a_key(closed: GrpcStand) -> None:
    async with grpc.aio.insecure_channel(closed.target) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(asked(""))
        assert (await call.read()).status == 1
        call.cancel()
        error = await refused(health_pb2_grpc.HealthStub(channel).Watch(asked("device")).read())
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("name", ["stats", "a/b", ""])
async def test_a_model_of_any_name_may_be_asked_for(channel: grpc.aio.Channel, name: str) -> None:
    asked = messages.message("inference.ModelMetadataRequest")(name=name)
    call = channel.unary_unary(f"/{messages.INFERENCE}/ModelMetadata")
    error = await refused(call(asked.SerializeToString()))
    assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_health_is_watched(served: GrpcStand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.gateway.grpc.calls._LOOK_S", 0.01)
    async with grpc.aio.insecure_channel(served.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        unknown = stub.Watch(asked("nobody"))
        assert (await unknown.read()).status == 3
        unknown.cancel()
        call = stub.Watch(asked("device"))
        assert (await call.read()).status == 1
        call.cancel()
        await nothing_is_under_way(served)


def test_services_are_reflected(reflected: str) -> None:
    with grpc.insecure_channel(reflected) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) == set(messages.SERVICES)
        file = database.FindFileContainingSymbol("inference.ModelInferRequest")
        assert file.package == "inference"


@pytest.fixture
def reflected(tmp_path: Path) -> Any:
    """A server on a thread of its own: this client blocks."""
    import threading

    started, ended, target = threading.Event(), asyncio.Event(), []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        model = {"runtime": "synthetic", "options": {"base_ms": 0}}
        async with grpc_standing({"device": model}, tmp_path) as served:
            target.append(served.target)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(20)
    yield target[0]
    loops[0].call_soon_threadsafe(ended.set)
    thread.join()


# ---- models that generate -----------------------------------------------------------------------


@pytest.fixture
async def engines(served: GrpcStand, description: Describe) -> Played:
    return add(served.stand, description, replicas=1)


def prompt(*, streams: bool, **more: Any) -> Any:
    made = messages.ModelInferRequest(model_name="chat", id="p", **more)
    text = made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(b"tell me")
    flag = made.inputs.add(name="stream", datatype="BOOL", shape=[1])
    flag.contents.bool_contents.append(streams)
    return made


def piece(text: str, reason: str = "null") -> bytes:
    choice = f'{{"index": 0, "text": "{text}", "finish_reason": {reason}}}'
    return f'data: {{"choices": [{choice}]}}\n\n'.encode()


def texts(response: Any) -> list[bytes]:
    (raw,) = response.raw_output_contents
    return [raw[4:]]


async def test_a_stream_gets_the_pieces_of_a_text(
    channel: grpc.aio.Channel, engines: Played
) -> None:
    call = stream(channel)
    made = prompt(streams=True)
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    sampling = made.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    sampling.contents.bytes_contents.append(b'{"max_tokens": 5}')
    await call.write(made)
    begun = await engines.until_begun(1)
    body = begun.call.body.replace(b" ", b"")
    assert b'"max_tokens":5' in body
    assert b'"prompt":"tellme"' in body
    engines.say(begun.lease_id, piece("Once"), tokens=(2, 0, 1))
    first = await call.read()
    assert texts(first.infer_response) == [b"Once"]
    rest = piece(" upon") + b"data: [DONE]\n\n"
    engines.say(begun.lease_id, rest, tokens=(2, 0, 2), end=StreamEnd.DONE)
    assert texts((await call.read()).infer_response) == [b" upon"]
    last = (await call.read()).infer_response
    assert last.parameters["triton_final_response"].bool_param
    assert not last.outputs
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_the_last_piece_says_that_it_is(channel: grpc.aio.Channel, engines: Played) -> None:
    call = stream(channel)
    made = prompt(streams=True)
    made.parameters["max_tokens"].int64_param = 7
    made.parameters["temperature"].string_param = "0.5"
    await call.write(made)
    begun = await engines.until_begun(1)
    assert b'"max_tokens": 7, "temperature": 0.5' in begun.call.body
    engines.say(begun.lease_id, piece("Once"), tokens=(2, 0, 1))
    assert not (await call.read()).infer_response.parameters["triton_final_response"].bool_param
    rest = piece("", '"stop"') + b"data: [DONE]\n\n"
    engines.say(begun.lease_id, rest, tokens=(2, 0, 2), end=StreamEnd.DONE)
    last = (await call.read()).infer_response
    assert last.parameters["triton_final_response"].bool_param
    assert last.model_version == "1"


async def test_a_version_that_is_not_live_is_not_found(
    channel: grpc.aio.Channel, engines: Played
) -> None:
    error = await refused(infer(channel)(prompt(streams=False, model_version="99")))
    assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_a_call_gets_a_text_whole(channel: grpc.aio.Channel, engines: Played) -> None:
    asking = asyncio.ensure_future(infer(channel)(prompt(streams=False)))
    begun = await engines.until_begun(1)
    choices = b'{"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}'
    engines.say(begun.lease_id, choices, tokens=(2, 0, 2), end=StreamEnd.DONE)
    answer = await asking
    assert answer.id == "p"
    assert answer.raw_output_contents == [b"\x01\0\0\0a\x01\0\0\0b"]


async def test_an_engine_that_fails_in_a_stream_is_told_in_it(
    channel: grpc.aio.Channel, engines: Played
) -> None:
    call = stream(channel)
    await call.write(prompt(streams=True))
    begun = await engines.until_begun(1)
    engines.say(begun.lease_id, piece("Once"), tokens=(2, 0, 1))
    assert texts((await call.read()).infer_response) == [b"Once"]
    engines.die("chat-0")
    refusal = await call.read()
    paid = "(2 tokens of the prompt and 1 of the answer are charged)"
    assert refusal.error_message == f"the replica that generated this answer was lost {paid}"
    assert refusal.infer_response.id == "p"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made.inputs.pop(0), "text_input is missing"),
        (lambda made: made.inputs.add(name="ids", datatype="BOOL", shape=[1])
         .contents.bool_contents.append(True), "Unknown input 'ids'"),
        (lambda made: made.outputs.add(name="logits"), "Unknown output 'logits'"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_prompt_is_said(
    channel: grpc.aio.Channel, engines: Played, change: Callable[[Any], Any], said: str
) -> None:
    made = prompt(streams=False)
    change(made)
    error = await refused(infer(channel)(made))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in (error.details() or "")


async def test_metadata_says_what_a_model_that_generates_takes(
    channel: grpc.aio.Channel, engines: Played
) -> None:
    asked = messages.message("inference.ModelMetadataRequest")(name="chat")
    answered = messages.message("inference.ModelMetadataResponse")
    call = channel.unary_unary(
        f"/{messages.INFERENCE}/ModelMetadata",
        request_serializer=type(asked).SerializeToString,
        response_deserializer=answered.FromString,
    )
    found = await call(asked)
    assert [each.name for each in found.outputs] == ["text_output"]
