"""One request's tensors as the rows that queue and batch, and rows' outputs as tensors again.

A row is what the scheduler deals in: its inputs flat and contiguous, their shapes, and its length,
read at `lengths_input` × `lengths_axis` (1 where the model has no length, an image's patches where
it takes images, a quarter of the bytes of a raw text). Nothing padded goes on: where the caller
sends the model's mask, it must be ones and then zeros in every row; rows are cut to their ones and
the mask itself is dropped, since runtimes make it from the lengths. Any other mask is refused
(left-padded rows would change their positions if cut). On the way back, an output that kept its
length axis is padded with zeros to the length the caller sent, so that it lines up with the
caller's mask; other ragged outputs are padded to the longest row of this request, never by what
else was in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from deployments.contract.description import ImageInput, ModelDescription
from deployments.contract.errors import BadRequest, RowFailed
from deployments.gateway.http.body import bound_of
from deployments.gateway.http.large_answers import declared
from deployments.gateway.http.protocols.classify import from_base64
from deployments.gateway.http.protocols.tensors import InferCall, RegionOutput, RowTensor, Tensor
from deployments.gateway.rows import Array, RowAnswer, RowColumn, Rows
from deployments.preprocess.images import Encoded
from deployments.settings.image import patches
from runtimes.types import DTYPES, TensorSpec, text_length

# name → (datatype, one array a row, of the row's own shape)
_MANY_BYTES = 65_536  # fewer are read at once, whatever the model takes
RowsOut = Mapping[str, tuple[str, Sequence[Array]]]
_MAX_KNOWN = 256


class ModelTensors(NamedTuple):
    """What each request asks of its model's tensors. `row_bytes`: of one row's outputs, as they are
    and as JSON together, at most; inf: their shapes do not say."""

    inputs: dict[str, TensorSpec]
    outputs: tuple[str, ...]
    row_bytes: float


_known: dict[int, tuple[ModelDescription, ModelTensors]] = {}  # by the description's id


def tensors_of(d: ModelDescription) -> ModelTensors:
    """Made once for each description: a dozen requests' work."""
    found = _known.get(id(d))
    if found is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        sizes = declared(Rows(1, (1,), {}), d).values()
        row_bytes = sum([each.held_bytes + each.json_bytes(each.dense) for each in sizes])
        known = all(each.known for each in sizes)
        inputs = {spec.name: spec for spec in d.inputs}
        outputs = tuple([spec.name for spec in d.outputs])
        found = _known[id(d)] = d, ModelTensors(inputs, outputs, row_bytes if known else inf)
    return found[1]


def row_shapes(image: ImageInput) -> dict[tuple[int, ...], int]:
    """Length by a row's shape."""
    shapes: dict[tuple[int, ...], int] = {}
    for height, width in image.sizes:
        nchw = (image.channels, height, width)
        shape = nchw if image.layout == "NCHW" else (height, width, image.channels)
        shapes[shape] = patches(height, width)
    return shapes


def image_lengths(rows: Sequence[Array], d: ModelDescription) -> tuple[int, ...]:
    """`BadRequest` for a row of no such shape: another size, or the axes in another order."""
    assert d.image is not None
    known = row_shapes(d.image)
    for index, row in enumerate(rows):
        if row.shape not in known:
            shapes = ", ".join(str(list(shape)) for shape in known)
            raise BadRequest(
                f"Input '{d.image.input}', row {index} has shape {list(row.shape)}; '{d.name}' "
                f"takes {shapes} ({d.image.layout}).",
                param="inputs",
            )
    return tuple(known[row.shape] for row in rows)


def encoded_images(call: InferCall, d: ModelDescription) -> list[Encoded] | None:
    """What has to be prepared; None where the tensor is the model's input already."""
    if d.image is None:
        return None
    for tensor in call.tensors:
        if tensor.name != d.image.input or tensor.datatype == d.image.datatype:
            continue
        shape = tensor.data.shape
        if tensor.datatype == "BYTES" and shape in ((shape[0],), (shape[0], 1)):
            return [from_base64(item) for item in tensor.data.reshape(-1).tolist()]
        if tensor.datatype == "UINT8" and len(shape) == 4 and shape[3] in (1, 3):
            return list(tensor.data)
        raise BadRequest(
            f"Input '{tensor.name}' is {tensor.datatype} of shape {list(shape)}; '{d.name}' takes "
            f"{d.image.datatype} as its metadata says, BYTES [n] of JPEG or PNG files, or UINT8 "
            "[n, height, width, 3 or 1] of RGB or grey levels.",
            param="inputs",
        )
    return None


