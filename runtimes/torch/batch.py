"""Pads a ragged batch into dense arrays for a torch model, and cuts its outputs back into rows.

Like `dense` for stored graphs: inputs are padded to a common length, a missing mask is made, and
other optional inputs that are missing become zeros. If the device is prepared for more rows than
the batch has, the last row is repeated, because the model can take its values.

Keeps no tensors and does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtimes import padding
from runtimes.datatypes import DTYPES
from runtimes.errors import BadRows
from runtimes.types import Batch, Limits, Ragged, TensorSpec

if TYPE_CHECKING:  # at run time it would import torch
    from runtimes.torch.model import TorchModel

Array = np.ndarray[Any, Any]


def longest(batch: Batch, limits: Limits) -> int:
    """Length of a row after padding, at least 1, so that no kernel gets an empty tensor."""
    if limits.length_input is None:
        return 1
    return max(1, int(batch.lengths.max()))


def arrays(batch: Batch, model: TorchModel, rows: int, length: int) -> list[Array]:
    """An array [rows, ...] for each input, in the model's order. Raises `BadRows`.

    `rows` and `length`: the shape to fill up to, at least the batch's own.
    """
    made = [_array(batch, spec, model, length) for spec in model.limits.inputs]
    return made if rows == batch.rows else [_filled_up(array, rows) for array in made]


def cut(array: Array, name: str, batch: Batch, model: TorchModel) -> Ragged:
    """The batch's own rows of an output, cut to their lengths."""
    axis = model.cut_axes.get(name)
    return padding.cut(array[: batch.rows], batch.lengths, axis, datatype(model.limits, name))


def datatype(limits: Limits, name: str) -> str:
    return next(spec.datatype for spec in limits.outputs if spec.name == name)


def _array(batch: Batch, spec: TensorSpec, model: TorchModel, length: int) -> Array:
    ragged = batch.inputs.get(spec.name)
    if ragged is not None:
        _check_ids(ragged, spec.name, model.limits.id_bounds.get(spec.name))
        return _padded(ragged, spec, batch, model, length)
    if spec.name == model.limits.mask_input:
        return padding.mask(batch.lengths, length)
    return np.zeros((batch.rows, length), DTYPES[spec.datatype])


def _padded(ragged: Ragged, spec: TensorSpec, batch: Batch, model: TorchModel, to: int) -> Array:
    axis = model.lengthwise.get(spec.name)
    if axis is None:
        if len(set(ragged.shapes)) > 1:
            raise BadRows(f"the rows of input '{spec.name}' must have one shape in a batch")
        return padding.pad(ragged)
    if [shape[axis - 1] for shape in ragged.shapes] != list(batch.lengths):
        raise BadRows(f"the rows of input '{spec.name}' are not as long as the batch says")
    return padding.pad(ragged, to if axis == 1 else None)


def _check_ids(ragged: Ragged, name: str, bound: int | None) -> None:
    if bound is None or not ragged.data.size:
        return
    low, high = int(ragged.data.min()), int(ragged.data.max())
    if low < 0 or high >= bound:
        wrong = low if low < 0 else high
        raise BadRows(f"input '{name}' contains {wrong}; the model takes 0 to {bound - 1}")


def _filled_up(array: Array, rows: int) -> Array:
    return np.concatenate([array, np.repeat(array[-1:], rows - array.shape[0], axis=0)])
