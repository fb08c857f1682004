"""Padded arrays for a stored graph out of a ragged batch, and ragged rows out of its answers.

Inputs that are dynamic on the length axis are padded to the longest row, a missing mask is made,
missing optional inputs are zeros; of other dynamic axes all rows of a batch must have the same
size. Token ids are checked against the size of the table they index: a library would answer
garbage, or fail the whole batch, for one caller's bad id.

It runs no graph. Every fault found here is the caller's, `BadRows`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from runtimes import padding, rows, shapes
from runtimes.datatypes import DTYPES
from runtimes.errors import BadRows, RunError
from runtimes.signature import Signature
from runtimes.types import Batch, Limits, Ragged, TensorSpec

Array = np.ndarray[Any, Any]


def feed(batch: Batch, signature: Signature) -> tuple[dict[str, Array], int]:
    """One array an input, [rows, ...], and the padded length (1 where rows have none)."""
    limits = signature.limits
    rows.check(batch, limits)
    _refuse_empty(batch)
    _check_ids(batch, signature.id_bounds)
    longest = _padded_length(batch, signature)
    arrays = {spec.name: _input(batch, spec, limits, longest) for spec in limits.inputs}
    if signature.fixed_rows not in (None, batch.rows):
        arrays = {name: _filled_up(array, signature) for name, array in arrays.items()}
    return arrays, longest


def rows_of(array: Array, spec: TensorSpec, batch: Batch, signature: Signature) -> Ragged:
    """The batch's rows of one output, cut to their lengths; raises `RunError`."""
    expected = signature.fixed_rows or batch.rows
    if array.ndim == 0 or array.shape[0] != expected:
        raise RunError(f"output '{spec.name}' is {list(array.shape)} for {expected} rows")
    array = array[: batch.rows]
    axes = signature.length_axes.get(spec.name, ())
    if len(axes) > 1:
        return _cut_all(array, batch.lengths, axes, spec.datatype)
    return padding.cut(array, batch.lengths, axes[0] if axes else None, spec.datatype)


def _input(batch: Batch, spec: TensorSpec, limits: Limits, longest: int) -> Array:
    ragged = batch.inputs.get(spec.name)
    if ragged is None and spec.name == limits.mask_input:
        return padding.mask(batch.lengths, longest).astype(DTYPES[spec.datatype], copy=False)
    if ragged is None:
        return np.zeros((batch.rows, longest), DTYPES[spec.datatype])
    axis = limits.length_axis
    if limits.length_input is None or not follows_length(spec, axis):
        _refuse_mixed(ragged, spec, None)
        return padding.pad(ragged)
    _refuse_other_lengths(ragged, spec, batch, axis)
    _refuse_mixed(ragged, spec, axis - 1)
    return padding.pad(ragged, longest) if axis == 1 else padding.pad(ragged)


def follows_length(spec: TensorSpec, axis: int) -> bool:
    return len(spec.shape) > axis and spec.shape[axis] == -1


def _padded_length(batch: Batch, signature: Signature) -> int:
    limits = signature.limits
    if limits.length_input is None:
        return 1
    longest = int(batch.lengths.max())
    if limits.length_axis != 1:
        return longest
    if limits.fixed_edges:
        return shapes.edge_of(longest, limits.fixed_edges)
    longest = -(-longest // signature.pad_multiple) * signature.pad_multiple
    return longest if limits.max_length is None else min(longest, limits.max_length)


def _refuse_empty(batch: Batch) -> None:
    # Kernels meet empty tensors in no test of theirs; some divide by a size.
    for name, ragged in batch.inputs.items():
        if ragged.data.size == 0 or any(0 in shape for shape in ragged.shapes):
            row = next(row for row, shape in enumerate(ragged.shapes) if math.prod(shape) == 0)
            raise BadRows(f"row {row} of input '{name}' is empty")


def _check_ids(batch: Batch, bounds: Mapping[str, int]) -> None:
    for name, bound in bounds.items():
        data = batch.inputs[name].data if name in batch.inputs else None
        if data is None or (int(data.min()) >= 0 and int(data.max()) < bound):
            continue
        at = int(np.flatnonzero((data < 0) | (data >= bound))[0])
        sizes = [math.prod(shape) for shape in batch.inputs[name].shapes]
        row = int(np.searchsorted(np.cumsum(sizes), at, side="right"))
        raise BadRows(f"row {row} of input '{name}' holds {data[at]}, it must be 0 to {bound - 1}")


def _refuse_other_lengths(ragged: Ragged, spec: TensorSpec, batch: Batch, axis: int) -> None:
    for row, (shape, length) in enumerate(zip(ragged.shapes, batch.lengths, strict=True)):
        if shape[axis - 1] != length:
            raise BadRows(f"row {row} of input '{spec.name}' is {shape}, its length is {length}")


def _refuse_mixed(ragged: Ragged, spec: TensorSpec, length_axis: int | None) -> None:
    """All rows alike, but for the length: a dense tensor has one size an axis."""
    first = ragged.shapes[0]
    for shape in ragged.shapes:
        if shape != first and any(
            size != other
            for axis, (size, other) in enumerate(zip(shape, first, strict=True))
            if axis != length_axis
        ):
            raise BadRows(
                f"rows of input '{spec.name}' are {first} and {shape}, they must be alike"
            )


def _filled_up(array: Array, signature: Signature) -> Array:
    """The graph's own batch size, with the last row repeated: values that the model can take."""
    missing = (signature.fixed_rows or 0) - array.shape[0]
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def _cut_all(array: Array, lengths: Array, axes: tuple[int, ...], datatype: str) -> Ragged:
    parts = []
    for row, length in zip(array, lengths, strict=True):
        sizes = (int(length) if axis + 1 in axes else size for axis, size in enumerate(row.shape))
        parts.append(row[tuple(slice(size) for size in sizes)])
    data = np.concatenate([part.reshape(-1) for part in parts])
    return Ragged(datatype, data, tuple(part.shape for part in parts))