def split(call: InferCall, d: ModelDescription) -> Rows:
    """The rows of a dense request. Arrays are views of the call's where nothing is cut."""
    specs = tensors_of(d).inputs
    dense: dict[str, Array] = {}
    count = 0
    for tensor in call.tensors:
        _check_tensor(tensor, specs, d)
        size = tensor.data.shape[0]
        if dense and size != count:
            raise BadRequest(
                f"Input '{tensor.name}' has {size} rows, '{call.tensors[0].name}' has {count}; "
                f"the first axis of all inputs is the batch and must be equal."
            )
        count = size
        check_count(count, d)
        dense[tensor.name] = tensor.data
    _check_given(dense, d)
    wanted = wanted_outputs(call, d)
    is_text = d.lengths_input is not None and d.lengths_axis == 0
    if is_text or d.image is not None or d.mask_input in dense:
        # A row of shape () must stay an array.
        columns = {
            name: list(data) if data.ndim > 1 else [data[row, ...] for row in range(count)]
            for name, data in dense.items()
        }
        return _measured(columns, specs, d, wanted)
    length = 1
    if d.lengths_input is not None:
        full = dense[d.lengths_input].shape[d.lengths_axis]
        (length,) = _bounded([full], d)
        if length != full:
            dense = {
                name: _shortened(data, specs[name], d.lengths_axis, full, length)
                for name, data in dense.items()
            }
    inputs = {
        name: RowColumn(
            specs[name].datatype,
            list(data.reshape(count, -1)) if count > 1 else [data.reshape(-1)],
            [data.shape[1:]] * count,
        )
        for name, data in dense.items()
    }
    return Rows(count, (length,) * count, inputs, wanted)


def _shortened(data: Array, spec: TensorSpec, axis: int, full: int, kept: int) -> Array:
    """As `_cut`, of rows that are all of one shape."""
    if len(spec.shape) <= axis or spec.shape[axis] != -1 or data.shape[axis] != full:
        return data
    return data[(slice(None),) * axis + (slice(kept),)]


def from_rows(columns: Mapping[str, list[Array]], d: ModelDescription) -> Rows:
    """The rows of a request that came ragged: by input, one array a row, of the row's own shape.

    Arrays have the model's datatypes already; every column has the same number of rows, at least 1.
    """
    specs = tensors_of(d).inputs
    for name, rows in columns.items():
        spec = _spec(name, specs, d)
        for index, row in enumerate(rows):
            if 0 in row.shape:
                raise BadRequest(f"Input '{name}': row {index} is empty.")
            if not _fits((1, *row.shape), spec.shape):
                raise _misshapen(f"Input '{name}', row {index}", row.shape, spec.shape[1:], d)
    _check_given(columns, d)
    return _measured(dict(columns), specs, d, None)


def from_tokens(
    tokens: Sequence[Sequence[int] | Array],
    d: ModelDescription,
    more: Mapping[str, list[Array]] | None = None,
) -> Rows:
    """One row a token list, as the model's length input; its other inputs must be optional, or
    among `more`."""
    spec = next((spec for spec in d.inputs if spec.name == d.lengths_input), None)
    if spec is None or len(spec.shape) != 2:
        raise BadRequest(f"The model '{d.name}' takes no token lists.", param="model")
    dtype = DTYPES[spec.datatype]
    check_count(len(tokens), d)
    try:
        rows = [np.asarray(row, dtype=dtype) for row in tokens]
    except OverflowError:
        raise BadRequest(f"A token id is out of {spec.datatype}'s range.", param="input") from None
    return from_rows({spec.name: rows, **(more or {})}, d)


def check_count(count: int, d: ModelDescription) -> None:
    """Before there is an object a row: a body of 64 MB can be seven million rows, which take 15 s
    to make. More than may wait could not be queued anyway."""
    if count > d.scheduling.core.max_queue_rows:
        raise BadRequest(
            f"the request has {count} rows; '{d.name}' takes at most "
            f"{d.scheduling.core.max_queue_rows} at once (queue.max_rows)",
            param="inputs",
        )


def check_columns(datatypes: Mapping[str, str], d: ModelDescription) -> None:
    """`BadRequest` for an input that the model does not have, or of another datatype."""
    specs = tensors_of(d).inputs
    for name, datatype in datatypes.items():
        spec = _spec(name, specs, d)
        if datatype != spec.datatype:
            raise _mistyped(name, datatype, spec.datatype, d)


def check_claim(shape: Sequence[int], size_bytes: int, d: ModelDescription) -> None:
    """Of a tensor, before its JSON of so many bytes is read: as `check_count`, and BodyTooLarge for
    more numbers than any request to the model may have."""
    check_count(shape[0], d)
    if size_bytes > _MANY_BYTES:
        bound_of(d, numbers=True).check_numbers(min(prod(shape), size_bytes))


