"""What requests become and answers are made from: tensors, and their forms on the wire.

Arrays are dense and C-contiguous, batch on axis 0; BYTES are objects of bytes, BF16 is
`ml_dtypes.bfloat16`. JSON may be nested as the shape is, or flat in row-major order. Values are
taken strictly: an INT64 tensor takes no `1.5` and no `true` (`1.0` is an integer, see `json_body`),
a UINT8 tensor no 256, a FP32 tensor nothing that would become infinite. Nothing is allocated by
what a shape claims: elements are counted first. FP16 and BF16 have no JSON form. Bytes are
little-endian without padding: BOOL is one byte, a BYTES element a 4-byte length and the bytes.
`unpack` copies only small misaligned data; else the array is a read-only view that keeps the body
alive. Source: Open Inference Protocol, "Tensor Data" and "Tensor Data Types"; Triton's binary
extension.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import json_body
from deployments.gateway.rows import Array
from runtimes.types import DTYPES

# Checked after decoding, so that an error can name the tensor.
Datatype = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(DTYPES)})]


def documented(description: str = "", **schema: Any) -> msgspec.Meta:
    """What the OpenAPI document says of a field that its type does not; decoding ignores it."""
    return msgspec.Meta(description=description or None, extra_json_schema=schema)


def any_of(*types: Any) -> dict[str, Any]:
    """The JSON Schema of a field that is decoded as one of these once its form is known."""
    return {"anyOf": [msgspec.json.schema(each) for each in types]}


class Tensor(msgspec.Struct):
    name: str
    datatype: str
    data: np.ndarray[Any, Any]


class RowTensor(msgspec.Struct):
    """One output of a request: its rows, and the shape that each of them is padded to."""

    name: str
    datatype: str
    rows: Sequence[np.ndarray[Any, Any]]
    shape: tuple[int, ...]

    @property
    def dense_shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.shape)

    @property
    def packed_bytes(self) -> int:
        """As binary data."""
        count = prod(self.dense_shape)
        if self.datatype != "BYTES":
            return count * DTYPES[self.datatype].itemsize
        return 4 * count + sum(len(item) for row in self.rows for item in row.reshape(-1).tolist())

    def padded(self) -> Iterator[np.ndarray[Any, Any]]:
        """Row by row, zeros (empty BYTES) behind what is shorter."""
        fill: Any = b"" if self.datatype == "BYTES" else 0
        for row in self.rows:
            if row.shape == self.shape:
                yield row
                continue
            padded = np.full(self.shape, fill, dtype=row.dtype)
            padded[tuple([slice(size) for size in row.shape])] = row
            yield padded

    @property
    def is_dense(self) -> bool:
        """Whether its rows are as they are sent: nothing is padded, or made of objects."""
        return self.datatype != "BYTES" and all(row.shape == self.shape for row in self.rows)

    def packed(self, most: int) -> Iterator[memoryview]:
        """The bytes of `packed_bytes` in pieces of at most `most`. Of numbers that need no padding
        they are views of the rows."""
        for part in runs(self.rows) if self.is_dense else self.padded():
            view = memoryview(pack(self.datatype, part))
            for start in range(0, len(view), most):
                yield view[start : start + most]

    def dense(self) -> Tensor:
        if len(self.rows) == 1 and self.rows[0].shape == self.shape:
            return Tensor(self.name, self.datatype, self.rows[0][None])
        if len(self.rows) * self.rows[0].nbytes > _MANY_BYTES and self.is_dense:
            first, *more = runs(self.rows)
            if not more:
                return Tensor(self.name, self.datatype, first.reshape(self.dense_shape))
        return Tensor(self.name, self.datatype, np.stack(list(self.padded())))


def runs(rows: Sequence[Array]) -> Iterator[Array]:
    """The elements of rows of numbers in order, as 1-D arrays: read-only views of what lies behind
    each other in one buffer, as the rows of one batch's answer do. Costs 0.5 us a row."""
    first, count, end = rows[0], 0, 0
    for row in rows:
        if not row.size:
            continue
        address: int = row.__array_interface__["data"][0]
        follows = address == end and row.base is first.base is not None
        if count and not (follows and row.flags.c_contiguous and first.flags.c_contiguous):
            yield _run(first, count)
            count = 0
        if not count:
            first = row
        count, end = count + row.size, address + row.nbytes
    if count:
        yield _run(first, count)


def _run(first: Array, count: int) -> Array:
    flat = np.ascontiguousarray(first).reshape(-1)
    if count == len(flat):
        return flat
    return np.lib.stride_tricks.as_strided(flat, (count,), (first.itemsize,), writeable=False)


class Region(NamedTuple):
    """`size` bytes of a registered shared memory region, from `offset` on."""

    region: str
    offset: int
    size: int


OCTETS = "application/octet-stream"


