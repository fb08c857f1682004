"""Which rows did the user give to be compared?

Three kinds: JSON lines, each `{"text": …}` (tokenised as the service would), `{"ids": […]}` or
`{"inputs": {name: nested lists}}`; `.npz` with an array of rows for each input; the folder that
`headrace record` writes, whose `.npz` is ragged: `NAME` flat, `NAME.shapes` a line a row. Rows are
checked against what the model declares, so that a mistake is the file's line and not a failed run.
Nothing is unpickled.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deployments.errors import BadRequest
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.verify.errors import CannotVerify
from deployments.verify.samples import Sample
from runtimes.datatypes import DTYPES
from runtimes.types import Limits, TensorSpec

RECORDED = "samples.npz"
SHAPES = ".shapes"
_CACHE_BYTES = 0

Array = np.ndarray[Any, Any]


class SampleFile:
    """`tokenizer`: tokenizer.json's bytes, empty for a model without texts."""

    def __init__(self, limits: Limits, tokenizer: bytes) -> None:
        self._limits = limits
        self._tokenizer = tokenizer
        self._texts: TextTokenizer | None = None

    def read(self, path: Path) -> list[Sample]:
        """Every row of the file. Raises `CannotVerify` with its line or row."""
        file = path / RECORDED if path.is_dir() else path
        if not file.is_file():
            raise CannotVerify(f"{file}: no such file; must be .jsonl, .npz or a recorded folder")
        if file.suffix == ".npz":
            rows: Iterator[tuple[str, Mapping[str, Array]]] = self._arrays(file)
        elif file.suffix == ".jsonl":
            rows = self._lines(file)
        else:
            raise CannotVerify(f"{file}: must be .jsonl, .npz or a recorded folder")
        samples = [self._sample(where, row) for where, row in rows]
        if not samples:
            raise CannotVerify(f"{file}: has no rows")
        return samples

    def _lines(self, file: Path) -> Iterator[tuple[str, Mapping[str, Array]]]:
        for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
            if line.strip():
                where = f"{file}:{number}"
                yield where, self._of_line(where, line)

    def _of_line(self, where: str, line: str) -> Mapping[str, Array]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CannotVerify(f"{where}: is no JSON: {error}") from None
        kinds = {"text", "ids", "inputs"} & set(row) if isinstance(row, dict) else set()
        if len(kinds) != 1:
            raise CannotVerify(f"{where}: must be an object with text, ids or inputs")
        (kind,) = kinds
        if kind == "text":
            return self._of_text(where, row["text"])
        if kind == "ids":
            return {self._length_input(where): self._array(where, "ids", row["ids"])}
        if not isinstance(row["inputs"], dict):
            raise CannotVerify(f"{where}: inputs must be an object of names and values")
        return {name: self._array(where, name, value) for name, value in row["inputs"].items()}

    def _of_text(self, where: str, text: Any) -> Mapping[str, Array]:
        if not isinstance(text, str):
            raise CannotVerify(f"{where}: text must be a text")
        if not self._tokenizer:
            raise CannotVerify(f"{where}: the model has no tokenizer.json; give ids or inputs")
        if self._texts is None:
            longest = self._limits.max_length or 1 << 20
            self._texts = TextTokenizer(self._tokenizer, longest, False, _CACHE_BYTES)
        try:
            (ids,) = self._texts.encode([text])
        except BadRequest as error:
            raise CannotVerify(f"{where}: {str(error).replace('input[0]', 'the text')}") from None
        return {self._length_input(where): ids}

    def _length_input(self, where: str) -> str:
        if self._limits.length_input is None:
            raise CannotVerify(f"{where}: the model takes no token ids; give inputs")
        return self._limits.length_input

    def _array(self, where: str, name: str, value: Any) -> Array:
        spec = self._spec(where, "" if name == "ids" else name)
        try:
            if spec.datatype == "BYTES":
                raw = np.array(value, object)
                encoded: Array = np.vectorize(lambda t: str(t).encode(), otypes=[object])(raw)
                return encoded
            made = np.array(value)
            if made.dtype.kind not in "biuf" or (made.dtype.kind == "f" and "INT" in spec.datatype):
                raise ValueError(f"holds {made.dtype}")
            return made.astype(DTYPES[spec.datatype])
        except (ValueError, TypeError, OverflowError) as error:
            raise CannotVerify(f"{where}: {name} is no {spec.datatype}: {error}") from None

    def _spec(self, where: str, name: str) -> TensorSpec:
        wanted = name or self._length_input(where)
        for spec in self._limits.inputs:
            if spec.name == wanted:
                return spec
        known = ", ".join(spec.name for spec in self._limits.inputs)
        raise CannotVerify(f"{where}: the model has no input {wanted!r}, it has {known}")

    def _arrays(self, file: Path) -> Iterator[tuple[str, Mapping[str, Array]]]:
        try:
            with np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise CannotVerify(f"{file}: cannot be read: {error}") from None
        columns = {
            name: self._column(file, name, array, arrays.get(name + SHAPES))
            for name, array in arrays.items()
            if not name.endswith(SHAPES)
        }
        counts = {name: len(rows) for name, rows in columns.items()}
        if len(set(counts.values())) > 1:
            raise CannotVerify(f"{file}: its arrays have unlike numbers of rows: {counts}")
        for row in range(next(iter(counts.values()), 0)):
            yield f"{file}, row {row}", {name: rows[row] for name, rows in columns.items()}

    def _column(self, file: Path, name: str, array: Array, shapes: Array | None) -> list[Array]:
        spec = self._spec(str(file), name)
        if array.dtype.kind == "S":
            array = array.astype(object)
        elif not np.can_cast(array.dtype, DTYPES[spec.datatype], "same_kind"):
            raise CannotVerify(f"{file}: {name} is {array.dtype}, it must be {spec.datatype}")
        else:
            array = array.astype(DTYPES[spec.datatype])
        if shapes is None:
            return list(array)
        sizes = shapes.prod(axis=1)
        if array.ndim != 1 or int(sizes.sum()) != array.size:
            raise CannotVerify(f"{file}: {name}{SHAPES} does not fit {name}")
        parts = np.split(array, np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _sample(self, where: str, row: Mapping[str, Array]) -> Sample:
        limits = self._limits
        specs = {spec.name: spec for spec in limits.inputs}
        for name, array in row.items():
            wanted = self._spec(where, name).shape[1:]
            if len(array.shape) != len(wanted) or any(
                size not in (-1, have) for size, have in zip(wanted, array.shape, strict=True)
            ):
                raise CannotVerify(
                    f"{where}: {name} is {list(array.shape)}, it must be {list(wanted)} "
                    "(-1: any size)"
                )
        missing = [n for n in specs if n not in row and n not in limits.optional_inputs]
        if missing:
            raise CannotVerify(f"{where}: lacks the input {', '.join(missing)}")
        if limits.length_input is None:
            return Sample(row, 1, drawn=False)
        length = row[limits.length_input].shape[limits.length_axis - 1]
        if not 1 <= length <= (limits.max_length or length):
            raise CannotVerify(
                f"{where}: has {length} tokens; the model takes 1 to {limits.max_length}"
            )
        return Sample(row, length, drawn=False)
