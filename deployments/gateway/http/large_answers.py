"""How large may an answer be, and how is a large one sent?

An answer over the bounds is refused before its request is queued: 2,048 texts of one letter, times
4,000 labels each, are 450 MB. *Held* is what the gateway keeps of the replicas' outputs, *sent*
what the client gets at most. Both follow from the rows, their lengths and the declared shapes; an
output with an axis whose size only the answer tells is measured when it is there. A large answer is
encoded in the thread pool, in the tenant's turn, one piece whenever the client has taken the one
before: about a millisecond of the interpreter (orjson writes 16,384 FP32 in 0.8 ms) and a few
hundred kilobytes each. Errors are found before the first piece; after it a full pool ends no
answer. An answer up to `WHOLE_BYTES` has a `Content-Length`, a longer one is sent in chunks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import orjson

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.exchange import Exchange, run_until_disconnect
from deployments.gateway.http.protocols.json_body import Breaks
from deployments.gateway.http.protocols.tensors import HALVES, Encoded
from deployments.gateway.rows import Array, RowAnswer, Rows
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from runtimes.types import DTYPES, TensorSpec

WHOLE_BYTES = 2 << 20


def held_at_once(size: AnswerSize) -> int:
    """What the gateway holds of an answer: its outputs, and as much of their encoding as is there
    at one time."""
    return size.held + min(size.sent, WHOLE_BYTES)


async def beginning(answer: LargeAnswer, pool: FairThreadPool, tenant: str) -> Encoded:
    """The whole answer if it is short, else its beginning. Raises what is wrong with the answer,
    and Overloaded."""
    made: list[bytes | memoryview] = []
    size, more = 0, True
    while more and size <= WHOLE_BYTES and not answer.size:
        part, more = await pool.run(tenant, _take, answer)
        made.append(part)
        size += len(part)
    return Encoded(b"".join(made), answer.content_type, answer.headers, more, answer.size)


async def send(
    exchange: Exchange,
    beginning: Encoded,
    headers: list[tuple[bytes, bytes]],
    answer: LargeAnswer,
    pool: FairThreadPool,
    tenant: str,
) -> int:
    """Sends the answer from its beginning to its end; its bytes. Ends early, in silence, where the
    client leaves."""
    gone = False

    def left() -> None:
        nonlocal gone
        gone = True

    async def rest() -> int:
        await exchange.begin(beginning, headers)
        size, more = len(beginning.body), True
        beginning.body = b""
        while more and not gone:
            try:
                if answer.is_ready:
                    part, more = answer.take()
                else:
                    part, more = await pool.run(tenant, _take, answer)
            except errors.Overloaded:
                part, more = answer.take()
            size += len(part)
            if part:
                await exchange.send_chunk(part)
        await exchange.end_stream()
        return size

    sent = await run_until_disconnect(exchange, rest(), left)
    if gone:
        raise errors.CallerLeft("the client disconnected before it had its answer")
    return sent


def _take(answer: LargeAnswer) -> tuple[bytes | memoryview, bool]:
    return answer.take(Breaks())


MAX_HELD_BYTES = 64 << 20  # or what a request's body may have, where that is more
_SENT_PER_HELD = 4
AT_ONCE_BYTES = 262_144  # 17,000 numbers: orjson writes them in 1 ms

# The longest JSON of an element, and a comma. Halves are written as the FP32 that they equal.
_JSON_BYTES = {
    "BOOL": 6, "UINT8": 4, "UINT16": 6, "UINT32": 11, "UINT64": 21, "INT8": 5, "INT16": 7,
    "INT32": 12, "INT64": 21, "FP16": 15, "BF16": 15, "FP32": 15, "FP64": 25,
    "BYTES": 3,
}  # fmt: skip
_PACKED_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()} | {"BYTES": 4}
_HELD_BYTES = _PACKED_BYTES | {"BYTES": 64}  # of Python's, besides the characters


@dataclass(slots=True)
class OutputSize:
    """One output of a request's rows. `elements`: of the rows as they are; `dense`: of the tensor
    that they are padded to; `text_bytes`: the characters of its BYTES; `known`: the declared shape
    and the lengths say all of it."""

    datatype: str
    elements: int
    dense: int
    text_bytes: int = 0
    known: bool = True

    @property
    def held_bytes(self) -> int:
        return self.elements * _HELD_BYTES[self.datatype] + self.text_bytes

    @property
    def dense_bytes(self) -> int:
        """As binary data."""
        return self.dense * _PACKED_BYTES[self.datatype] + self.text_bytes

    @property
    def packed_bytes(self) -> int:
        """Of the rows as they are, unpadded."""
        return self.elements * _PACKED_BYTES[self.datatype] + self.text_bytes

    def json_bytes(self, elements: int) -> int:
        """So many of it as JSON, at most; of BYTES, about."""
        return elements * _JSON_BYTES[self.datatype] + 2 * self.text_bytes


@dataclass(slots=True)
class AnswerSize:
    """Of one request's answer, bytes. `known`: as in `OutputSize`, of all its outputs. `advice`:
    what makes it smaller, besides fewer rows; `param`: what rows come from."""

    held: int
    sent: int
    known: bool = True
    advice: str = ""
    param: str = ""

    @property
    def is_small(self) -> bool:
        """Whether it may be encoded at once, on the event loop."""
        return self.held <= AT_ONCE_BYTES and self.sent <= AT_ONCE_BYTES


SMALL_ANSWER = AnswerSize(0, 0)
"""Of all whose outputs and JSON are within what is not counted: nothing is held, or checked."""


def declared(rows: Rows, d: ModelDescription, extent: int = 0) -> dict[str, OutputSize]:
    """The wanted outputs' sizes by name, as the model declares them. `extent`: the shortest that a
    length axis is padded to."""
    return {
        spec.name: _declared(spec, rows, d, extent)
        for spec in d.outputs
        if rows.outputs is None or spec.name in rows.outputs
    }


def _declared(spec: TensorSpec, rows: Rows, d: ModelDescription, extent: int) -> OutputSize:
    per_row, ragged, known = 1, False, spec.datatype != "BYTES"
    for axis, size in enumerate(spec.shape[1:], 1):
        if size != -1:
            per_row *= size
        elif axis == d.lengths_axis and d.lengths_input is not None:
            ragged = True
        else:
            known = False
    if not ragged:
        return OutputSize(spec.datatype, per_row * rows.count, per_row * rows.count, 0, known)
    # The axis may be another one than the length's, which no declaration tells.
    dense = per_row * rows.count * max(extent, *rows.lengths)
    return OutputSize(spec.datatype, per_row * sum(rows.lengths), dense, 0, False)


def measured(
    rows: Rows, answers: Iterable[RowAnswer], d: ModelDescription, extent: int = 0
) -> dict[str, OutputSize]:
    """As `declared`, of answers that are there."""
    columns: dict[str, list[tuple[str, Array]]] = {}
    for answer in answers:
        for name, output in answer.outputs.items():
            if rows.outputs is None or name in rows.outputs:
                columns.setdefault(name, []).append(output)
    axis = d.lengths_axis - 1
    return {name: _measured(column, axis, extent) for name, column in columns.items()}


def _measured(column: list[tuple[str, Array]], axis: int, extent: int) -> OutputSize:
    datatype, arrays = column[0][0], [array for _, array in column]
    widest = [max(sizes) for sizes in zip(*{array.shape for array in arrays}, strict=False)]
    if extent and axis < len(widest):
        widest[axis] = max(widest[axis], extent)
    text_bytes = 0
    if datatype == "BYTES":
        text_bytes = sum([len(item) for array in arrays for item in array.reshape(-1).tolist()])
    elements = sum([array.size for array in arrays])
    return OutputSize(datatype, elements, prod(widest) * len(arrays), text_bytes)


def size_of(
    outputs: Mapping[str, OutputSize], sent: int, advice: str = "", param: str = ""
) -> AnswerSize:
    """Of an answer that takes `sent` bytes at most and is made of these outputs."""
    held, known = 0, True
    for output in outputs.values():
        held += output.held_bytes
        known = known and output.known
    return AnswerSize(held, sent, known, advice, param)


def check(size: AnswerSize, rows: Rows, max_held: int) -> None:
    """Raises BadRequest for an answer over a bound: `max_held`, and four times that as sent."""
    max_sent = _SENT_PER_HELD * max_held
    if size.held <= max_held and size.sent <= max_sent:
        return
    if size.held > max_held:
        much = f"hold {size.held} bytes of outputs, of at most {max_held}"
    else:
        much = f"take up to {size.sent} bytes, of at most {max_sent}"
    share = min(max_held / max(size.held, 1), max_sent / max(size.sent, 1))
    fit = int(rows.count * share)
    fewer = f"send at most {fit} such rows at once" if fit else "send a shorter row"
    raise BadRequest(
        f"the answer to the request's rows ({rows.count}) would {much}; {fewer}{size.advice}",
        param=size.param,
    )


STEP = 16_384  # elements
TEXT_STEP = 65_536  # characters
PIECE_BYTES = 262_144
PACKED_BYTES = 1 << 20  # of numbers as they are
VIEW_BYTES = 65_536  # a view of so many bytes is sent by itself, smaller ones are copied together
_TURN_S = 0.004
Parts = Iterator[bytes | memoryview]


@dataclass(slots=True)
class LargeAnswer:
    """`parts`: of the body, from which other parts can't be taken again. `headers`: those that
    belong to its format, and `size`, 0 where it is not known; complete when the first part that is
    not empty has been made. `is_ready`: what follows are views, which cost nothing to take."""

    parts: Parts
    content_type: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    size: int = 0
    is_ready: bool = False
    _view: memoryview | None = None

    def take(self, breaks: Breaks | None = None) -> tuple[bytes | memoryview, bool]:
        """The next `PIECE_BYTES`, a view of so many or more, or what some milliseconds make of it;
        whether more follows. `breaks`: of the thread, where it is not the event loop's."""
        if self._view is not None:
            view, self._view = self._view, None
            return view, True
        made: list[bytes | memoryview] = []
        began, size = time.perf_counter(), 0
        for part in self.parts:
            if isinstance(part, memoryview) and len(part) >= VIEW_BYTES:
                if not made:
                    return part, True
                self._view = part
                return b"".join(made), True
            made.append(part)
            size += len(part)
            if size >= PIECE_BYTES or time.perf_counter() - began > _TURN_S:
                return b"".join(made), True
            if breaks is not None:
                breaks.take()
        return b"".join(made), False


