"""Does a row's answer depend on the rows that run beside it?

It must not: answers are cached, shared and repeated in other batches. A graph that scales its
activations while it runs (dynamic int8) breaks this: up to 1.1 logits were measured. So a graph
that somebody else made runs rows alone and together before it is served, and both are compared.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from runtimes.errors import RuntimeFault
from runtimes.types import (
    DTYPES,
    Batch,
    Limits,
    Ragged,
    Runtime,
    RuntimeSettings,
    TensorSpec,
)

# Of a row alone and in a batch: a value next to a rounding step may fall to either side of it.
TOLERANCES = {"fp32": 1e-5, "bf16": 3e-2, "fp16": 4e-3, "int8": 5e-2, "fp8": 5e-2}
# Of the output's largest value: in which order numbers are added depends on a batch's shape.
_BOUNDS = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 0.1, "int8": 0.1, "fp8": 0.1}
IDS = 90
_LENGTHS = (3, 17, 9, 33)
_GRAPHS = frozenset({".onnx", ".xml", ".pt2"})
logger = logging.getLogger("headrace.replica")


def rows_depend(runtime: Runtime, settings: RuntimeSettings) -> str:
    """How the answers of a graph's file differ, as a sentence; "" where they do not, for folders,
    whose graphs are made here, where batches have one row, and where no rows could be made."""
    limits, source = runtime.limits(), settings.source
    if source is None or source.suffix not in _GRAPHS or limits.row_shapes is not None:
        return ""
    longest = limits.max_length or max(_LENGTHS)
    rows = min(len(_LENGTHS), settings.max_size, limits.max_rows or len(_LENGTHS))
    if rows < 2:
        return ""
    lengths = _LENGTHS if limits.length_input is not None else (1,) * len(_LENGTHS)
    lengths = tuple(min(each, longest) for each in lengths[:rows])
    why: Exception | None = None
    for below in (IDS, 10, 2):  # tables of few entries take few ids
        try:
            batch = batch_of(limits, lengths, 0, below)
            together = runtime.run(batch)
            alone = [runtime.run(row_of(batch, row)) for row in range(rows)]
            break
        except (RuntimeFault, ValueError) as error:
            why = error
    else:
        logger.warning("whether rows depend on each other could not be tried: %s", why)
        return ""
    for name, ragged in together.outputs.items():
        if ragged.data.dtype == object:
            continue
        for row, single in enumerate(alone):
            mine, own = (
                np.asarray(each.data, np.float64)
                for each in (one(ragged, row), single.outputs[name])
            )
            apart = float(np.max(np.abs(mine - own), initial=0)) if mine.size == own.size else 0.0
            scale = float(np.max(np.abs(np.asarray(ragged.data, np.float64)), initial=0))
            if apart > _BOUNDS.get(limits.precision, 0.1) * scale:
                return f"its output {name} of a row changes by up to {apart:.3g} with other rows"
    return ""


def batch_of(
    limits: Limits, lengths: tuple[int, ...], seed: int = 0, ids_below: int = IDS
) -> Batch:
    """Rows with values of their own: row r is the same whatever batch of that seed it stands in."""
    needed = [spec for spec in limits.inputs if spec.name not in limits.optional_inputs]
    inputs = {spec.name: _ragged(spec, lengths, seed, ids_below) for spec in needed}
    return Batch(len(lengths), np.array(lengths, np.int64), inputs)


def _ragged(spec: TensorSpec, lengths: tuple[int, ...], seed: int, ids_below: int) -> Ragged:
    rows = []
    for row, length in enumerate(lengths):
        # Python hashes texts anew in every process, so the name enters by its bytes.
        random = np.random.default_rng([seed, row, *spec.name.encode()])
        shape = tuple(size if size >= 0 else length for size in spec.shape[1:])
        rows.append(_values(spec.datatype, shape, random, ids_below))
    data = np.concatenate([values.reshape(-1) for values in rows])
    return Ragged(spec.datatype, data, tuple(values.shape for values in rows))


def _values(
    datatype: str, shape: tuple[int, ...], random: np.random.Generator, ids_below: int
) -> np.ndarray[Any, Any]:
    if datatype == "BYTES":
        values = np.empty(shape, dtype=object)
        values[...] = b"row \xc3\xa9 %d" % random.integers(1000)
        return values
    if datatype.startswith("INT"):
        return random.integers(1, ids_below, shape).astype(DTYPES[datatype])
    return random.normal(size=shape).astype(DTYPES[datatype])


def row_of(batch: Batch, row: int) -> Batch:
    inputs = {name: one(ragged, row) for name, ragged in batch.inputs.items()}
    return Batch(1, batch.lengths[row : row + 1], inputs, batch.outputs)


def one(ragged: Ragged, row: int) -> Ragged:
    start = sum(math.prod(shape) for shape in ragged.shapes[:row])
    end = start + math.prod(ragged.shapes[row])
    return Ragged(ragged.datatype, ragged.data[start:end], (ragged.shapes[row],))
