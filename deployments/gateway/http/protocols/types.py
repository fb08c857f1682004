"""What every protocol's request becomes and every answer is made from.

Tensors are dense, C-contiguous arrays of the declared shape (dtype object of bytes for BYTES,
`ml_dtypes.bfloat16` for BF16), batch on axis 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np

from runtimes.types import DTYPES

# Checked after decoding, so that an error can name the tensor.
Datatype = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(DTYPES)})]


def documented(description: str = "", **schema: Any) -> msgspec.Meta:
    """What the OpenAPI document says of a field that its type does not; decoding ignores it."""
    return msgspec.Meta(description=description or None, extra_json_schema=schema)


def any_of(*types: Any) -> dict[str, Any]:
    """The JSON Schema of a field that is decoded as one of these once its form is known."""
    return {"anyOf": [msgspec.json.schema(each) for each in types]}


@dataclass(slots=True)
class Tensor:
    name: str
    datatype: str
    data: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class RowTensor:
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

    def dense(self) -> Tensor:
        if len(self.rows) == 1 and self.rows[0].shape == self.shape:
            return Tensor(self.name, self.datatype, self.rows[0][None])
        return Tensor(self.name, self.datatype, np.stack(list(self.padded())))


@dataclass(slots=True)
class RequestedOutput:
    name: str
    binary: bool = False


@dataclass(slots=True)
class InferCall:
    """One inference request. `outputs` empty: all of them; `binary_outputs`: the default form."""

    tensors: list[Tensor]
    id: str | None = None
    outputs: list[RequestedOutput] = field(default_factory=list)
    binary_outputs: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class InferAnswer:
    model: str
    version: str
    tensors: list[Tensor]
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PredictCall:
    """`instances` (row format) or `inputs` (columnar), exactly one: values still JSON, since only
    the model knows their types."""

    instances: list[msgspec.Raw] | None
    inputs: msgspec.Raw | None


@dataclass(slots=True)
class EmbeddingsCall:
    """`texts` or `tokens` (exactly one is set), in order; `base64`: encoding_format."""

    model: str
    texts: list[str] | None
    tokens: list[list[int]] | None
    base64: bool = False
    dimensions: int | None = None


@dataclass(slots=True)
class ClassifyCall:
    """`texts` or `images` (JPEG or PNG files), exactly one is set, in order; `top_k`: labels wanted
    of each, None for the model's own number."""

    texts: list[str] | None
    images: list[bytes] | None
    top_k: int | None = None


@dataclass(slots=True)
class Encoded:
    """An answer's body with the headers that belong to its format. `more`: it is the body's
    beginning, and the rest is still to be made."""

    body: bytes
    content_type: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    more: bool = False
