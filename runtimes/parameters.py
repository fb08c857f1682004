"""How many parameters a model has, of which type, and how many of them are multiplied.

Counted from headers, without loading weights: those of safetensors and ONNX; others are not
counted. Tables that are looked up by row (embeddings) cost no arithmetic, so they are counted
apart. A Hugging Face folder also says what attention adds to a token for each token it looks at.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimes.source import Source, SourceKind

LOOKED_UP = ("embeddings.weight", "embed_tokens.weight", "wte.weight", "wpe.weight")
_NAMES = {
    "F32": "FP32", "FLOAT": "FP32", "F16": "FP16", "FLOAT16": "FP16", "BFLOAT16": "BF16",
}  # fmt: skip
_WORTH = 0.01  # of all: fewer of a type are not named
_MULTIPLIED = frozenset({"MatMul", "Gemm", "Conv", "QLinearMatMul", "MatMulInteger", "FusedMatMul"})


@dataclass(frozen=True, slots=True)
class Parameters:
    """`multiplied`: those that every token meets in a product. `attention`: operations for each
    pair of tokens of a row, 0 where unknown. `dtypes`: as stored, the most frequent first."""

    total: int
    multiplied: int
    dtypes: tuple[str, ...]
    attention: float = 0.0

    def operations(self, rows: int, width: int) -> float:
        """Of a batch, padding included: two a parameter and token, and attention's."""
        return rows * width * (2.0 * self.multiplied + self.attention * width)


def count(source: Source) -> Parameters | None:
    """None of a kind that is not counted."""
    if source.kind is SourceKind.HUGGING_FACE:
        return _of_folder(source)
    if source.kind is SourceKind.ONNX and importlib.util.find_spec("onnx"):
        return _of_onnx(source.path)
    return None


def _of_folder(source: Source) -> Parameters:
    config = json.loads((source.path / "config.json").read_text(encoding="utf-8"))
    tensors = [each for file in source.weights for each in header(file)]
    layers, width = config.get("num_hidden_layers", 0), config.get("hidden_size", 0)
    multiplied = sum(
        size for name, size, axes, _ in tensors if axes >= 2 and not name.endswith(LOOKED_UP)
    )
    return _counted(
        ((size, kind) for _, size, _, kind in tensors), multiplied, 4.0 * layers * width
    )


def header(file: Path) -> list[tuple[str, int, int, str]]:
    """(name, elements, axes, datatype) of each tensor of a safetensors file."""
    with file.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    return [
        (name, math.prod(each["shape"]), len(each["shape"]), each["dtype"])
        for name, each in header.items()
    ]


def _of_onnx(path: Path) -> Parameters:
    onnx: Any = importlib.import_module("onnx")
    graph = onnx.load(str(path), load_external_data=False).graph
    multiplied_names = {
        name for node in graph.node if node.op_type in _MULTIPLIED for name in node.input
    }
    tensors = [
        (each.name, math.prod(each.dims), onnx.TensorProto.DataType.Name(each.data_type))
        for each in graph.initializer
    ]
    multiplied = sum(size for name, size, _ in tensors if name in multiplied_names)
    return _counted(((size, kind) for _, size, kind in tensors), multiplied, 0.0)


def _counted(tensors: Iterable[tuple[int, str]], multiplied: int, attention: float) -> Parameters:
    kinds: Counter[str] = Counter()
    for size, kind in tensors:
        kinds[kind] += size
    names = tuple(_NAMES.get(kind, kind) for kind, size in kinds.most_common()
                  if size >= _WORTH * sum(kinds.values()))  # fmt: skip
    return Parameters(sum(kinds.values()), multiplied, names, attention)