class Fetched(NamedTuple):
    """What is at a place. `media_type`: as the server says, without parameters."""

    content: memoryview
    media_type: str = OCTETS


def put_file(files: list[bytes], index: int, found: Fetched) -> None:
    """In place of the empty one that stands for it."""
    files[index] = bytes(found.content)


@dataclass(slots=True)
class ExternalInput:
    """Input that a request names instead of carrying it. `label`: what an error calls it; `at`: a
    place in shared memory, or a URL; `take`: puts the bytes into the call, raises BadRequest."""

    label: str
    at: Region | str
    take: Callable[[Fetched], None]


@dataclass(slots=True)
class RegionOutput:
    """An output that goes into shared memory. The other fields are known once the place is checked;
    `size`: bytes written there."""

    label: str
    at: Region
    key: str = ""
    begins: int = 0
    file: tuple[int, int] = (0, 0)
    size: int = 0


External = Sequence[ExternalInput | RegionOutput]


class RequestedOutput(msgspec.Struct):
    name: str
    binary: bool = False
    region: RegionOutput | None = None


class InferCall(msgspec.Struct):
    """One inference request. `outputs` empty: all of them; `binary_outputs`: the default form;
    `external`: tensors whose bytes are elsewhere, or are to go there; `model`, `version`: where the
    URL does not name them."""

    tensors: list[Tensor]
    id: str | None = None
    outputs: list[RequestedOutput] = msgspec.field(default_factory=list)
    binary_outputs: bool = False
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    external: External = ()
    model: str = ""
    version: str | None = None

    @property
    def placed(self) -> dict[str, RegionOutput]:
        """The outputs that go into shared memory, by name."""
        if not self.external:  # as of nearly all
            return {}
        return {each.name: each.region for each in self.outputs if each.region is not None}


@dataclass(slots=True)
class PredictCall:
    """`instances` (row format) or `inputs` (columnar), exactly one: values still JSON, since only
    the model knows their types."""

    instances: list[msgspec.Raw] | None
    inputs: msgspec.Raw | None
    external: External = ()


class EmbeddingsCall(msgspec.Struct):
    """`texts`, `tokens` or `images` (JPEG or PNG files; exactly one is set), in order; `base64`:
    encoding_format; `prompt`: name of one of the model's prompts; `kind`: what the texts are for,
    as `input_type`; `task`: what the caller takes the model for."""

    model: str
    texts: list[str] | None
    tokens: list[list[int]] | None
    base64: bool = False
    dimensions: int | None = None
    prompt: str | None = None
    kind: str | None = None
    task: str | None = None
    images: list[bytes] | None = None
    external: External = ()


@dataclass(slots=True)
class ClassifyCall:
    """`texts` or `images` (JPEG or PNG files), exactly one is set, in order; `top_k`: labels wanted
    of each, None for the model's own number."""

    texts: list[str] | None
    images: list[bytes] | None
    top_k: int | None = None
    external: External = ()


class Encoded(msgspec.Struct):
    """An answer's body with the headers that belong to its format. `more`: it is the body's
    beginning, and the rest is still to be made; `size`: of both, 0 where it is not known. `status`:
    HTTP's, of a refusal whose format has one of its own."""

    body: bytes
    content_type: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = msgspec.field(default_factory=list)
    more: bool = False
    size: int = 0
    status: int = 0


HALVES = frozenset({"FP16", "BF16"})
MAX_RANK = 16
MAX_DIM = 2**31 - 1

_NESTED = re.compile(rb"\s*\[\s*\[")
_KINDS: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": float, "V": float, "O": str}
_LENGTH = struct.Struct("<I")
_MANY_BYTES = 65_536  # more stay where they are, misaligned too: nothing is computed with them here


class Base64Bytes(msgspec.Struct):
    """TensorFlow Serving's form of an element that is no text."""

    b64: bytes


def dtype_of(datatype: str, name: str) -> np.dtype[Any]:
    """numpy's type of an Open Inference datatype; `BadRequest` naming the tensor if unknown."""
    try:
        return DTYPES[datatype]
    except KeyError:
        raise BadRequest(
            f"Tensor '{name}': unknown datatype '{datatype}'; "
            f"known datatypes are {', '.join(DTYPES)}."
        ) from None


def element_count(name: str, shape: Sequence[int]) -> int:
    """Π shape as an exact integer; `BadRequest` for axes below 1, above 2^31 - 1 or over 16."""
    if not 1 <= len(shape) <= MAX_RANK:
        raise BadRequest(
            f"Tensor '{name}': shape has {len(shape)} axes; it must have 1 to {MAX_RANK}."
        )
    if min(shape) < 1 or max(shape) > MAX_DIM:
        raise BadRequest(
            f"Tensor '{name}': every axis of shape {list(shape)} must be 1 to {MAX_DIM}."
        )
    return math.prod(shape)


