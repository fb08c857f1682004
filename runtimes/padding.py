"""Turns a ragged batch into the padded array that a device needs, and back.

`pad` and `cut` are each other's inverse: rows one after another in a flat buffer on one side, a
dense array with the batch on axis 0 on the other. Padding is zero (an empty byte string for BYTES).
Work is one vectorised copy for rows of one axis, none where the rows have the same shape.

It takes microseconds a batch and knows nothing of what tensors mean: the caller says which axis is
the length, and no value is checked.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from runtimes.errors import BadRows, RunError
from runtimes.types import Ragged

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def pad(ragged: Ragged, to: int | None = None) -> Array:
    """[rows, *longest of each axis], zero filled; `to` widens the rows' first axis to that size.

    Rows of one shape come back as a view of `ragged.data`, so the result is read-only to callers.
    Raises `BadRows` when rows differ in their number of axes or the buffer does not hold them.
    """
    shapes = ragged.shapes
    if not shapes:
        return ragged.data.reshape(0, *(() if to is None else (to,)))
    target = _target(shapes, to)
    elements = sum(map(math.prod, shapes))
    if elements != ragged.data.size:
        raise BadRows(f"the rows' shapes hold {elements} values, {ragged.data.size} were given")
    if all(shape == target for shape in shapes):
        return ragged.data.reshape(len(shapes), *target)
    padded = _blank((len(shapes), *target), ragged.data.dtype)
    if len(target) == 1:
        lengths = np.fromiter((shape[0] for shape in shapes), np.int64, len(shapes))
        padded[_filled(lengths, target[0])] = ragged.data
    else:
        _fill_blocks(padded, ragged.data, shapes)
    return padded


def mask(lengths: Array, longest: int) -> Array:
    """int64 [rows, longest]: 1 where a row has a token, 0 where it is padded."""
    return _filled(np.asarray(lengths), longest).astype(np.int64)


def cut(array: Array, lengths: Array, axis: int | None, datatype: str) -> Ragged:
    """The rows of `array` ([rows, ...]); each keeps its first `lengths[row]` along `axis`.

    `axis` counts the batch as 0; None keeps the rows as they are (a view where the memory allows).
    Raises `RunError` when a row is shorter than its length: then the axis was not the length's.
    """
    rows, row_shape = array.shape[0], tuple(array.shape[1:])
    if axis is None:
        return Ragged(datatype, np.ascontiguousarray(array).reshape(-1), (row_shape,) * rows)
    width = array.shape[axis]
    if rows and int(lengths.max()) > width:
        raise RunError(f"an output has {width} places on axis {axis}, a row has more tokens")
    shapes = tuple(_resized(row_shape, axis - 1, int(length)) for length in lengths)
    if rows and int(lengths.min()) == width:
        return Ragged(datatype, np.ascontiguousarray(array).reshape(-1), shapes)
    return Ragged(datatype, _kept(array, lengths, axis), shapes)


def _kept(array: Array, lengths: Array, axis: int) -> Array:
    if array.ndim == 2:
        return array[_filled(lengths, array.shape[1])]
    lead = (slice(None),) * (axis - 1)
    corners = [(*lead, slice(int(length))) for length in lengths]
    parts = [row[corner].reshape(-1) for row, corner in zip(array, corners, strict=True)]
    return np.concatenate(parts) if parts else array.reshape(-1)


def _target(shapes: tuple[Shape, ...], to: int | None) -> Shape:
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        raise BadRows("the rows of a batch differ in their number of axes")
    longest = tuple(map(max, zip(*shapes, strict=True)))
    if to is None or not longest:
        return longest
    if longest[0] > to:
        raise BadRows(f"a row of {longest[0]} does not fit into {to}")
    return (to, *longest[1:])


def _filled(lengths: Array, longest: int) -> Array:
    filled: Array = np.arange(longest) < lengths[:, None]
    return filled


def _fill_blocks(padded: Array, data: Array, shapes: tuple[Shape, ...]) -> None:
    start = 0
    for row, shape in enumerate(shapes):
        end = start + math.prod(shape)
        corner = tuple(slice(size) for size in shape)
        padded[row][corner] = data[start:end].reshape(shape)
        start = end


def _blank(shape: Shape, dtype: np.dtype[Any]) -> Array:
    return np.full(shape, b"", dtype) if dtype.kind == "O" else np.zeros(shape, dtype)


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])
