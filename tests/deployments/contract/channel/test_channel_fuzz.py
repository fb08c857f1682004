"""Whatever comes on a connection: what is wrong is said by the errors meant for it, what came whole
before it is handed on, and no more is held than came. `make fuzz` tries 100,000 cases of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from ragged_rows import ragged

from deployments.contract.channel.frames import (
    HEAD,
    BatchCall,
    BatchReply,
    FrameError,
    FrameReader,
    Kind,
    MessageError,
    RowError,
    decode_call,
    decode_reply,
    encode_call,
    encode_reply,
    framed,
    rows_of,
    to_batch,
)
from deployments.contract.channel.handshake import (
    GatewayHandshake,
    Refused,
    ReplicaHandshake,
    reason_of,
    refusal,
)
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
from runtimes.types import DTYPES, EngineLoad, Ragged

KINDS = frozenset({Kind.BATCH, Kind.REPLY, Kind.BEGIN, Kind.STEPS, Kind.DROP})
MAX_BYTES = 2000
WORK = ((0, "a", 1.0), (1, "b", 2.5))


def columns(plain: bool) -> dict[str, Ragged]:
    """Of two rows, of 2 and 1 elements, and of every width."""
    shapes = None if plain else ((1, 2), (1,))
    texts = [np.array([b"", b"ab"], object), np.array([b"c"], object)]
    rows = {name: [np.ones(2, DTYPES[name]), np.ones(1, DTYPES[name])] for name in DTYPES}
    return {name: ragged(name, texts if name == "BYTES" else rows[name], shapes) for name in rows}


EMPTY = Ragged("FP32", np.empty(0, np.float32), ((0, 3), (2, 0)))
SIZES = np.array([2, 1], dtype=np.int32).tobytes()
PIECES = (
    Piece(3, b"data: x\n\n", 5, 1, 2, 8, 0.5),
    Piece(4, b"", 5, 1, 2, 8, 0.5, 400, StreamEnd.DONE),
)
CALLS = [
    BatchCall(1.0, SIZES, columns(plain=True), ("y",), (0, 1, 2.0), 0.5, WORK, WORK),
    BatchCall(1.0, SIZES, columns(plain=False), None, (1, 0, 0.0), 0.5, (), None, True),
    BatchCall(
        1.0,
        SIZES,
        {"x": EMPTY, "y": Ragged("INT32", np.arange(3, dtype=np.int32), ((2,), (1,)))},
        (),
    ),
]
REPLIES = [
    BatchReply(False, columns(plain=False), (RowError(1, True, "bad"),), 0.1, 0.2, 3, (0.0,) * 5,
               1, 2, 3, 0.0, 0.5, 0.0, (1.0,), WORK, None),
    BatchReply(True, {"x": EMPTY}, (), 0.0, 0.0, 0, (0.0,) * 5, 1, 2, 3, 0.5, 0.5),
]  # fmt: skip
GENERATES = [
    GenerateCall("chat", b'{"messages": []}', 3.0, 1),
    GenerateCall(
        "chat", b"{}", 3.0, 1, "salt", (0, 1, 2.0), WORK, WORK, 0.5, 0.25, packed((1, 2)), 40
    ),
]
STEPS = [
    StepMessage(PIECES, 1, 2, 3, EngineLoad(1, 2, 0.5)),
    StepMessage((), 0, 0, 0, EngineLoad()),
    StepMessage(PIECES, 1, 2, 3, EngineLoad(), SharesMessage((1.0,), WORK, None)),
    StepMessage(
        (), 1, 2, 3, EngineLoad(), blocks=BlocksMessage(1, packed((1, 2**64 - 1)), packed((3,)))
    ),
]
MESSAGES: list[tuple[Kind, bytes]] = [
    *((Kind.BATCH, b"".join(encode_call(each))) for each in CALLS),
    *((Kind.REPLY, b"".join(encode_reply(each))) for each in REPLIES),
    *((Kind.BEGIN, b"".join(encode_generate(each))) for each in GENERATES),
    *((Kind.STEPS, b"".join(encode_steps(each))) for each in STEPS),
]
DECODE: dict[Kind, Callable[[memoryview], Any]] = {
    Kind.BATCH: decode_call, Kind.REPLY: decode_reply,
    Kind.BEGIN: decode_generate, Kind.STEPS: decode_steps,
}  # fmt: skip

# Sizes and marks of msgpack, and of heads, at which readers go wrong.
ODD = [
    *(mark + b"\xff" * 8 for mark in (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xcf", b"\xd3", b"")),
    b"\xdc\x40\x00", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xd3\x80" + b"\0" * 7,
    b"\x80", b"\x90", b"\x91", b"\xc0", b"\xa0", b"\xc4\0", b"\0", b"\0" * 8, b"\xff", b"\x7f",
]  # fmt: skip
edits = st.lists(
    st.tuples(
        st.integers(0, 1 << 12),
        st.integers(0, 12),
        st.one_of(st.sampled_from(ODD), st.binary(max_size=9)),
    ),
    min_size=1,
    max_size=4,
)
WORDS = [
    -1, 0, 1, 2, 3, 4, 2**31, 2**62, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"),
    None, True, "", "x", "BYTES", "FP64", "BOOL", b"", b"abc", [], [0], [[]], [[0, 2**62], [1]],
    [[0, 2**40, 2**40], [0]], [[1] * 65, [1]], [[-1, -3], []], {}, {"x": []},
]  # fmt: skip
other_words = st.lists(
    st.tuples(st.integers(0, 500), st.sampled_from(WORDS)), min_size=1, max_size=3
)
cuts = st.lists(st.integers(0, 1 << 14), max_size=8)


def edited(message: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """`changes`: where, how much of it goes, what comes instead."""
    for place, gone, instead in changes:
        at = place % (len(message) + 1)
        message = message[:at] + instead + message[at + gone :]
    return message


def saying(kind: Kind, message: bytes, changes: list[tuple[int, Any]]) -> bytes:
    """Well written, and its header says something else at some places."""
    with_buffers = kind in (Kind.BATCH, Kind.REPLY)
    size = int.from_bytes(message[:4], "little") if with_buffers else len(message)
    start = 4 if with_buffers else 0
    head = [msgspec.msgpack.decode(message[start : start + size])]
    for place, word in changes:
        places = list(within(head))
        holder, key = places[place % len(places)]
        holder[key] = deepcopy(word)  # it may be changed in its turn
    header = msgspec.msgpack.encode(head[0])
    if not with_buffers:
        return header
    behind = message[start + size + -(HEAD.size + start + size) % 8 :]
    padding = bytes(-(HEAD.size + start + len(header)) % 8)
    return len(header).to_bytes(4, "little") + header + padding + behind


def within(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in it, with what holds it."""
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], list | dict):
            yield from within(holder[key])


