"""A stored graph seen as rows of some length: padded arrays in, ragged rows out.

From a graph's own inputs and outputs, and what the settings say, follow the `Limits` that a runtime
declares. Which axis of an output follows the length is no guess: two batches of neighbouring
lengths are run, and the axes that grew with them are it.

Inputs that are dynamic on the length axis are padded to the longest row, a missing mask is made,
missing optional inputs are zeros. Token ids are checked against the size of the table they index: a
library would answer garbage, or fail the whole batch, for one caller's bad id. Padding is zero (an
empty byte string for BYTES) and takes microseconds a batch: one vectorised copy for rows of one
axis, none where the rows have the same shape. It runs no graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from runtimes import rows, warmup
from runtimes.errors import BadRows, LoadError, RunError
from runtimes.graph.bert import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPES
from runtimes.types import DTYPES, PROMPT_MASK, Batch, Limits, Ragged, RuntimeSettings, TensorSpec

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What an opened graph says of itself; shapes as stored, -1 dynamic, axis 0 the batch.

    id_bounds: inputs that index a table, with its number of entries. max_length: what the model's
    configuration declares, None when unknown.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    id_bounds: Mapping[str, int] = field(default_factory=dict)
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """`limits` as declared; `fixed_rows`: the batch size that the graph was stored with, None when
    any will do; `length_axes`: of each output, the axes that are cut to a row's length."""

    limits: Limits
    id_bounds: Mapping[str, int]
    fixed_rows: int | None = None
    pad_multiple: int = 1
    length_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def declare(
    facts: GraphFacts, settings: RuntimeSettings, platform: str, pad_multiple: int = 1
) -> Signature:
    """Raises `LoadError` where the settings ask for what the graph lacks."""
    specs = {spec.name: spec for spec in facts.inputs}
    length_input = _length_input(specs, settings)
    mask = None
    if length_input:
        name = settings.mask_input or ATTENTION_MASK
        if name in specs and len(specs[name].shape) == 2:
            mask = name
        elif settings.mask_input:
            raise LoadError(f"lengths.mask '{name}' is no input of shape [rows, length]")
    left_out = {mask, TOKEN_TYPES, PROMPT_MASK} - {length_input} if length_input else set()
    fixed_rows = _fixed_rows((*facts.inputs, *facts.outputs))
    limits = Limits(
        inputs=tuple(map(_any_rows, facts.inputs)),
        outputs=tuple(map(_any_rows, facts.outputs)),
        max_rows=fixed_rows,
        max_length=rows.longest(settings, facts.max_length) if length_input else None,
        length_input=length_input,
        length_axis=rows.axis(settings),
        mask_input=mask,
        optional_inputs=tuple(n for n, s in specs.items() if n in left_out and len(s.shape) == 2),
        precision=settings.precision,
        platform=platform,
        id_bounds=facts.id_bounds,
    )
    return Signature(limits, facts.id_bounds, fixed_rows, pad_multiple)


def probe_lengths(limits: Limits, smallest_edge: int) -> tuple[int, int]:
    """Two neighbouring lengths that the model is meant for."""
    longer = max(2, smallest_edge)
    if limits.max_length is not None:
        longer = min(longer, limits.max_length)
    return max(1, longer - 1), longer


def with_length_axes(
    signature: Signature, lengths: tuple[int, int], shapes: tuple[list[Shape], list[Shape]]
) -> Signature:
    """The signature that knows its outputs' length axes, from two probes' output shapes."""
    axes = {}
    for spec, short, long in zip(signature.limits.outputs, *shapes, strict=True):
        pairs = list(zip(spec.shape, short, long, strict=True))
        axes[spec.name] = tuple(
            axis
            for axis, (declared, *sizes) in enumerate(pairs)
            if axis > 0 and declared == -1 and tuple(sizes) == lengths and len(set(lengths)) == 2
        )
    return replace(signature, length_axes=axes)


def _length_input(specs: Mapping[str, TensorSpec], settings: RuntimeSettings) -> str | None:
    name, axis = settings.length_input, rows.axis(settings)
    if name is None:
        found = specs.get(INPUT_IDS)
        return INPUT_IDS if found and follows_length(found, axis) else None
    if name not in specs:
        raise LoadError(f"lengths.input '{name}' is no input; the model has {', '.join(specs)}")
    if not follows_length(specs[name], axis):
        shape = list(specs[name].shape)
        raise LoadError(f"lengths.axis {axis} of input '{name}' is not dynamic: {shape}")
    return name


def _fixed_rows(specs: tuple[TensorSpec, ...]) -> int | None:
    for spec in specs:
        if not spec.shape:
            raise LoadError(f"'{spec.name}' is a single number: axis 0 must be the batch")
    fixed = {spec.shape[0] for spec in specs} - {-1}
    if len(fixed) > 1:
        raise LoadError(f"axis 0 must be the batch, but it is {sorted(fixed)} at once")
    return next(iter(fixed), None)


def _any_rows(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(-1, *spec.shape[1:]))


Array = np.ndarray[Any, Any]


def feed(batch: Batch, signature: Signature) -> tuple[dict[str, Array], int]:
    """One array an input, [rows, ...], and the padded length (1 where rows have none)."""
    limits = signature.limits
    rows.check(batch, limits)
    # Kernels meet empty tensors in no test of theirs; some divide by a size.
    for name, ragged in batch.inputs.items():
        if ragged.data.size == 0 or any(0 in shape for shape in ragged.shapes):
            row = next(row for row, shape in enumerate(ragged.shapes) if math.prod(shape) == 0)
            raise BadRows(f"row {row} of input '{name}' is empty")
    check_ids(batch, signature.id_bounds)
    longest = _padded_length(batch, signature)
    arrays = {spec.name: _input(batch, spec, limits, longest) for spec in limits.inputs}
    if signature.fixed_rows is not None and signature.fixed_rows != batch.rows:
        arrays = {name: filled_up(array, signature.fixed_rows) for name, array in arrays.items()}
    return arrays, longest


