"""Recorded rows in a file: one `.npz`, two arrays an input.

`NAME` holds the elements of all rows one after another, `NAME.shapes` a line of sizes a row; of
texts `NAME` holds the bytes and `NAME.lengths` how many each has. It is what `headrace record`
writes and what a calibration reads. No pickles, neither way.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtimes.errors import LoadError

FILE = "samples.npz"
SHAPES = ".shapes"
LENGTHS = ".lengths"

Array = np.ndarray[Any, Any]


def write(file: Any, columns: Mapping[str, Sequence[Array]]) -> None:
    """`file`: a path or an open binary file. `columns`: by input, each row in its own shape, as
    many rows in each."""
    arrays: dict[str, Array] = {}
    for name, rows in columns.items():
        flat = [row.reshape(-1) for row in rows]
        data = np.concatenate(flat) if flat else np.zeros(0, np.int64)
        if data.dtype.kind == "O":
            texts: list[bytes] = data.tolist()
            arrays[name + LENGTHS] = np.array([len(text) for text in texts], np.int64)
            data = np.frombuffer(b"".join(texts), np.uint8)
        arrays[name] = data
        arrays[name + SHAPES] = np.array([row.shape for row in rows], np.int64)
    # By hand: `np.savez` takes names as arguments, and an input may be called as one of its.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def read(file: Path) -> dict[str, list[Array]]:
    """Rows by input; also of plain arrays with the rows on axis 0. Raises `LoadError`."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise LoadError(f"{file} cannot be read: {error}") from None
    columns = {
        name: _rows(file, name, _elements(file, name, arrays), arrays.get(name + SHAPES))
        for name in arrays
        if not name.endswith((SHAPES, LENGTHS))
    }
    counts = {name: len(rows) for name, rows in columns.items()}
    if len(set(counts.values())) > 1:
        raise LoadError(f"{file}: its arrays have unlike numbers of rows: {counts}")
    return columns


def _elements(file: Path, name: str, arrays: Mapping[str, Array]) -> Array:
    data, lengths = arrays[name], arrays.get(name + LENGTHS)
    if lengths is None:
        return data
    if data.dtype != np.uint8 or (lengths < 0).any() or int(lengths.sum()) != data.size:
        raise LoadError(f"{file}: {name}{LENGTHS} does not fit {name}")
    ends = np.cumsum(lengths)
    texts = np.empty(len(lengths), object)
    texts[:] = [data[end - size : end].tobytes() for end, size in zip(ends, lengths, strict=True)]
    return texts


def _rows(file: Path, name: str, array: Array, shapes: Array | None) -> list[Array]:
    if shapes is None:
        return list(array)
    sizes = shapes.prod(axis=1)
    if array.ndim != 1 or int(sizes.sum()) != array.size or (shapes < 0).any():
        raise LoadError(f"{file}: {name}{SHAPES} does not fit {name}")
    parts = np.split(array, np.cumsum(sizes)[:-1]) if len(sizes) else []
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