def split(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted(place % (len(data) + 1) for place in places)
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


def flat(kind: Kind, lease_id: int, body: bytes) -> bytes:
    return b"".join(framed(kind, lease_id, [body]))


Parsed = list[tuple[int, int, bytes]]


def expected(data: bytes) -> tuple[Parsed, bool]:
    """What a reader of few lines finds, and whether it stops at damage."""
    found: Parsed = []
    at = 0
    while len(data) - at >= HEAD.size:
        size, kind, lease_id = HEAD.unpack_from(data, at)
        if kind not in KINDS or size > MAX_BYTES:
            return found, True
        if len(data) - at - HEAD.size < size:
            break
        found.append((kind, lease_id, data[at + HEAD.size : at + HEAD.size + size]))
        at += HEAD.size + size
    return found, False


def taken(chunks: list[bytes]) -> tuple[Parsed, bool]:
    """What the reader finds; it never holds more than the frame that is not all here."""
    reader = FrameReader(KINDS, MAX_BYTES)
    found: Parsed = []
    fed = 0
    for chunk in chunks:
        fed += len(chunk)
        try:
            for frame in reader.feed(chunk):
                found.append((frame.kind, frame.lease_id, bytes(frame.body)))
        except FrameError:
            return found, True
        handed_on = sum(HEAD.size + len(body) for *_, body in found)
        assert reader.rest_bytes == fed - handed_on
        assert reader.rest_bytes < HEAD.size + MAX_BYTES
    return found, False


def use(kind: Kind, body: bytes) -> Any:
    """All that is done with a message that was taken, which says of no more than came."""
    message = DECODE[kind](memoryview(body))
    held = message.inputs if kind is Kind.BATCH else getattr(message, "outputs", {})
    for column in held.values():
        texts = column.datatype == "BYTES"
        held_bytes = sum(map(len, column.data.tolist())) if texts else column.data.nbytes
        assert held_bytes <= len(body)
    if kind is Kind.BATCH:
        batch = to_batch(message)
        assert all(len(ragged.shapes) == batch.rows for ragged in batch.inputs.values())
    elif kind is Kind.REPLY:
        for column in held.values():
            assert len(rows_of(column)) == len(column.shapes)
    return message


@given(st.binary(max_size=400), cuts)
def test_any_bytes_in_any_splits_are_frames_or_an_error(data: bytes, places: list[int]) -> None:
    assert taken(split(data, places)) == expected(data)


@given(st.lists(st.sampled_from(MESSAGES), max_size=5), edits, cuts)
def test_frames_before_the_damage_come_out_however_it_is_split(
    sent: list[tuple[Kind, bytes]], changes: list[tuple[int, int, bytes]], places: list[int]
) -> None:
    whole = [flat(kind, lease, body) for lease, (kind, body) in enumerate(sent)]
    data = edited(b"".join(whole), changes)
    found, broken = taken(split(data, places))
    assert (found, broken) == expected(data)
    undamaged, at = 0, 0
    while undamaged < len(whole) and data.startswith(whole[undamaged], at):
        at += len(whole[undamaged])
        undamaged += 1
    assert [body for *_, body in found[:undamaged]] == [body for _, body in sent[:undamaged]]
    for kind, _, body in found[:undamaged]:
        use(Kind(kind), body)


@given(st.sampled_from(sorted(DECODE)), st.binary(max_size=400))
def test_any_bytes_are_a_message_or_an_error(kind: Kind, body: bytes) -> None:
    with suppress(MessageError):
        use(kind, body)


@given(st.sampled_from(MESSAGES), edits, st.booleans())
def test_a_damaged_message_is_a_message_or_an_error(
    message: tuple[Kind, bytes], changes: list[tuple[int, int, bytes]], within: bool
) -> None:
    """`within`: the damage leaves the message as long as it was."""
    kind, body = message
    if within:
        changes = [(place, len(instead), instead) for place, _, instead in changes]
    with suppress(MessageError):
        use(kind, edited(body, changes))


@given(st.sampled_from(MESSAGES), other_words)
def test_a_message_that_says_something_else_is_a_message_or_an_error(
    message: tuple[Kind, bytes], changes: list[tuple[int, Any]]
) -> None:
    kind, body = message
    with suppress(MessageError):
        use(kind, saying(kind, body, changes))


@given(st.sampled_from(["hello", "challenge", "proof", "reason"]), edits)
def test_a_damaged_handshake_is_refused_or_was_written_in_another_way(
    which: str, changes: list[tuple[int, int, bytes]]
) -> None:
    key = bytes(32)
    gateway, replica = GatewayHandshake(key, "gw", "rep"), ReplicaHandshake(key, "rep")

    def through(name: str, said: bytes) -> memoryview:
        damaged = edited(said, changes) if name == which else said
        changed.append(damaged != said)
        return memoryview(damaged)

    changed: list[bool] = []
    try:
        challenge = replica.challenge(through("hello", gateway.hello()))
        proof = gateway.prove(through("challenge", challenge))
        replica.check(through("proof", proof))
        reason_of(through("reason", refusal("why")))
    except Refused:
        assert any(changed)
    else:
        assert replica.gateway == "gw"
