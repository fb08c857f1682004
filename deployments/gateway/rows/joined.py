"""Rows' outputs as the dense tensors that the caller's own shapes promise.

Equal rows are stacked. Where rows were cut to their real tokens (a mask, truncation) an output that
kept its length axis is padded with zeros (b"" for BYTES) to the length the caller sent, so that it
lines up with the caller's mask; other ragged outputs are padded to the longest row of this request.
Padding never depends on what else was in the batch. Only wanted outputs are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deployments.contract.description import ModelDescription
from deployments.contract.errors import RowFailed
from deployments.gateway.http.protocols.tensors import Array
from deployments.gateway.http.protocols.types import InferCall, Tensor
from deployments.gateway.rows.columns import Rows

# name → (datatype, one array a row, of the row's own shape)
RowsOut = Mapping[str, tuple[str, Sequence[Array]]]


def join(call: InferCall, rows: Rows, rows_out: RowsOut, d: ModelDescription) -> list[Tensor]:
    """Dense tensors of the wanted outputs, in the order asked for, else the model's."""
    extent = _cut_extent(call, rows, d)
    names = [output.name for output in call.outputs] or [spec.name for spec in d.outputs]
    return [_joined(name, rows_out, d, rows.lengths, extent) for name in names]


def _cut_extent(call: InferCall, rows: Rows, d: ModelDescription) -> int | None:
    """The caller's own length, None when no row is shorter than that."""
    for tensor in call.tensors:
        if tensor.name == d.lengths_input:
            extent: int = tensor.data.shape[d.lengths_axis]
            return extent if min(rows.lengths) < extent else None
    return None


def _joined(
    name: str,
    rows_out: RowsOut,
    d: ModelDescription,
    lengths: tuple[int, ...],
    extent: int | None,
) -> Tensor:
    if name not in rows_out:
        raise RowFailed(f"The model '{d.name}' gave no output '{name}'.")
    datatype, rows = rows_out[name]
    if extent is None or not _keeps_length(name, rows, d, lengths):
        return Tensor(name, datatype, _dense(rows, None, datatype))
    return Tensor(name, datatype, _dense(rows, (d.lengths_axis - 1, extent), datatype))


def _keeps_length(
    name: str, rows: Sequence[Array], d: ModelDescription, lengths: tuple[int, ...]
) -> bool:
    """Is the output as long as its row, along the axis where the input's length is read?"""
    shape = next(spec.shape for spec in d.outputs if spec.name == name)
    axis = d.lengths_axis
    if len(shape) <= axis or shape[axis] != -1:
        return False
    return tuple([row.shape[axis - 1] for row in rows]) == lengths


def _dense(rows: Sequence[Array], stretch: tuple[int, int] | None, datatype: str) -> Array:
    """[rows, …]: stacked, or padded to the longest row and, by `stretch`, one axis to a size."""
    first = rows[0].shape
    if stretch is None and all(row.shape == first for row in rows[1:]):
        return rows[0][None] if len(rows) == 1 else np.stack(rows)
    if any(row.ndim != len(first) for row in rows):
        raise RowFailed("The model's rows differ in rank and make no tensor.")
    shape = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    if stretch is not None:
        shape[stretch[0]] = stretch[1]
    fill: Any = b"" if datatype == "BYTES" else 0
    dense = np.full((len(rows), *shape), fill, dtype=rows[0].dtype)
    for index, row in enumerate(rows):
        dense[index][tuple(slice(size) for size in row.shape)] = row
    return dense