def from_json(data: msgspec.Raw, name: str, datatype: str, shape: Sequence[int]) -> Array:
    """The dense array of `shape` that `data` (flat or nested) describes."""
    dtype = dtype_of(datatype, name)
    count = element_count(name, shape)
    if dtype.kind != "O" and json_body.is_long(data) and json_body.is_array(data):
        return _from_long_json(data, name, datatype, tuple(shape))
    try:
        values = json_body.integers(_decoder(datatype, 1), data)
    except json_body.DECODE_ERRORS as error:
        return _from_nested(data, name, datatype, shape, error)
    if len(values) != count:
        raise _miscounted(name, shape, len(values))
    return _array(values, name, dtype, datatype).reshape(shape)


def row_from_json(data: msgspec.Raw, name: str, datatype: str, rank: int) -> Array:
    """The array that `data`, nested `rank` deep, describes; its shape is what the nesting is."""
    dtype = dtype_of(datatype, name)
    if rank == 1 and dtype.kind != "O" and json_body.is_long(data) and json_body.is_array(data):
        long = _LongTensor(name, datatype, f"Input '{name}' ({datatype})", "value")
        return long.read(data, (json_body.elements(data),))
    try:
        values = json_body.integers(_row_decoder(datatype, rank), data)
    except json_body.DECODE_ERRORS as error:
        raise json_body.element(error, f"Input '{name}' ({datatype})", "value") from None
    array = _array(values, name, dtype, datatype)
    if array.ndim != rank:
        raise BadRequest(f"Input '{name}': the lists of one row differ in length.")
    return array


def _from_nested(
    data: msgspec.Raw, name: str, datatype: str, shape: Sequence[int], flat: Exception
) -> Array:
    dtype = DTYPES[datatype]
    if len(shape) == 1 or not _NESTED.match(memoryview(data)):
        raise json_body.element(flat, f"Tensor '{name}' ({datatype})") from None
    try:
        values = json_body.integers(_decoder(datatype, len(shape)), data)
    except json_body.DECODE_ERRORS as error:
        raise json_body.element(error, f"Tensor '{name}' ({datatype})") from None
    array = _array(values, name, dtype, datatype)
    if array.shape != tuple(shape):
        raise BadRequest(
            f"Tensor '{name}': data is nested as {list(array.shape)}, "
            f"but its shape is {list(shape)}."
        )
    return array


def _from_long_json(data: msgspec.Raw, name: str, datatype: str, shape: tuple[int, ...]) -> Array:
    found = json_body.elements(data)
    if found != math.prod(shape):
        raise _miscounted(name, shape, found)
    nested = len(shape) > 1 and json_body.is_nested(data)
    if nested and json_body.lists(data) != sum(
        math.prod(shape[:axis]) for axis in range(len(shape))
    ):
        raise _misnested(name, shape)
    tensor = _LongTensor(name, datatype, f"Tensor '{name}' ({datatype})", "data")
    return tensor.read(data, shape if nested else (found,)).reshape(shape)


class _LongTensor:
    """Numbers whose JSON is longer than a slice. `label`, `where`: what an error calls it."""

    def __init__(self, name: str, datatype: str, label: str, where: str) -> None:
        self._name, self._datatype, self._dtype = name, datatype, DTYPES[datatype]
        self._label, self._where = label, where
        self._breaks = json_body.Breaks()

    def read(self, data: msgspec.Raw, shape: tuple[int, ...]) -> Array:
        """`data`, nested as `shape` is. Raises BadRequest."""
        array = np.empty(shape, self._dtype)
        try:
            self._fill(array, data)
        except json_body.DECODE_ERRORS as error:
            raise json_body.element(error, self._label, self._where) from None
        return array

    def _fill(self, target: Array, data: msgspec.Raw) -> None:
        if not json_body.is_long(data):
            values = json_body.integers(_decoder(self._datatype, target.ndim), data)
            self._put(target, values)
        elif target.ndim == 1:
            self._fill_row(target, data)
        else:
            rows = json_body.rows(data, len(target))
            if len(rows) != len(target):
                raise _misnested(self._name, target.shape)
            for at, row in enumerate(rows):
                self._fill(target[at], row)
                self._breaks.take()

    def _fill_row(self, target: Array, data: msgspec.Raw) -> None:
        end = 0
        for at, part in json_body.pieces(data, _KINDS[self._dtype.kind]):
            end = at + len(part)
            self._put(target[at:end], part)
        if end != len(target):
            raise _misnested(self._name, target.shape)

    def _put(self, target: Array, values: list[Any]) -> None:
        array = _array(values, self._name, self._dtype, self._datatype)
        if array.shape != target.shape:
            raise _misnested(self._name, target.shape)
        target[...] = array