def listed(items: Iterable[Parts]) -> Parts:
    """A JSON array of these values."""
    before = b"["
    for item in items:
        yield before
        yield from item
        before = b","
    yield b"[]" if before == b"[" else b"]"


def nested(array: Array, datatype: str, text: Callable[[bytes], Any]) -> Parts:
    """An array of any rank as nested JSON arrays; one without axes as the bare value. `text`: what
    an element of BYTES is written as."""
    if datatype == "BYTES":
        return _nested_texts(array.tolist(), text)
    return _nested(array, datatype)


def _nested(array: Array, datatype: str) -> Parts:
    if array.ndim == 0:
        yield orjson.dumps(array.item())
    elif array.size <= STEP:
        yield _dumped(array, datatype)
    elif array.ndim > 1:
        yield from listed(_nested(inner, datatype) for inner in array)
    else:
        yield b"["
        yield from flat([array], datatype)
        yield b"]"


def flat(rows: Iterable[Array], datatype: str) -> Parts:
    """All elements of the rows in order, with commas between them, without brackets."""
    before = b""
    for row in rows:
        elements = row.reshape(-1)
        for start in range(0, len(elements), STEP):
            yield before + _dumped(elements[start : start + STEP], datatype)[1:-1]
            before = b","


def _dumped(array: Array, datatype: str) -> bytes:
    dtype = np.float32 if datatype in HALVES else None
    return orjson.dumps(np.ascontiguousarray(array, dtype), option=orjson.OPT_SERIALIZE_NUMPY)


def _nested_texts(value: Any, text: Callable[[bytes], Any]) -> Parts:
    if isinstance(value, list):
        yield from listed(_nested_texts(item, text) for item in value)
    else:
        yield from string(text(value))


def flat_texts(rows: Iterable[Array], text: Callable[[bytes], Any]) -> Parts:
    before = b""
    for row in rows:
        for item in row.reshape(-1).tolist():
            yield before
            yield from string(text(item))
            before = b","


def string(value: Any) -> Parts:
    """A text, or anything that is short."""
    if not isinstance(value, str) or len(value) <= TEXT_STEP:
        yield orjson.dumps(value)
        return
    yield b'"'
    for start in range(0, len(value), TEXT_STEP):
        yield orjson.dumps(value[start : start + TEXT_STEP])[1:-1]
    yield b'"'
