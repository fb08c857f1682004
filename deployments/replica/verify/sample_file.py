"""Reads the rows that a user gives for a comparison.

Three kinds of files: JSON lines, each `{"text": …}` or `{"image": file}` (made into tensors as the
service would), `{"ids": […]}` or `{"inputs": {name: nested lists}}`; `.npz` with an array of rows
for each input; the folder that `headrace record` writes, whose `.npz` is ragged
(`runtimes.ragged_file`). Rows are checked against what the model declares, so that a mistake is
reported with the file's line instead of as a failed run. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deployments.contract.errors import BadRequest
from deployments.preprocess.images import prepared
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.replica.image_model import image_input
from deployments.replica.verify.samples import Sample
from deployments.settings.image import ImageSettings
from deployments.settings.reference import CannotVerify
from runtimes import ragged_file
from runtimes.datatypes import DTYPES
from runtimes.errors import LoadError
from runtimes.types import Limits, TensorSpec

_CACHE_BYTES = 0
KINDS = {"text", "image", "ids", "inputs"}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """How texts and images become rows."""

    tokenizer: bytes = b""  # tokenizer.json; empty: the model takes no texts
    image: ImageSettings | None = None  # the settings' section; None: the model takes no images


class SampleFile:
    """Reads files for one model. `limits`: what the model declares."""

    def __init__(self, limits: Limits, reading: Reading) -> None:
        self._limits = limits
        self._tokenizer = reading.tokenizer
        self._image = image_input(reading.image, limits)
        self._texts: TextTokenizer | None = None

    def read(self, path: Path) -> list[Sample]:
        """Every row of the file. Raises `CannotVerify` with the line or row at fault."""
        file = path / ragged_file.FILE if path.is_dir() else path
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
                yield where, self._of_line(where, line, file.parent)

    def _of_line(self, where: str, line: str, folder: Path) -> Mapping[str, Array]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CannotVerify(f"{where}: is no JSON: {error}") from None
        kinds = KINDS & set(row) if isinstance(row, dict) else set()
        if len(kinds) != 1:
            raise CannotVerify(f"{where}: must be an object with text, image, ids or inputs")
        (kind,) = kinds
        if kind == "text":
            return self._of_text(where, row["text"])
        if kind == "image":
            return self._of_image(where, row["image"], folder)
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

    def _of_image(self, where: str, named: Any, folder: Path) -> Mapping[str, Array]:
        if self._image is None or not isinstance(named, str):
            raise CannotVerify(
                f"{where}: image must be a file, of a model whose settings say image"
            )
        try:
            return {self._image.input: prepared(self._image, (folder / named).read_bytes(), named)}
        except (OSError, BadRequest) as error:
            raise CannotVerify(f"{where}: {error}") from None

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
            stored = ragged_file.read(file)
        except LoadError as error:
            raise CannotVerify(str(error)) from None
        columns = {name: self._column(file, name, rows) for name, rows in stored.items()}
        for row in range(min(map(len, columns.values()), default=0)):
            yield f"{file}, row {row}", {name: rows[row] for name, rows in columns.items()}

    def _column(self, file: Path, name: str, rows: list[Array]) -> list[Array]:
        wanted = DTYPES[self._spec(str(file), name).datatype]
        found = rows[0].dtype if rows else wanted
        if found.kind == "S" and wanted.kind == "O":
            return [row.astype(object) for row in rows]
        if not np.can_cast(found, wanted, "same_kind"):
            datatype = self._spec(str(file), name).datatype
            raise CannotVerify(f"{file}: {name} is {found}, it must be {datatype}")
        return [row.astype(wanted) for row in rows]

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
        if limits.row_shapes is not None:
            return Sample(row, self._shaped(where, row[limits.row_shapes.input or ""]), drawn=False)
        if limits.length_input is None:
            return Sample(row, 1, drawn=False)
        length = row[limits.length_input].shape[limits.length_axis - 1]
        if not 1 <= length <= (limits.max_length or length):
            raise CannotVerify(
                f"{where}: has {length} tokens; the model takes 1 to {limits.max_length}"
            )
        return Sample(row, length, drawn=False)

    def _shaped(self, where: str, array: Array) -> int:
        """The length of a row whose shape decides its length."""
        assert self._limits.row_shapes is not None
        known = {shape: length for length, shape in self._limits.row_shapes.shapes}
        if array.shape not in known:
            raise CannotVerify(f"{where}: is {array.shape}, it must be one of {list(known)}")
        return known[array.shape]