def wanted_outputs(call: InferCall, d: ModelDescription) -> tuple[str, ...] | None:
    """The names the caller asked for, None for all; `BadRequest` for one the model lacks."""
    if not call.outputs:
        return None
    known = [spec.name for spec in d.outputs]
    for output in call.outputs:
        if output.name not in known:
            raise BadRequest(
                f"Unknown output '{output.name}'; '{d.name}' has {', '.join(known)}.",
                param="outputs",
            )
    return tuple(output.name for output in call.outputs)


def _spec(name: str, specs: Mapping[str, TensorSpec], d: ModelDescription) -> TensorSpec:
    try:
        return specs[name]
    except KeyError:
        raise BadRequest(
            f"Unknown input '{name}'; '{d.name}' takes {', '.join(specs)}.", param="inputs"
        ) from None


def _check_tensor(tensor: Tensor, specs: Mapping[str, TensorSpec], d: ModelDescription) -> None:
    spec = specs.get(tensor.name) or _spec(tensor.name, specs, d)
    if tensor.datatype != spec.datatype:
        raise _mistyped(tensor.name, tensor.datatype, spec.datatype, d)
    if not _fits(tensor.data.shape, spec.shape):
        raise _misshapen(f"Input '{tensor.name}'", tensor.data.shape, (-1, *spec.shape[1:]), d)


def _mistyped(name: str, found: str, wanted: str, d: ModelDescription) -> BadRequest:
    return BadRequest(f"Input '{name}' is {found}; '{d.name}' takes {wanted}.")


def _fits(shape: tuple[int, ...], spec: tuple[int, ...]) -> bool:
    """Equal ranks and equal fixed axes; the first is the batch and free."""
    if len(shape) != len(spec):
        return False
    for have, want in zip(shape[1:], spec[1:], strict=True):  # noqa: SIM110 - 0.2 us less
        if want not in (-1, have):
            return False
    return True


def _misshapen(
    label: str, shape: tuple[int, ...], spec: tuple[int, ...], d: ModelDescription
) -> BadRequest:
    return BadRequest(
        f"{label} has shape {list(shape)}; '{d.name}' takes {list(spec)} (-1: any length)."
    )


def _check_given(columns: Mapping[str, Any], d: ModelDescription) -> None:
    """Unknown ones have been refused."""
    if len(columns) == len(d.inputs):
        return
    missing = [
        spec.name
        for spec in d.inputs
        if spec.name not in columns
        and (spec.name not in d.optional_inputs or spec.name == d.lengths_input)
        and spec.name != d.mask_input
    ]
    if missing:
        raise BadRequest(
            f"'{d.name}' also needs the input{'s' if len(missing) > 1 else ''} "
            f"{', '.join(missing)}.",
            param="inputs",
        )


def _measured(
    columns: dict[str, list[Array]],
    specs: Mapping[str, TensorSpec],
    d: ModelDescription,
    outputs: tuple[str, ...] | None,
) -> Rows:
    """Lengths read and bounded, rows cut to them, the mask dropped."""
    count = len(next(iter(columns.values())))
    if d.image is not None:
        lengths = image_lengths(columns[d.image.input], d)
        return Rows(count, lengths, _flat(columns, specs), outputs)
    if d.lengths_input is None:
        return Rows(count, (1,) * count, _flat(columns, specs), outputs)
    if d.lengths_axis == 0:
        sizes = _bounded([text_length(row.item()) for row in columns[d.lengths_input]], d)
        return Rows(count, tuple(sizes), _flat(columns, specs), outputs)
    axis = d.lengths_axis - 1
    full = [row.shape[axis] for row in columns[d.lengths_input]]
    kept = full
    mask = columns.pop(d.mask_input, None) if d.mask_input else None
    if mask is not None:
        kept = [_ones(d, at, row, full[at]) for at, row in enumerate(mask)]
    kept = _bounded(kept, d)
    if kept != full:
        _cut(columns, specs, d.lengths_axis, list(zip(full, kept, strict=True)))
    return Rows(count, tuple(kept), _flat(columns, specs), outputs)


def _flat(
    columns: Mapping[str, list[Array]], specs: Mapping[str, TensorSpec]
) -> dict[str, RowColumn]:
    return {
        name: RowColumn(
            specs[name].datatype, [row.reshape(-1) for row in rows], [row.shape for row in rows]
        )
        for name, rows in columns.items()
    }


