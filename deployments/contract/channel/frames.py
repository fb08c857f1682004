"""Frames and batch messages: what travels on the connection between a gateway and a replica.

A frame is a head of 13 bytes, little-endian (size of the body, kind, lease id), then the body. A
lease id is valid on its own connection only. The reader does no I/O, holds no more of a body than
has arrived, and refuses a head that announces a body over the limit. A batch message is a msgpack
header with the rows' shapes, followed by one raw buffer per tensor, which is never copied. Sizes,
shapes and datatypes must account for every byte, otherwise MessageError names what does not. Times
are durations in seconds. `stream_messages` and `handshake` hold the other messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from math import isfinite, prod
from struct import Struct
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import astuple, replace

from deployments.contract.codec import WIRE, plain
from routers.api.requests import FlowWork
from runtimes.types import DTYPES, Batch, DeviceMemory, EngineLoad, Ragged

HEAD = Struct("<IBQ")
MAX_FRAME_BYTES = 1 << 30
MAX_HANDSHAKE_BYTES = 4096
STALLED_S, PROGRESS_BYTES = 10.0, 1 << 16  # a frame stalls below so many bytes in so many seconds
Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """Kinds of frames: who sends one, and what it says."""

    HELLO = 1  # gateway: who it is, and whom it wants
    CHALLENGE = 2  # replica: its proof, and what the gateway has to prove
    PROOF = 3  # gateway
    WELCOME = 4  # replica: the connection stands
    REFUSED = 5  # replica: why it does not
    BATCH = 10  # gateway: run these rows; one REPLY or FAULT follows
    BEGIN = 11  # gateway: run this request; STARTED and STEPS follow
    DROP = 12  # gateway: no caller waits for the batch; return it unless it has started
    ABORT = 13  # gateway: no caller waits for the request; end it
    WATCH = 14  # gateway: say when the batch starts
    CREDIT = 15  # gateway: bytes of STEPS taken in so far on this connection, as the lease id
    BLOCKS = 16  # gateway: tell from the beginning which blocks of prompts the engine holds
    STARTED = 20  # replica: the lease runs
    REPLY = 21  # replica: the batch's answer
    FAULT = 22  # replica: its device failed the lease, and why
    STEPS = 23  # replica: what all of this gateway's requests have produced since the last STEPS
    GOAWAY = 24  # either: no new lease after this; the replica ends once it has seen the gateway's
    UNSENT = 25  # replica: it is well, but its answer could not be sent, and why
    ENDED = 26  # replica: all its leases are lost, because its engine is, and why


LATER_KINDS = range(32, 64)  # of versions to come: such a frame is skipped
GATEWAY_KINDS = frozenset(
    {Kind.BATCH, Kind.BEGIN, Kind.DROP, Kind.ABORT, Kind.WATCH, Kind.CREDIT, Kind.BLOCKS,
     Kind.GOAWAY, *LATER_KINDS}
)  # fmt: skip
REPLICA_KINDS = frozenset(
    {Kind.STARTED, Kind.REPLY, Kind.FAULT, Kind.UNSENT, Kind.STEPS, Kind.GOAWAY, Kind.ENDED,
     *LATER_KINDS}
)  # fmt: skip


class FrameError(Exception):
    """A frame that may not come here. The stream cannot be parsed any further."""


class Frame(NamedTuple):
    """One whole frame. `body` is a view of the bytes that were read together, and keeps them all
    in memory."""

    kind: Kind
    lease_id: int
    body: memoryview


def framed(kind: Kind, lease_id: int = 0, body: Sequence[Buffer] = ()) -> list[Buffer]:
    """The buffers of one frame, to be written in order. Raises FrameError for a body over the
    limit."""
    size = sum([len(part) for part in body])
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"{size} bytes do not fit into one frame of {MAX_FRAME_BYTES}")
    return [HEAD.pack(size, kind, lease_id), *body]


class FrameReader:
    """Parses bytes into frames. `kinds`: those that may come; `max_bytes`: limit of a body. Both
    may be changed between frames, as happens after the handshake."""

    def __init__(self, kinds: frozenset[int], max_bytes: int = MAX_HANDSHAKE_BYTES) -> None:
        self.kinds = kinds
        self.max_bytes = max_bytes
        self.frames = 0  # whole frames so far
        self._rest = bytearray()  # the beginning of a frame that has not all arrived
        self._wanted = HEAD.size  # with fewer bytes the rest holds no whole frame

    @property
    def rest_bytes(self) -> int:
        """Bytes held of a frame that has not all arrived."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with `data`. The caller must take all of them. Raises
        FrameError at a frame that may not come, after the frames before it."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            whole: bytes | bytearray = self._rest
        else:
            whole = data  # mostly a read begins and ends with a frame, so nothing is copied
        view, at = memoryview(whole), 0
        while (end := self._end(view, at)) <= len(whole):
            _, kind, lease_id = HEAD.unpack_from(view, at)
            self.frames += 1
            if kind < LATER_KINDS.start:
                yield Frame(Kind(kind), lease_id, view[at + HEAD.size : end])
            at = end
        self._rest = bytearray(view[at:])
        self._wanted = end - at

    def _end(self, view: memoryview, at: int) -> int:
        """Where the frame that begins at `at` ends; where its head ends, if the head has not all
        arrived."""
        if len(view) - at < HEAD.size:
            return at + HEAD.size
        size, kind, _ = HEAD.unpack_from(view, at)
        if kind not in self.kinds:
            raise FrameError(f"a frame of kind {kind} may not come here")
        if size > self.max_bytes:
            raise FrameError(f"a frame of {size} bytes; at most {self.max_bytes} may come here")
        return at + HEAD.size + int(size)


