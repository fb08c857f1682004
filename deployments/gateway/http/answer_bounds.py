"""How large may an answer be? What is larger is refused before the request is queued.

A request is small and its answer may not be: 2,048 texts of one letter, times 4,000 labels each,
are 450 MB. Two numbers are bounded. *Held* is what the gateway keeps from the replicas' answers
until the client has taken the last of it: the outputs' own bytes. *Sent* is what the client gets,
at most; it is made of that a piece at a time (`large_answers`), so it costs time and no memory.

Both follow from the rows, their lengths and the shapes that the model declares. An output may have
an axis whose size only the answer tells (an axis that is neither the batch nor the length, BYTES):
such an answer is measured when it is there. One that is too large for the bounds is refused then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.rows import Array, RowAnswer, Rows
from runtimes.types import DTYPES, TensorSpec

MAX_HELD_BYTES = 64 << 20
MAX_SENT_BYTES = 256 << 20
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

    def json_bytes(self, elements: int) -> int:
        """So many of it as JSON, at most; of BYTES, about."""
        return elements * _JSON_BYTES[self.datatype] + 2 * self.text_bytes


@dataclass(slots=True)
class AnswerSize:
    """Of one request's answer, bytes. `known`: as in `OutputSize`, of all its outputs."""

    held: int
    sent: int
    known: bool = True

    @property
    def is_small(self) -> bool:
        """Whether it may be encoded at once, on the event loop."""
        return self.held <= AT_ONCE_BYTES and self.sent <= AT_ONCE_BYTES


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


def size_of(outputs: Mapping[str, OutputSize], sent: int) -> AnswerSize:
    """Of an answer that takes `sent` bytes at most and is made of these outputs."""
    held, known = 0, True
    for output in outputs.values():
        held += output.held_bytes
        known = known and output.known
    return AnswerSize(held, sent, known)


def check(size: AnswerSize, rows: Rows, advice: str, param: str) -> None:
    """Raises BadRequest for an answer over a bound. `advice`: what makes it smaller, besides fewer
    rows."""
    if size.held <= MAX_HELD_BYTES and size.sent <= MAX_SENT_BYTES:
        return
    if size.held > MAX_HELD_BYTES:
        much = f"hold {size.held} bytes of outputs, of at most {MAX_HELD_BYTES}"
    else:
        much = f"take up to {size.sent} bytes, of at most {MAX_SENT_BYTES}"
    share = min(MAX_HELD_BYTES / max(size.held, 1), MAX_SENT_BYTES / max(size.sent, 1))
    fit = int(rows.count * share)
    fewer = f"send at most {fit} such rows at once" if fit else "send a shorter row"
    raise BadRequest(
        f"the answer to the request's rows ({rows.count}) would {much}; {fewer}{advice}",
        param=param,
    )