def _ones(d: ModelDescription, row: int, mask: Array, full: int) -> int:
    """How many ones the mask of a row starts with; nothing but zeros may follow."""
    if mask.shape != (full,):
        raise BadRequest(
            f"Input '{d.mask_input}', row {row} has shape {list(mask.shape)}; "
            f"it must be as long as '{d.lengths_input}': [{full}]."
        )
    count = int(np.count_nonzero(mask))
    if count == 0:
        raise BadRequest(f"Input '{d.mask_input}', row {row} is all zeros: the row has no tokens.")
    if not (mask[:count] == 1).all():
        raise BadRequest(
            f"Input '{d.mask_input}', row {row} must be ones and then zeros (padding at the end); "
            f"send each row's real tokens first, or leave the mask out."
        )
    return count


def _bounded(lengths: list[int], d: ModelDescription) -> list[int]:
    longest = max(lengths)
    if longest <= d.max_length:
        return lengths
    if d.truncate:
        return [min(length, d.max_length) for length in lengths]
    raise BadRequest(
        f"Row {lengths.index(longest)} is {longest} long; '{d.name}' takes at most {d.max_length}.",
        param="inputs",
    )


def _cut(
    columns: dict[str, list[Array]],
    specs: Mapping[str, TensorSpec],
    axis: int,
    full_and_kept: list[tuple[int, int]],
) -> None:
    before: tuple[slice, ...] = (slice(None),) * (axis - 1)
    for name, rows in columns.items():
        shape = specs[name].shape
        if len(shape) <= axis or shape[axis] != -1:
            continue
        columns[name] = [
            row[(*before, slice(kept))] if row.shape[axis - 1] == full else row
            for row, (full, kept) in zip(rows, full_and_kept, strict=True)
        ]


def by_output(rows: Rows, answers: tuple[RowAnswer, ...]) -> dict[str, tuple[str, list[Array]]]:
    """name → (datatype, one array a row), of the wanted outputs: a row may have come with those
    that others in its batch wanted."""
    first = answers[0].outputs
    return {
        name: (first[name][0], [answer.outputs[name][1] for answer in answers])
        for name in (first if rows.outputs is None else rows.outputs)
        if name in first
    }


def region_outputs(
    call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
) -> list[tuple[RegionOutput, RowTensor]]:
    """The outputs that go into shared memory, whatever protocol asked for them, and where."""
    if not call.placed:
        return []
    joined = join(call, rows, by_output(rows, answers), d)
    return [
        (asked.region, output)
        for asked, output in zip(call.outputs, joined, strict=True)
        if asked.region is not None
    ]


def join(call: InferCall, rows: Rows, rows_out: RowsOut, d: ModelDescription) -> list[RowTensor]:
    """The wanted outputs, in the order asked for, else the model's."""
    extent = sent_extent(call, d)
    if extent is not None and min(rows.lengths) == extent:
        extent = None
    names = [output.name for output in call.outputs] or tensors_of(d).outputs
    return [_joined(name, rows_out, d, rows.lengths, extent) for name in names]


def sent_extent(call: InferCall, d: ModelDescription) -> int | None:
    """How long the caller's own rows are, with their padding; None: rows have no length."""
    if d.lengths_axis == 0:  # a raw text
        return None
    for tensor in call.tensors:
        if tensor.name == d.lengths_input:
            extent: int = tensor.data.shape[d.lengths_axis]
            return extent
    return None


def _joined(
    name: str,
    rows_out: RowsOut,
    d: ModelDescription,
    lengths: tuple[int, ...],
    extent: int | None,
) -> RowTensor:
    if name not in rows_out:
        raise RowFailed(f"The model '{d.name}' returned no output '{name}'.")
    datatype, rows = rows_out[name]
    shape = rows[0].shape
    if len(rows) > 1 and any(row.shape != shape for row in rows):
        if any(row.ndim != len(shape) for row in rows):
            raise RowFailed("The model's rows differ in rank, so they cannot be one tensor.")
        shape = tuple([max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)])
    if extent is not None and _keeps_length(name, rows, d, lengths):
        axis = d.lengths_axis - 1
        shape = (*shape[:axis], extent, *shape[axis + 1 :])
    return RowTensor(name, datatype, rows, shape)


def _keeps_length(
    name: str, rows: Sequence[Array], d: ModelDescription, lengths: tuple[int, ...]
) -> bool:
    """Is the output as long as its row, along the axis where the input's length is read?"""
    shape = next(spec.shape for spec in d.outputs if spec.name == name)
    axis = d.lengths_axis
    if len(shape) <= axis or shape[axis] != -1:
        return False
    return tuple([row.shape[axis - 1] for row in rows]) == lengths
