"""From a lease to its call, and from a reply to each row's answer.

Rows of different callers may name different optional inputs; a batch has them all, zeros where a
caller left one out (masks never travel: runtimes make them from the lengths). Buffers are joined
once; a reply's rows are views of its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deployments.contract import errors
from deployments.contract.batch_wire import BatchCall, BatchReply, Column, pack, rows_of
from deployments.gateway.rows.columns import Rows
from routers.types import Dispatch, FlowWork
from runtimes.datatypes import DTYPES


@dataclass(slots=True)
class RowAnswer:
    """One row's outputs by name (datatype, array), or its error; which version of the model
    answered, and how the time was spent."""

    outputs: dict[str, tuple[str, np.ndarray[Any, Any]]] = field(default_factory=dict)
    error: errors.HeadraceError | None = None
    dispatched: float = 0.0
    service_s: float = 0.0
    batch_size: int = 0
    bucket: int = 0
    version: str = ""


def build_call(
    gateway: str,
    lease: Dispatch,
    members: Sequence[Rows],
    budget_s: float,
    waiting: tuple[FlowWork, ...] | None = None,
) -> BatchCall:
    """`members[i]` holds the payload of `lease.rows[i]`. `waiting`: see `wire.BatchCall`."""
    rows = [(payload, row) for payload, (_, row) in zip(members, lease.rows, strict=True)]
    lengths = np.array([payload.lengths[row] for payload, row in rows], dtype=np.int32)
    names = dict.fromkeys(name for payload in members for name in payload.inputs)
    inputs = {name: _column(name, rows) for name in names}
    return BatchCall(
        gateway, lease.lease_id, budget_s, lengths.tobytes(), inputs, _wanted(members),
        lease.rank, lease.predicted_s, lease.charges, waiting,
    )  # fmt: skip


def _wanted(members: Sequence[Rows]) -> tuple[str, ...] | None:
    names: dict[str, None] = {}
    for payload in members:
        if payload.outputs is None:
            return None
        names.update(dict.fromkeys(payload.outputs))
    return tuple(names)


def _column(name: str, rows: Sequence[tuple[Rows, int]]) -> Column:
    datatype = next(payload.inputs[name] for payload, _ in rows if name in payload.inputs).datatype
    arrays: list[np.ndarray[Any, Any]] = []
    shapes: list[tuple[int, ...]] = []
    plain = True
    for payload, row in rows:
        column = payload.inputs.get(name)
        length = payload.lengths[row]
        if column is None:
            arrays.append(np.zeros(length, dtype=DTYPES[datatype]))
            shapes.append((length,))
            continue
        arrays.append(column.rows[row])
        shapes.append(column.shapes[row])
        plain = plain and column.shapes[row] == (length,)
    return pack(datatype, arrays, None if plain else tuple(shapes))


def deliver_rows(
    lease: Dispatch, dispatched: float, version: str, reply: BatchReply
) -> list[RowAnswer]:
    """The answer of every row of the lease, in order. Raises ValueError for a reply that does not
    account for all of them."""
    failed = {e.row: e for e in reply.errors}
    columns = {name: (c.datatype, rows_of(c)) for name, c in reply.outputs.items()}
    size, at = len(lease.rows), 0
    if any(len(rows) != size - len(failed) for _, rows in columns.values()):
        raise ValueError(f"the reply to {size} rows holds others")
    answers = []
    for position in range(size):
        fault = failed.get(position)
        answer = RowAnswer({}, None, dispatched, reply.service_s, size, lease.bucket, version)
        if fault is not None:
            answer.error = _row_error(fault.callers_fault, fault.message)
        else:
            answer.outputs = {n: (datatype, rows[at]) for n, (datatype, rows) in columns.items()}
            at += 1
        answers.append(answer)
    return answers


def _row_error(callers_fault: bool, message: str) -> errors.HeadraceError:
    if callers_fault:
        return errors.BadRequest(message)
    return errors.RowFailed(
        "the model failed on this request, alone; it may be tried again", retry_after_s=1.0
    )