class StallWatch:
    """Whether a frame that has begun to arrive has stalled: fewer than 64 KiB in STALLED_S. Ask
    about once a second."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._seen = (-1, 0)  # frames, and 64-KiB steps of the next one, at the last progress
        self._since = 0.0

    def stalled(self, now: float) -> bool:
        """`now`: seconds on any clock, the same one each time."""
        rest = self._reader.rest_bytes
        seen = (self._reader.frames, rest // PROGRESS_BYTES)
        if not rest or seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > STALLED_S


Shapes = tuple[tuple[int, ...], ...]
T = TypeVar("T")
_SIZE = Struct("<I")
_ALIGNED_BYTES = 8  # of the largest element
_MAX_PRIORITIES = 256  # a replica keeps a list of that many
_MAX_AXES, _LARGEST_EMPTY = 32, 1 << 30  # bounds of a shape that numpy can make an array of


class MessageError(Exception):
    """A message that is inconsistent, in a frame that was whole."""


class Scattered(NamedTuple):
    """As `Ragged`, of large rows that lie apart: each stays where it is until it is sent. 1-D
    arrays, not of BYTES."""

    datatype: str
    rows: Sequence[np.ndarray[Any, Any]]
    shapes: Shapes


class WireMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of the channel's messages: an array of its fields, in order.

    A reader ignores further elements and fills in the defaults of missing ones. So a new field
    stands last and has a default (docs/data-channel.md). The garbage collector does not track
    messages: they are in no cycle."""

    fields_in_3: ClassVar[int]  # how many of them readers of version 3 take: they refuse more


class BatchCall(WireMessage, frozen=True):
    """A batch to run. Fields without a comment are as in `api.actions.Dispatch`."""

    fields_in_3: ClassVar[int] = 9

    budget_s: float  # for how long a caller still waits for it
    lengths: bytes  # int32 [rows]
    inputs: dict[str, Ragged]  # or `Scattered`, until they are sent
    outputs: tuple[str, ...] | None  # wanted names; None: all
    rank: tuple[int, int, float] = (0, 0, 0.0)
    predicted_s: float = 0.0
    charges: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = ()  # None: unchanged since the last message
    tells_start: bool = False  # the replica must say when the batch starts


