"""The rows that both sides of a comparison run: drawn ones of every length, or a user's own.

A sample is one row of every input that must be given. Drawn samples are spread evenly over the
length buckets, with the shortest and the longest row of each, and ids evenly over the model's
table. Everything follows from the seed.

A user's file holds JSON lines, each `{"text": …}`, `{"image": file}` (made into tensors as the
service would), `{"ids": […]}` or `{"inputs": {name: nested lists}}`; or it is `.npz` with an array
of rows for each input, or the folder that `headrace record` writes. Rows are checked against what
the model declares; a mistake is reported with the file's line. Nothing is unpickled.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deployments.contract.errors import BadRequest, BadText
from deployments.preprocess.images import prepared
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.replica.describe import image_input
from deployments.replica.verify.agreement import Interval
from deployments.settings.image import ImageSettings
from deployments.settings.reference import CannotVerify
from runtimes import ragged_file, warmup
from runtimes.errors import LoadError
from runtimes.types import DTYPES, Batch, Limits, Ragged, TensorSpec

LEAST = 200  # samples of a verdict
_BYTES = 256  # values of an 8-bit number
_UNKNOWN_IDS = 2  # values drawn for a whole number that indexes nothing known: a mask, a token type

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One row."""

    inputs: Mapping[str, Array]  # one array an input, without the batch axis
    length: int  # tokens; 1 for rows without lengths
    drawn: bool = True  # made here, rather than given by the user


def intervals(limits: Limits, edges: Sequence[int]) -> tuple[Interval, ...]:
    """The length buckets, shortest first. Rows without lengths have one bucket; rows whose shape
    decides their length have one for each length."""
    if limits.row_shapes is not None:
        return tuple(Interval(length, length) for length in limits.row_shapes.lengths)
    if limits.length_input is None:
        return (Interval(0, 0),)
    longest = limits.max_length or max(edges)
    tops = sorted({min(edge, longest) for edge in edges} | {longest})
    bottoms = [1, *(top + 1 for top in tops[:-1])]
    return tuple(Interval(*ends) for ends in zip(bottoms, tops, strict=True))


def interval_of(length: int, among: Sequence[Interval]) -> Interval:
    """The bucket that a row of this length falls into."""
    if not among[-1].longest:
        return among[-1]
    return among[min(bisect_left([each.longest for each in among], length), len(among) - 1)]


def drawn(
    limits: Limits, among: Sequence[Interval], count: int, rng: np.random.Generator
) -> list[Sample]:
    """At least `count` samples: at least two a bucket; what does not divide goes to the longest."""
    each, more = divmod(count, len(among))
    samples = []
    for interval in among:
        wanted = max(2, each) + (more if interval is among[-1] else 0)
        lengths = _lengths(interval, wanted, rng)
        samples += [Sample(_row(limits, length, rng), length) for length in lengths]
    return samples


def completed(
    given: Sequence[Sample], limits: Limits, among: Sequence[Interval], rng: np.random.Generator
) -> list[Sample]:
    """The given samples, and drawn ones for buckets that none of them falls into."""
    met = {interval_of(sample.length, among) for sample in given}
    missing = [interval for interval in among if interval not in met]
    share = max(2, LEAST // (2 * len(among)))
    more = drawn(limits, missing, share * len(missing), rng) if missing else []
    return [*given, *more]


def batches(
    samples: Sequence[Sample], among: Sequence[Interval], max_size: int, max_tokens: int
) -> Iterator[tuple[Interval, list[int]]]:
    """Indices into `samples`, bucket by bucket, in batches as large as the model would get."""
    by_bucket: dict[Interval, list[int]] = {interval: [] for interval in among}
    for place, sample in enumerate(samples):
        by_bucket[interval_of(sample.length, among)].append(place)
    for interval, places in by_bucket.items():
        size = max(1, min(max_size, max_tokens // max(1, interval.longest)))
        for start in range(0, len(places), size):
            yield interval, places[start : start + size]


def batch_of(limits: Limits, samples: Sequence[Sample]) -> Batch:
    """The samples as rows of one batch."""
    specs = {spec.name: spec for spec in limits.inputs}
    inputs = {}
    for name in samples[0].inputs:
        rows = [sample.inputs[name] for sample in samples]
        data = np.concatenate([row.reshape(-1) for row in rows])
        inputs[name] = Ragged(specs[name].datatype, data, tuple(row.shape for row in rows))
    lengths = np.array([sample.length for sample in samples], np.int64)
    return Batch(len(samples), lengths, inputs)


def _lengths(interval: Interval, count: int, rng: np.random.Generator) -> list[int]:
    if not interval.longest:
        return [1] * count
    others = rng.integers(interval.shortest, interval.longest + 1, count - 2)
    return [interval.longest, interval.shortest, *others.tolist()]


def _row(limits: Limits, length: int, rng: np.random.Generator) -> dict[str, Array]:
    limits = warmup.of_length(limits, length)
    return {
        spec.name: _values(spec, limits, length, rng)
        for spec in limits.inputs
        if spec.name not in limits.optional_inputs
    }


def _values(spec: TensorSpec, limits: Limits, length: int, rng: np.random.Generator) -> Array:
    axis = limits.length_axis if limits.length_input else None
    # As in the warm-up: a dynamic axis that is not the length has size 1.
    sizes = warmup.sized(spec, axis, 1, length)[1:]
    shape = tuple(1 if size == -1 else size for size in sizes)
    dtype = DTYPES[spec.datatype]
    if spec.datatype == "BYTES":
        made = np.empty(shape, object)
        made[...] = f"text {rng.integers(1_000_000)}".encode()
        return made
    if spec.datatype == "BOOL":
        return rng.integers(0, 2, shape).astype(dtype)
    if "INT" in spec.datatype:
        few = _BYTES if dtype.itemsize == 1 else _UNKNOWN_IDS
        bound = limits.id_bounds.get(spec.name, few)
        return rng.integers(0, min(bound, np.iinfo(dtype).max), shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


_CACHE_BYTES = 0
KINDS = {"text", "image", "ids", "inputs"}


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
            rows = self._arrays(file)
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
        except BadText as error:
            raise CannotVerify(f"{where}: the text {error.wrong}") from None
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
            known = {shape: length for length, shape in limits.row_shapes.shapes}
            shape = row[limits.row_shapes.input or ""].shape
            if shape not in known:
                raise CannotVerify(f"{where}: is {shape}, it must be one of {list(known)}")
            return Sample(row, known[shape], drawn=False)
        if limits.length_input is None:
            return Sample(row, 1, drawn=False)
        length = row[limits.length_input].shape[limits.length_axis - 1]
        if not 1 <= length <= (limits.max_length or length):
            raise CannotVerify(
                f"{where}: has {length} tokens; the model takes 1 to {limits.max_length}"
            )
        return Sample(row, length, drawn=False)
