"""Pads a ragged batch into dense arrays for a torch model, and cuts its outputs back into rows.

Like `dense` for stored graphs: inputs are padded to a common length, a missing mask is made, and
other optional inputs that are missing become zeros. If the device is prepared for more rows than
the batch has, the last row is repeated, because the model can take its values.

Keeps no tensors and does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtimes.errors import BadRows
from runtimes.graph import dense
from runtimes.types import DTYPES, Batch, Limits, Ragged, TensorSpec

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
    dense.check_ids(batch, model.limits.id_bounds)
    made = [_array(batch, spec, model, length) for spec in model.limits.inputs]
    return made if rows == batch.rows else [dense.filled_up(array, rows) for array in made]


def cut(array: Array, name: str, batch: Batch, model: TorchModel) -> Ragged:
    """The batch's own rows of an output, cut to their lengths."""
    datatype = next(spec.datatype for spec in model.limits.outputs if spec.name == name)
    return dense.cut(array[: batch.rows], batch.lengths, model.cut_axes.get(name), datatype)


def _array(batch: Batch, spec: TensorSpec, model: TorchModel, length: int) -> Array:
    ragged = batch.inputs.get(spec.name)
    if ragged is None and spec.name == model.limits.mask_input:
        return dense.mask(batch.lengths, length)
    if ragged is None:
        return np.zeros((batch.rows, length), DTYPES[spec.datatype])
    axis = model.lengthwise.get(spec.name)
    if axis is None:
        if len(set(ragged.shapes)) > 1:
            raise BadRows(f"the rows of input '{spec.name}' must have one shape in a batch")
        return dense.pad(ragged)
    if [shape[axis - 1] for shape in ragged.shapes] != list(batch.lengths):
        raise BadRows(f"the rows of input '{spec.name}' are not as long as the batch says")
    return dense.pad(ragged, length if axis == 1 else None)
