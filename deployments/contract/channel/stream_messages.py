"""What frames carry of requests to generate: the request, what it has produced, how it ended.

One message of a replica holds what all requests of one gateway have produced since the message
before. A message is a header only, written and checked as in `messages`; the bytes of answers are
in the header. Times are budgets and durations in seconds, never readings of a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

import msgspec
import numpy as np

from deployments.contract.channel.frames import (
    Buffer,
    MessageError,
    WireMessage,
    check_times,
    check_turn,
    encoded_as,
    read_header,
)
from deployments.contract.codec import WIRE
from routers.api.requests import FlowWork
from runtimes.types import DeviceMemory, EngineLoad

HASH_BYTES = 8
MAX_HASHES = 1 << 17  # of two million tokens, in blocks of 16


class StreamEnd(Enum):
    """How a request ended at its replica."""

    DONE = "done"  # answered, or refused by the engine: the piece has the answer and its status
    ABORTED = "aborted"  # the gateway asked for it
    BUSY = "busy"  # not begun: there was no room, or the replica drains
    FAILED = "failed"  # the engine failed on it; it may run again elsewhere if nothing was sent

    @classmethod
    def _missing_(cls, value: object) -> StreamEnd:
        """An end that only a later version knows counts as a failure."""
        return cls.FAILED


class GenerateCall(WireMessage, frozen=True):
    """A request to generate. `endpoint`, `body` and `salt` are as in
    `runtimes.types.StreamRequest`; `rank`, `charges` and `waiting` are as in `BatchCall`."""

    fields_in_3: ClassVar[int] = 10

    endpoint: str
    body: bytes
    budget_s: float  # for how long a caller still waits for it
    priority: int = 0
    salt: str = ""
    rank: tuple[int, int, float] = (0, 0, 0.0)
    charges: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = ()
    # What the gateway takes a token to cost, in seconds: one that is read, one that is written.
    # Both 0: not known.
    input_s: float = 0.0
    output_s: float = 0.0
    # Of the prompt's blocks, as in `StreamRequest`; to a replica that tells of them.
    hashes: bytes = b""
    hashed_tokens: int = 0  # of the whole prompt


class Piece(WireMessage, frozen=True):
    """What one request has produced since the last message. Fields without a comment are as in
    `runtimes.types.Chunk`."""

    fields_in_3: ClassVar[int] = 9

    lease_id: int
    data: bytes
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    held_tokens: int
    service_s: float  # since the request began at this replica
    status: int = 200
    end: StreamEnd | None = None  # None: more is to come


class SharesMessage(WireMessage, frozen=True):
    """What the replica tells of other gateways' requests, as in `api.requests.Shares`."""

    fields_in_3: ClassVar[int] = 3

    virtual_time: tuple[float, ...] = ()
    served: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = None  # None: as the replica last said


class BlocksMessage(WireMessage, frozen=True):
    """What has changed of the blocks of prompts that the engine holds, of all gateways' prompts.
    Hashes are `packed`."""

    fields_in_3: ClassVar[int] = 5

    number: int  # of those on this connection, from 1 on without a gap
    stored: bytes = b""
    removed: bytes = b""
    whole: bool = False  # nothing that was told before holds any more
    # Whether this is not all yet that the engine holds: the next ones bring more, or it is not
    # known. A gateway estimates until one comes without.
    partial: bool = False


class StepMessage(WireMessage, frozen=True):
    """What a gateway's requests have produced. Without pieces it still says that the replica
    lives. `held` and `seen` are as in `api.requests.Report`."""

    fields_in_3: ClassVar[int] = 8

    pieces: tuple[Piece, ...]
    held: int
    seen: int
    inflight: int  # requests of all gateways at this replica
    load: EngineLoad  # as the engine itself reports it
    # Sent when a piece is a request's last, and now and then besides.
    shares: SharesMessage | None = None
    # Tokens that requests of all gateways were given here so far: read of prompts (without those
    # that were cached), and written.
    read: int = 0
    written: int = 0
    device_memory: DeviceMemory | None = None  # as in `BatchReply`
    blocks: BlocksMessage | None = None  # None: nothing has changed, or the engine does not tell


_read_generate = msgspec.msgpack.Decoder(GenerateCall).decode
_read_steps = msgspec.msgpack.Decoder(StepMessage).decode


def encode_generate(call: GenerateCall, version: int = WIRE) -> list[Buffer]:
    """The body of a BEGIN frame, as the replica's version lays it out."""
    return [encoded_as(version, call)]


def decode_generate(body: memoryview) -> GenerateCall:
    """The inverse of `encode_generate`. Raises MessageError."""
    call = read_header(body, _read_generate)
    check_times(call.budget_s, call.input_s, call.output_s)
    check_turn(call.rank, call.charges, call.waiting)
    _check_packed(call.hashes)
    return call


def encode_steps(message: StepMessage, version: int = WIRE) -> list[Buffer]:
    """The body of a STEPS frame, as the gateway's version lays it out."""
    return [encoded_as(version, message)]


def decode_steps(body: memoryview) -> StepMessage:
    """The inverse of `encode_steps`. Raises MessageError."""
    message = read_header(body, _read_steps)
    if message.blocks is not None:
        _check_packed(message.blocks.stored)
        _check_packed(message.blocks.removed)
    return message


def packed(hashes: Sequence[int]) -> bytes:
    """Hashes of 64 bits without a sign."""
    return np.array(hashes, dtype="<u8").tobytes()


def unpacked(data: bytes) -> tuple[int, ...]:
    """The inverse of `packed`."""
    return tuple(np.frombuffer(data, dtype="<u8").tolist())


def _check_packed(data: bytes) -> None:
    if len(data) % HASH_BYTES or len(data) > MAX_HASHES * HASH_BYTES:
        raise MessageError(f"{len(data)} bytes of hashes, {MAX_HASHES} hashes are the most")
