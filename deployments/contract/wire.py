"""What crosses between a gateway and a replica: one call and one answer a batch; streams of pieces.

A ragged batch is one contiguous buffer a tensor plus the rows' shapes; nothing is padded. `shapes`
is None when every row is one-dimensional and as long as its length (the common case).
To a replica that generates, a gateway opens one stream and keeps it; every message on it holds what
all of the gateway's requests there have brought since the last one. Requests begin and are aborted
by short calls of their own, which return at once. Whatever happens to a request that has begun, its
last piece says how it ended; a stream that breaks loses all that ran on it.
Times are budgets and durations in seconds, never clock readings. Pickled, over Serve's gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from routers.types import FlowWork
from runtimes.datatypes import DTYPES
from runtimes.types import Batch, EngineLoad, Ragged

Shapes = tuple[tuple[int, ...], ...]


class Column(NamedTuple):
    """One tensor of a batch: datatype, all rows' elements (bytes, or a list of bytes for BYTES)."""

    datatype: str
    buffer: bytes | list[bytes]
    shapes: Shapes | None


class BatchCall(NamedTuple):
    """`budget_s`: how long anybody still waits for it. `lengths`: int32 [rows] as bytes.
    `outputs`: wanted names, None for all. rank, predicted_s, charges, waiting: as in
    `routers.types.Dispatch`; waiting None: as said before."""

    gateway: str
    lease_id: int
    budget_s: float
    lengths: bytes
    inputs: dict[str, Column]
    outputs: tuple[str, ...] | None
    rank: tuple[int, int, float] = (0, 0, 0.0)
    predicted_s: float = 0.0
    charges: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = ()


class RowError(NamedTuple):
    """`callers_fault`: the input is bad (400); else the runtime failed on this row alone (503)."""

    row: int
    callers_fault: bool
    message: str


class BatchReply(NamedTuple):
    """`busy`: nothing was started. `outputs` hold the rows that did not fail, in order.

    wait_s: from arrival at the replica to the device; service_s: on the device; stages: pad, copy
    in, run, copy out, post-process seconds; duty: share of the last 10 to 20 s of wall time that
    the device was busy. The rest as in `routers.types.Report`, seconds counted from the answer;
    waiting None: as said before.
    """

    busy: bool
    outputs: dict[str, Column]
    errors: tuple[RowError, ...]
    wait_s: float
    service_s: float
    padded_tokens: int
    stages: tuple[float, float, float, float, float]
    inflight: int
    held: int
    seen: int
    retry_in_s: float
    duty: float
    free_in_s: float = 0.0
    virtual_time: tuple[float, ...] = ()
    served: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = ()


def pack(datatype: str, rows: Sequence[np.ndarray[Any, Any]], shapes: Shapes | None) -> Column:
    """`rows`: flat arrays, one a row."""
    if datatype == "BYTES":
        return Column(datatype, [item for row in rows for item in row.tolist()], shapes)
    return Column(datatype, b"".join([row.tobytes() for row in rows]), shapes)


def to_batch(call: BatchCall) -> Batch:
    lengths = np.frombuffer(call.lengths, dtype=np.int32).astype(np.int64)
    default = tuple((n,) for n in lengths.tolist())
    inputs = {
        name: Ragged(c.datatype, _array(c), default if c.shapes is None else c.shapes)
        for name, c in call.inputs.items()
    }
    return Batch(len(default), lengths, inputs, call.outputs)


def from_ragged(outputs: Mapping[str, Ragged]) -> dict[str, Column]:
    return {name: Column(r.datatype, _buffer(r), r.shapes) for name, r in outputs.items()}


def rows_of(column: Column) -> list[np.ndarray[Any, Any]]:
    """Each row as an array of its own shape (views of one buffer)."""
    flat = _array(column)
    shapes = column.shapes or ()
    if len(set(shapes)) == 1:
        grid = flat.reshape((len(shapes), *shapes[0]))
        # Of single elements a list would hold scalars, bare bytes even, and no arrays.
        return list(grid) if shapes[0] else [grid[row, ...] for row in range(len(shapes))]
    rows, start = [], 0
    for shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        rows.append(flat[start : start + size].reshape(shape))
        start += size
    return rows


def _array(column: Column) -> np.ndarray[Any, Any]:
    if column.datatype == "BYTES":
        flat = np.empty(len(column.buffer), dtype=object)
        flat[:] = column.buffer
        return flat
    return np.frombuffer(column.buffer, dtype=DTYPES[column.datatype])  # type: ignore[arg-type]


def _buffer(ragged: Ragged) -> bytes | list[bytes]:
    return ragged.data.tolist() if ragged.datatype == "BYTES" else ragged.data.tobytes()


class StreamEnd(Enum):
    """How a request ended at its replica."""

    DONE = "done"  # answered, or refused by the engine: the piece has the answer and its status
    ABORTED = "aborted"  # the gateway asked for it
    BUSY = "busy"  # not begun: no room, or not the version that was asked for
    FAILED = "failed"  # the engine failed on it; it may run again elsewhere if nothing was sent


class GenerateCall(NamedTuple):
    """`endpoint`, `body`: as in `runtimes.types.Ask`. `budget_s`: how long anybody waits for it."""

    gateway: str
    lease_id: int
    endpoint: str
    body: bytes
    budget_s: float
    priority: int = 0


class Piece(NamedTuple):
    """What one request has brought since the last message; fields as in `runtimes.types.Chunk`.
    service_s: since it began here; `end` None: more is to come."""

    lease_id: int
    data: bytes
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    held_tokens: int
    service_s: float
    status: int = 200
    end: StreamEnd | None = None


class StepMessage(NamedTuple):
    """`held`, `seen`: as in `routers.types.Report`; `inflight`: requests of all gateways here;
    `load`: the engine's own account. An empty message says that the replica lives."""

    pieces: tuple[Piece, ...]
    held: int
    seen: int
    inflight: int
    load: EngineLoad
