"""How are recorded rows kept in a file: one `.npz`, two arrays an input.

`NAME` holds the elements of all rows one after another, `NAME.shapes` a line of sizes a row; texts
are fixed-length byte strings. It is what `headrace record` writes and what a calibration reads. No
pickles, neither way.
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

Array = np.ndarray[Any, Any]


def write(file: Any, columns: Mapping[str, Sequence[Array]]) -> None:
    """`file`: a path or an open binary file. `columns`: by input, each row in its own shape, as
    many rows in each."""
    arrays: dict[str, Array] = {}
    for name, rows in columns.items():
        flat = [row.reshape(-1) for row in rows]
        data = np.concatenate(flat) if flat else np.zeros(0, np.int64)
        arrays[name] = data.astype("S") if data.dtype.kind == "O" else data
        arrays[name + SHAPES] = np.array([row.shape for row in rows], np.int64)
    np.savez(file, **arrays)  # type: ignore[arg-type]


def read(file: Path) -> dict[str, list[Array]]:
    """Rows by input; also of plain arrays with the rows on axis 0. Raises `LoadError`."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise LoadError(f"{file} cannot be read: {error}") from None
    columns = {
        name: _rows(file, name, array, arrays.get(name + SHAPES))
        for name, array in arrays.items()
        if not name.endswith(SHAPES)
    }
    counts = {name: len(rows) for name, rows in columns.items()}
    if len(set(counts.values())) > 1:
        raise LoadError(f"{file}: its arrays have unlike numbers of rows: {counts}")
    return columns


def _rows(file: Path, name: str, array: Array, shapes: Array | None) -> list[Array]:
    if shapes is None:
        return list(array)
    sizes = shapes.prod(axis=1)
    if array.ndim != 1 or int(sizes.sum()) != array.size or (shapes < 0).any():
        raise LoadError(f"{file}: {name}{SHAPES} does not fit {name}")
    parts = np.split(array, np.cumsum(sizes)[:-1]) if len(sizes) else []
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