def rows_of(array: Array, spec: TensorSpec, batch: Batch, signature: Signature) -> Ragged:
    """The batch's rows of one output, cut to their lengths; raises `RunError`."""
    expected = signature.fixed_rows or batch.rows
    if array.ndim == 0 or array.shape[0] != expected:
        raise RunError(f"output '{spec.name}' is {list(array.shape)} for {expected} rows")
    array = array[: batch.rows]
    axes = signature.length_axes.get(spec.name, ())
    if len(axes) <= 1:
        return cut(array, batch.lengths, axes[0] if axes else None, spec.datatype)
    parts = []
    for row, length in zip(array, batch.lengths, strict=True):
        sizes = (int(length) if axis + 1 in axes else size for axis, size in enumerate(row.shape))
        parts.append(row[tuple(slice(size) for size in sizes)])
    data = np.concatenate([part.reshape(-1) for part in parts])
    return Ragged(spec.datatype, data, tuple(part.shape for part in parts))


def _input(batch: Batch, spec: TensorSpec, limits: Limits, longest: int) -> Array:
    ragged = batch.inputs.get(spec.name)
    if ragged is None and spec.name == limits.mask_input:
        return mask(batch.lengths, longest).astype(DTYPES[spec.datatype], copy=False)
    if ragged is None:
        return np.zeros((batch.rows, longest), DTYPES[spec.datatype])
    axis = limits.length_axis
    if limits.length_input is None or not follows_length(spec, axis):
        _refuse_mixed(ragged, spec, None)
        return pad(ragged)
    for row, (shape, length) in enumerate(zip(ragged.shapes, batch.lengths, strict=True)):
        if shape[axis - 1] != length:
            raise BadRows(f"row {row} of input '{spec.name}' is {shape}, its length is {length}")
    _refuse_mixed(ragged, spec, axis - 1)
    return pad(ragged, longest) if axis == 1 else pad(ragged)


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
        return warmup.edge_of(longest, limits.fixed_edges)
    longest = -(-longest // signature.pad_multiple) * signature.pad_multiple
    return longest if limits.max_length is None else min(longest, limits.max_length)


def check_ids(batch: Batch, bounds: Mapping[str, int]) -> None:
    """Raises `BadRows` for a token id that is no entry of its table."""
    for name, bound in bounds.items():
        data = batch.inputs[name].data if name in batch.inputs else None
        if data is None or not data.size or (int(data.min()) >= 0 and int(data.max()) < bound):
            continue
        at = int(np.flatnonzero((data < 0) | (data >= bound))[0])
        sizes = [math.prod(shape) for shape in batch.inputs[name].shapes]
        row = int(np.searchsorted(np.cumsum(sizes), at, side="right"))
        raise BadRows(f"row {row} of input '{name}' holds {data[at]}, it must be 0 to {bound - 1}")


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


def filled_up(array: Array, rows: int) -> Array:
    """So many rows, with the last one repeated: values that the model can take."""
    return np.concatenate([array, np.repeat(array[-1:], rows - array.shape[0], axis=0)])


def pad(ragged: Ragged, to: int | None = None) -> Array:
    """[rows, *longest of each axis], zero filled; `to` widens the rows' first axis to that size.

    Rows of one shape come back as a view of `ragged.data`, so the result is read-only to callers.
    Raises `BadRows` when rows differ in their number of axes or the buffer does not hold them.
    """
    shapes = ragged.shapes
    if not shapes:
        return ragged.data.reshape(0, *(() if to is None else (to,)))
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        raise BadRows("the rows of a batch differ in their number of axes")
    target = tuple(map(max, zip(*shapes, strict=True)))
    if to is not None and target:
        if target[0] > to:
            raise BadRows(f"a row of {target[0]} does not fit into {to}")
        target = (to, *target[1:])
    elements = sum(map(math.prod, shapes))
    if elements != ragged.data.size:
        raise BadRows(f"the rows' shapes hold {elements} values, {ragged.data.size} were given")
    if all(shape == target for shape in shapes):
        return ragged.data.reshape(len(shapes), *target)
    dtype, whole = ragged.data.dtype, (len(shapes), *target)
    padded = np.full(whole, b"", dtype) if dtype.kind == "O" else np.zeros(whole, dtype)
    if len(target) == 1:
        lengths = np.fromiter((shape[0] for shape in shapes), np.int64, len(shapes))
        padded[_filled(lengths, target[0])] = ragged.data
        return padded
    start = 0
    for row, shape in enumerate(shapes):
        end = start + math.prod(shape)
        padded[row][tuple(slice(size) for size in shape)] = ragged.data[start:end].reshape(shape)
        start = end
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
    shapes = tuple((*row_shape[: axis - 1], int(n), *row_shape[axis:]) for n in lengths)
    if rows and int(lengths.min()) == width:
        return Ragged(datatype, np.ascontiguousarray(array).reshape(-1), shapes)
    if array.ndim == 2:
        return Ragged(datatype, array[_filled(lengths, array.shape[1])], shapes)
    lead = (slice(None),) * (axis - 1)
    corners = [(*lead, slice(int(length))) for length in lengths]
    parts = [row[corner].reshape(-1) for row, corner in zip(array, corners, strict=True)]
    return Ragged(datatype, np.concatenate(parts) if parts else array.reshape(-1), shapes)


def _filled(lengths: Array, longest: int) -> Array:
    filled: Array = np.arange(longest) < lengths[:, None]
    return filled
