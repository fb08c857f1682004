"""A sample of each message that crosses processes, with no field at its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from filled_values import filled
from golden_bytes import Sample
from msgspec.structs import replace
from ragged_rows import same

from deployments.contract import description, registry
from deployments.contract.channel.frames import (
    BatchCall,
    BatchReply,
    RowError,
    decode_call,
    decode_reply,
    encode_call,
    encode_reply,
)
from deployments.contract.channel.handshake import Challenge, Hello, Proof, Refusal
from deployments.contract.channel.stream_messages import (
    BlocksMessage,
    GenerateCall,
    Piece,
    SharesMessage,
    StepMessage,
    StreamEnd,
    decode_generate,
    decode_steps,
    encode_generate,
    encode_steps,
    packed,
)
from deployments.contract.codec import MessageCodec
from deployments.contract.rollout import observations, terms
from deployments.contract.scaling import messages
from deployments.contract.scaling.document import ScalingDocument, parse
from deployments.process import description_store
from runtimes.types import AdapterLoad, DeviceMemory, EngineLoad, Ragged

CODEC_MODULES = (registry, description, terms, observations, messages, description_store)

WORK = ((0, "acme", 1.5), (2, "übung", 0.25))


class Column(Ragged):
    """A tensor that compares by its elements."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ragged) and same(self, other)

    __hash__ = None  # type: ignore[assignment]


TEXTS = Column("BYTES", np.array([b"a", b"", b"\xff"], object), ((1,), (2,)))
CALL = BatchCall(
    budget_s=2.5,
    lengths=np.array([2, 1], dtype=np.int32).tobytes(),
    inputs={
        "ids": Column("INT64", np.arange(3, dtype=np.int64), ((2,), (1,))),
        "image": Column("FP32", np.arange(5, dtype=np.float32), ((1, 2), (3,))),
        "text": TEXTS,
    },
    outputs=("y", "z"),
    rank=(1, 2, 3.5),
    predicted_s=0.125,
    charges=WORK,
    waiting=WORK[1:],
    tells_start=True,
)
REPLY = BatchReply(
    busy=True,
    outputs={"y": Column("FP64", np.arange(2.0), ((2,),)), "text": TEXTS},
    errors=(RowError(1, True, "too long", True, True),),
    wait_s=0.1,
    service_s=0.2,
    padded_tokens=7,
    stages=(1.0, 2.0, 3.0, 4.0, 5.0),
    inflight=3,
    held=2,
    seen=70_000,
    retry_in_s=0.5,
    duty=0.75,
    free_in_s=0.0625,
    virtual_time=(1.0, 2.0),
    served=WORK,
    waiting=WORK[:1],
    memory_faults=2,
    device_memory=DeviceMemory(1 << 30, 3 << 30, 80 << 30),
)
GENERATE = GenerateCall(
    endpoint="chat",
    body=b'{"messages": []}',
    budget_s=30.0,
    priority=1,
    salt="acme",
    rank=(1, 2, 3.5),
    charges=WORK,
    waiting=WORK[:1],
    input_s=0.001,
    output_s=0.01,
    hashes=packed((7, 2**64 - 1)),
    hashed_tokens=33,
)
PIECES = tuple(
    Piece(3 + at, b"data: x\n\n", 5, 1, 2, 16, 0.5, 400, end)
    for at, end in enumerate((None, *StreamEnd))
)
STEPS = StepMessage(
    pieces=PIECES,
    held=4,
    seen=5,
    inflight=6,
    load=EngineLoad(
        1, 2, 0.5, 3, 4, 5, 6, 8, 7, AdapterLoad(("law", "code"), 7, 8, 0.25, 9, ("sql",))
    ),
    shares=SharesMessage((0.5, 1.5), WORK, WORK[1:]),
    read=1000,
    written=200,
    device_memory=DeviceMemory(1 << 30, 3 << 30, 80 << 30),
    blocks=BlocksMessage(9, packed((1, 2**63)), packed((3,)), whole=True, partial=True),
)


def _plain(kind: type[msgspec.Struct]) -> tuple[Callable[..., bytes], Callable[[bytes], Any]]:
    """Messages of the handshake are the same in every version: it comes before one is chosen."""
    read = msgspec.msgpack.Decoder(kind).decode
    return lambda value, version: msgspec.msgpack.encode(value), read


def _in_parts(
    write: Callable[..., Any], read: Callable[[memoryview], Any]
) -> tuple[Callable[..., bytes], Callable[[bytes], Any]]:
    """Messages that are written as several buffers and read as views of one."""
    return (
        lambda value, version: b"".join(write(value, version)),
        lambda data: _owned(read(memoryview(data))),
    )


def _owned(message: Any) -> Any:
    """The message with bytes where it had a view, so that it compares with its sample."""
    if isinstance(message, BatchCall):
        return replace(message, lengths=bytes(message.lengths))
    return message


def codecs() -> dict[str, MessageCodec[Any]]:
    """Every message that goes through Ray's calls or the store, by name."""
    return {
        name.lower(): each
        for module in CODEC_MODULES
        for name, each in vars(module).items()
        if isinstance(each, MessageCodec)
    }


def _of_codec(codec: MessageCodec[Any]) -> Sample:
    return Sample(
        filled(codec.kind), lambda value, version: codec.encode(value), codec.decode, since=4,
        by_name=True,
    )  # fmt: skip


def _text(document: ScalingDocument, version: int) -> bytes:
    return document.text().encode()


SAMPLES = {
    "hello": Sample(Hello((4, 3), "gateway-1", "replica-1", bytes(range(32))), *_plain(Hello)),
    "challenge": Sample(Challenge(3, bytes(range(32)), bytes(32)), *_plain(Challenge)),
    "proof": Sample(Proof(bytes(range(32))), *_plain(Proof)),
    "reason": Sample(Refusal("another key"), *_plain(Refusal)),
    "batch_call": Sample(CALL, *_in_parts(encode_call, decode_call)),
    "batch_reply": Sample(REPLY, *_in_parts(encode_reply, decode_reply)),
    "generate_call": Sample(GENERATE, *_in_parts(encode_generate, decode_generate)),
    "step_message": Sample(STEPS, *_in_parts(encode_steps, decode_steps)),
    "scaling_document": Sample(
        dataclasses.replace(filled(ScalingDocument), v=4),
        _text,
        lambda said: parse(said.decode()),
        since=4,
        by_name=True,
    ),
    **{name: _of_codec(codec) for name, codec in codecs().items()},
}