class RowError(WireMessage, frozen=True):
    """Why one row of a batch failed. Without a flag the runtime failed on this row alone (503)."""

    fields_in_3: ClassVar[int] = 4

    row: int
    callers_fault: bool  # the input is bad (400)
    message: str
    not_finite: bool = False  # the answer is NaN or infinity (500)
    out_of_memory: bool = False  # the device has too little memory for this row alone (503)


class BatchReply(WireMessage, frozen=True):
    """The answer to a batch. Fields without a comment are as in `api.requests.Report`; their
    seconds count from the answer."""

    fields_in_3: ClassVar[int] = 16

    busy: bool  # nothing was started
    outputs: dict[str, Ragged]  # of the rows that did not fail, in order
    errors: tuple[RowError, ...]
    wait_s: float  # from arrival at the replica to the device
    service_s: float  # on the device
    padded_tokens: int
    stages: tuple[float, float, float, float, float]  # s: pad, copy in, run, copy out, post-process
    inflight: int
    held: int
    seen: int
    retry_in_s: float
    duty: float  # share of the last 10 to 20 s of wall time that the device was busy
    free_in_s: float = 0.0
    virtual_time: tuple[float, ...] = ()
    served: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = ()  # None: unchanged since the last message
    memory_faults: int = 0  # runs of it, or of its parts, that the device had no memory for
    device_memory: DeviceMemory | None = None  # None: there is no GPU, or nobody knows

    def transport_s(self, round_trip_s: float) -> float:
        """Seconds of the round trip that passed on the way rather than at the replica."""
        return max(round_trip_s - self.wait_s - self.service_s, 0.0)


# ---- messages and bytes -----------------------------------------------------------------------


# A runtime may return numpy's scalars.
_encoded = msgspec.msgpack.Encoder(enc_hook=plain).encode


def encoded_as(version: int, message: WireMessage) -> bytes:
    """The message in that version's layout."""
    return _encoded(message if version > 3 else _as_in_3(message))


_LOAD_IN_3 = (
    "running", "waiting", "cache_used", "preemptions", "prefix_queries", "prefix_hits", "steps",
)  # fmt: skip


def _as_in_3(part: Any) -> Any:
    """The message without the fields that version 3 lacks."""
    if isinstance(part, EngineLoad):
        return {name: getattr(part, name) for name in _LOAD_IN_3}
    if isinstance(part, WireMessage):
        return [_as_in_3(value) for value in astuple(part)[: part.fields_in_3]]
    if isinstance(part, list | tuple) and part and isinstance(part[0], WireMessage):
        return [_as_in_3(each) for each in part]
    return part


class _ColumnHead(WireMessage, frozen=True):
    """A tensor without its buffer. The buffer has `size` bytes; a tensor of BYTES has none, and
    `items` holds its elements. `shapes`: None where each row has one axis, as long as the row."""

    fields_in_3: ClassVar[int] = 5

    name: str
    datatype: str
    size: int
    items: list[bytes] | None
    shapes: Shapes | None


class _CallHead(WireMessage, frozen=True):
    fields_in_3: ClassVar[int] = 3
    call: BatchCall  # without lengths and inputs
    lengths_bytes: int
    inputs: list[_ColumnHead]


class _ReplyHead(WireMessage, frozen=True):
    fields_in_3: ClassVar[int] = 2
    reply: BatchReply  # without outputs
    outputs: list[_ColumnHead]


_read_call = msgspec.msgpack.Decoder(_CallHead).decode
_read_reply = msgspec.msgpack.Decoder(_ReplyHead).decode


def encode_call(call: BatchCall, version: int = WIRE) -> list[Buffer]:
    """The buffers of a BATCH frame's body, as the replica's version lays it out."""
    heads, buffers = _to_heads(call.inputs, _plain(np.frombuffer(call.lengths, dtype=np.int32)))
    bare = replace(call, lengths=b"", inputs={})
    return [_header(version, _CallHead(bare, len(call.lengths), heads)), call.lengths, *buffers]