def _miscounted(name: str, shape: Sequence[int], found: int) -> BadRequest:
    return BadRequest(
        f"Tensor '{name}': shape {list(shape)} has {math.prod(shape)} elements, data has {found}."
    )


def _misnested(name: str, shape: Sequence[int]) -> BadRequest:
    return BadRequest(f"Tensor '{name}': data is not nested as a shape of {list(shape)} is.")


@cache
def _decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_nested(_KINDS[DTYPES[datatype].kind], depth))


@cache
def _row_decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    of = DTYPES[datatype].kind
    kind = str | Base64Bytes if of == "O" else _KINDS[of]
    return msgspec.json.Decoder(_nested(kind, depth))


def _nested(kind: Any, depth: int) -> Any:
    for _ in range(depth):
        kind = list[kind]
    return kind


def _array(values: Any, name: str, dtype: np.dtype[Any], datatype: str) -> Array:
    try:
        if dtype.kind in "fV":
            return _floats(values, name, dtype, datatype)
        if dtype.kind == "O":
            return _byte_strings(values)
        return np.array(values, dtype=dtype)
    except OverflowError:
        raise BadRequest(f"Tensor '{name}': {_out_of_range(values, dtype, datatype)}") from None
    except ValueError:
        raise BadRequest(
            f"Tensor '{name}': nested data must be rectangular; its lists differ in length."
        ) from None


def _floats(values: Any, name: str, dtype: np.dtype[Any], datatype: str) -> Array:
    with np.errstate(over="ignore"):
        array = np.array(values, dtype=dtype)
    if not np.isfinite(array).all():  # JSON itself has no infinity, so the cast made it
        raise BadRequest(f"Tensor '{name}': a value is out of {datatype}'s range.")
    return array


def _byte_strings(values: Any) -> Array:
    """Objects of `bytes`; ragged lists give fewer axes, which the caller's shape check finds."""
    texts = np.array(values, dtype=object)
    flat = texts.reshape(-1)
    flat[:] = [_as_bytes(value) for value in flat.tolist()]
    return texts


def _as_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return value.b64 if isinstance(value, Base64Bytes) else value


def _out_of_range(values: Any, dtype: np.dtype[Any], datatype: str) -> str:
    info = np.iinfo(dtype)
    while isinstance(values, list) and values and isinstance(values[0], list):
        values = [value for inner in values for value in inner]
    flat = values if isinstance(values, list) else [values]
    first = next((v for v in flat if not info.min <= v <= info.max), "a value")
    return f"{str(first)[:24]} is out of {datatype}'s range {info.min} to {info.max}."


if sys.byteorder != "little":  # numpy's native types stand for the wire's everywhere below
    raise ImportError("binary tensors are little-endian, this machine is not")


def unpack(
    view: memoryview, name: str, datatype: str, shape: Sequence[int], size: str = "binary_data_size"
) -> Array:
    """The dense array of `shape` in `view`, which holds this tensor's bytes and nothing else.
    `size`: what the request calls their number."""
    dtype = dtype_of(datatype, name)
    count = element_count(name, shape)
    if datatype == "BYTES":
        return _unpack_bytes(view, name, count, size).reshape(shape)
    if len(view) != count * dtype.itemsize:
        raise BadRequest(
            f"Tensor '{name}': {datatype} of shape {list(shape)} takes {count * dtype.itemsize} "
            f"bytes, {size} is {len(view)}."
        )
    if datatype == "BOOL" and np.frombuffer(view, dtype=np.uint8).max() > 1:
        raise BadRequest(f"Tensor '{name}': a BOOL element must be the byte 0 or 1.")
    flat = np.frombuffer(view, dtype=dtype)
    is_kept = flat.flags.aligned or len(view) > _MANY_BYTES
    return (flat if is_kept else flat.copy()).reshape(shape)


def _unpack_bytes(view: memoryview, name: str, count: int, size: str) -> Array:
    if count * 4 > len(view):  # before anything of that size is allocated
        raise BadRequest(f"Tensor '{name}': {len(view)} bytes cannot hold {count} BYTES elements.")
    flat = np.empty(count, dtype=object)
    at = 0
    for index in range(count):
        start = at + 4
        at = start + _LENGTH.unpack_from(view, at)[0] if start <= len(view) else start
        if at > len(view):
            raise BadRequest(f"Tensor '{name}': BYTES element {index} runs over the tensor's data.")
        flat[index] = bytes(view[start:at])
    if at != len(view):
        raise BadRequest(
            f"Tensor '{name}': {count} BYTES elements take {at} bytes, {size} is {len(view)}."
        )
    return flat


def pack(datatype: str, data: Array) -> bytes | memoryview:
    """The tensor's bytes; a view of `data` where that is what they are."""
    if datatype == "BYTES":
        return b"".join([_LENGTH.pack(len(item)) + item for item in data.reshape(-1).tolist()])
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