def decode_call(body: memoryview) -> BatchCall:
    """The inverse of `encode_call`. Raises MessageError."""
    head, buffers = _split(body, _read_call)
    size = head.lengths_bytes
    check_times(head.call.budget_s, head.call.predicted_s)
    check_turn(head.call.rank, head.call.charges, head.call.waiting)
    if not 0 < size <= len(buffers) or size % 4:
        raise MessageError(f"{size} bytes of lengths in a message with {len(buffers)} behind it")
    lengths = np.frombuffer(buffers[:size], dtype=np.int32)
    if int(lengths.min()) < 0:
        raise MessageError("a row of less than no elements")
    inputs = _from_heads(head.inputs, buffers[size:], _plain(lengths), int(lengths.sum()))
    lengths_view: Any = buffers[:size]
    return replace(head.call, lengths=lengths_view, inputs=inputs)


def encode_reply(reply: BatchReply, version: int = WIRE) -> list[Buffer]:
    """The buffers of a REPLY frame's body, as the gateway's version lays it out."""
    heads, buffers = _to_heads(reply.outputs)
    return [_header(version, _ReplyHead(replace(reply, outputs={}), heads)), *buffers]


def decode_reply(body: memoryview) -> BatchReply:
    """The inverse of `encode_reply`. Raises MessageError."""
    head, buffers = _split(body, _read_reply)
    return replace(head.reply, outputs=_from_heads(head.outputs, buffers))


def _header(version: int, head: WireMessage) -> bytes:
    """The encoded header with its size before it, padded so that the buffers behind it are aligned
    for any datatype."""
    header = encoded_as(version, head)
    return b"".join((_SIZE.pack(len(header)), header, bytes(_padding(len(header)))))


def _padding(header_bytes: int) -> int:
    return -(HEAD.size + _SIZE.size + header_bytes) % _ALIGNED_BYTES


def _split(body: memoryview, read: Callable[[Any], T]) -> tuple[T, memoryview]:
    """The header, and a view of what follows it. Raises MessageError."""
    if len(body) < _SIZE.size:
        raise MessageError("a message without a header")
    (size,) = _SIZE.unpack_from(body)
    end = _SIZE.size + size
    behind = end + _padding(size)
    if behind > len(body):
        raise MessageError("a header longer than its message")
    return read_header(body[_SIZE.size : end], read), body[behind:]


def read_header(data: memoryview, read: Callable[[Any], T]) -> T:
    """Decode a header. Raises MessageError."""
    try:
        return read(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise MessageError(f"a header that cannot be read: {fault}") from fault


def check_turn(
    rank: tuple[int, int, float],
    charges: tuple[FlowWork, ...],
    waiting: tuple[FlowWork, ...] | None,
) -> None:
    """Raises MessageError for a rank, charges or waiting work that cannot be."""
    _, priority, tag = rank
    if not 0 <= priority < _MAX_PRIORITIES:
        raise MessageError(f"a lease of priority {priority}")
    check_times(tag, *[work[2] for work in (*charges, *(waiting or ()))])


def check_times(*seconds: float) -> None:
    """Raises MessageError for a time that is not finite. Such a time would harm other gateways
    too: a replica keeps the highest tag, and a timer at NaN holds up the timers behind it."""
    if not all(map(isfinite, seconds)):
        raise MessageError("a time that is no number, or has no end")


def _plain(lengths: np.ndarray[Any, Any]) -> Shapes:
    """Shapes of rows that have one axis, as long as the row."""
    return tuple([(length,) for length in lengths.tolist()])


def _to_heads(
    tensors: Mapping[str, Ragged | Scattered], plain: Shapes | None = None
) -> tuple[list[_ColumnHead], list[Buffer]]:
    """Tensors into heads for the header and buffers to follow it. The heads of those with `plain`
    shapes name none."""
    heads: list[_ColumnHead] = []
    buffers: list[Buffer] = []
    for name, ragged in tensors.items():
        shapes = None if ragged.shapes == plain else ragged.shapes
        if isinstance(ragged, Scattered):
            parts = [np.ascontiguousarray(row).view(np.uint8).data for row in ragged.rows]
            size = sum(map(len, parts))
            heads.append(_ColumnHead(name, ragged.datatype, size, None, shapes))
            buffers += parts
            continue
        if ragged.datatype == "BYTES":
            heads.append(_ColumnHead(name, "BYTES", 0, ragged.data.tolist(), shapes))
            continue
        buffer = np.ascontiguousarray(ragged.data).view(np.uint8).data
        heads.append(_ColumnHead(name, ragged.datatype, len(buffer), None, shapes))
        buffers.append(buffer)
    return heads, buffers


def _from_heads(
    heads: Sequence[_ColumnHead], buffers: memoryview, plain: Shapes = (), elements: int = 0
) -> dict[str, Ragged]:
    """The inverse of `_to_heads`. Raises MessageError unless every byte is accounted for.
    `plain` and `elements` are the batch's, for tensors that have no shapes of their own."""
    tensors: dict[str, Ragged] = {}
    at = 0
    for head in heads:
        count = _elements(head, len(plain), elements)
        shapes = plain if head.shapes is None else head.shapes
        if head.items is not None:
            if head.datatype != "BYTES" or head.size or len(head.items) != count:
                raise MessageError(f"{head.name}: {len(head.items)} items for {count} elements")
            items = np.empty(count, dtype=object)
            items[:] = head.items
            tensors[head.name] = Ragged("BYTES", items, shapes)
            continue
        if head.datatype not in DTYPES or head.datatype == "BYTES":
            raise MessageError(f"{head.name}: datatype {head.datatype} has no buffer")
        if head.size != count * np.dtype(DTYPES[head.datatype]).itemsize:
            raise MessageError(f"{head.name}: {head.size} bytes for {count} {head.datatype}")
        if at + head.size > len(buffers):
            raise MessageError(f"{head.name}: {head.size} bytes, and fewer are left")
        array = np.frombuffer(buffers[at : at + head.size], dtype=DTYPES[head.datatype])
        # A buffer that follows another frame in the same read may begin at any address.
        array = array if array.flags.aligned else array.copy()
        tensors[head.name] = Ragged(head.datatype, array, shapes)
        at += head.size
    if len(tensors) != len(heads) or at != len(buffers):
        raise MessageError(f"{len(buffers)} bytes behind a header that accounts for {at}")
    return tensors


def _elements(head: _ColumnHead, rows: int, elements: int) -> int:
    """Number of elements that the tensor's shapes call for. Raises MessageError for shapes that no
    array can have, or that are not one a row."""
    if head.shapes is None:
        if not rows:
            raise MessageError(f"{head.name}: rows without shapes")
        return elements
    if rows and len(head.shapes) != rows:
        raise MessageError(f"{head.name}: {len(head.shapes)} shapes for {rows} rows")
    count = 0
    for shape in head.shapes:
        if len(shape) > _MAX_AXES:  # the product of thousands of axes takes minutes
            raise MessageError(f"{head.name}: a shape that no array has")
        size = prod(shape)
        if shape and min(shape) < 0:
            raise MessageError(f"{head.name}: a shape of less than no elements")
        if not size and prod(filter(None, shape)) > _LARGEST_EMPTY:
            raise MessageError(f"{head.name}: a shape that no array has")
        count += size
    return count


# ---- batches and rows -------------------------------------------------------------------------


def to_batch(call: BatchCall) -> Batch:
    """The call as a batch for a runtime."""
    lengths = np.frombuffer(call.lengths, dtype=np.int32).astype(np.int64)
    return Batch(len(lengths), lengths, call.inputs, call.outputs)


def rows_of(ragged: Ragged) -> list[np.ndarray[Any, Any]]:
    """Each row as an array of its own shape (views of one buffer)."""
    flat, shapes = ragged.data, ragged.shapes
    if len(set(shapes)) == 1:
        grid = flat.reshape((len(shapes), *shapes[0]))
        # A row of shape () must stay an array; `list` would yield scalars, or bare bytes.
        return list(grid) if shapes[0] else [grid[row, ...] for row in range(len(shapes))]
    rows, start = [], 0
    for shape in shapes:
        size = prod(shape)
        rows.append(flat[start : start + size].reshape(shape))
        start += size
    return rows
