"""The backends and sources that the conformance suite runs over, and the batches it runs.

A row's values follow from a seed and its place: the same alone as in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes import catalog
from runtimes.types import (
    DTYPES,
    Batch,
    Limits,
    Ragged,
    Result,
    Runtime,
    RuntimeSettings,
    TensorSpec,
)

MAX_SIZE, LONGEST, TOLERANCE = 8, 64, 1e-5
# A row alone and in a batch: a value next to a rounding step may fall to either side of it.
TOLERANCES = {"fp32": TOLERANCE, "bf16": 3e-2, "fp16": 4e-3, "int8": 5e-2}
# Options that name a case; options that name a source of the suite's.
MODES = (
    "mode", "shapes", "io_binding", "pin", "device", "tensorrt_engines", "pinned",
    "expandable_segments", "arena",
)  # fmt: skip
FOLDERS = ("calibration",)
LENGTHS = (3, 1, 17, LONGEST, 2)


@dataclass(frozen=True)
class Case:
    """`source` is a name that the fixture `sources` knows, None for a backend without one."""

    runtime: str
    source: str | None
    task: str = "tensors"
    options: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    fake: bool = False  # on a library and a device that stand in for the real ones

    def __str__(self) -> str:
        own = [f"{name}={value}" for name, value in self.options.items() if name in MODES]
        precision = [] if self.precision == "fp32" else [self.precision]
        fake = ["fake"] if self.fake else []
        return "-".join([self.runtime, str(self.source), self.task, *own, *precision, *fake])


TEXTS = (
    Case("synthetic", None, options={"base_ms": 0}),
    Case("onnxruntime", "bert", "embed"),
    Case("onnxruntime", "bert"),
    Case("onnxruntime", "bert", "classify"),
    Case("openvino", "bert", "embed"),
    Case("openvino", "bert"),
    Case("openvino", "bert", "classify"),
    Case("torch", "bert", "embed"),
    Case("torch", "bert"),
    Case("torch", "bert", "classify"),
    Case("torch", "text.pt2"),
    Case("torch", "bert", "embed", {"mode": "compile"}),
    Case("torch", "text.pt2", options={"mode": "compile"}),
    Case("torch", "bert", "embed", precision="int8"),
    Case("torch", "bert", "classify", precision="fp16"),
    Case("onnxruntime", "bert", "embed", {"io_binding": True}),
    Case("onnxruntime", "bert", options={"io_binding": True, "arena": "shrunk"}),
    Case("openvino", "bert", "embed", {"shapes": "buckets"}),
    Case("openvino", "bert", "embed", {"pin": "cores"}),
    Case("openvino", "bert", "embed", {"pin": "numa"}),
    Case("onnxruntime", "bert", "embed", {"calibration": "recorded"}, "int8"),
    Case("openvino", "bert", "embed", {"calibration": "recorded"}, "int8"),
    Case("torch", "bert", "embed", {"device": "cuda"}),
    Case("torch", "bert", "embed", {"device": "cuda", "mode": "compile"}),
    Case("torch", "bert", "embed", {"device": "cuda", "mode": "cuda_graphs"}),
    Case("torch", "bert", "embed", {"device": "cuda"}, "int8"),
    Case("torch", "bert", "embed", {"device": "cuda"}, "fp16"),
    Case("torch", "bert", "embed", {"device": "cuda"}, "bf16"),
    Case("torch", "bert", "embed", {"device": "cuda", "mode": "compile"}, "fp16"),
    Case("torch", "bert", "embed", {"device": "cuda", "mode": "compile"}, "int8"),
    Case("torch", "bert", "embed", {"device": "cuda", "mode": "cuda_graphs"}, "fp16"),
    Case("torch", "bert", "embed", {"device": "cuda", "pinned": False}),
    Case("torch", "bert", "embed", {"device": "cuda", "expandable_segments": False}),
    Case("torch", "text.pt2", options={"device": "cuda"}),
    Case("torch", "text.pt2", options={"device": "cuda", "mode": "compile"}),
    Case("torch", "text.pt2", options={"device": "cuda", "mode": "cuda_graphs"}),
    Case("onnxruntime", "bert", "embed", {"device": "cuda"}),
    Case("onnxruntime", "bert", options={"device": "cuda", "arena": "shrunk"}),
    Case("onnxruntime", "bert", "embed", {"device": "cuda"}, "fp16"),
    Case("onnxruntime", "bert", "embed", {"device": "cuda", "tensorrt_engines": True}),
    Case("tensorrt", "bert", "embed"),
    Case("tensorrt", "bert", "embed", precision="fp16"),
    Case("tensorrt", "bert", "embed", fake=True),
    Case("tensorrt", "bert", fake=True),
    Case("tensorrt", "bert", "classify", precision="fp16", fake=True),
    Case("tensorrt", "bert", "embed", precision="fp16", fake=True),
    Case("tensorrt", "bert", "embed", precision="bf16", fake=True),
    Case("synthetic", None, "embed", options={"base_ms": 0, "embed_width": 4}),
)
STACKED = (
    Case("onnxruntime", "image.onnx"),
    Case("onnxruntime", "pair.onnx"),
    Case("onnxruntime", "text.onnx"),
    Case("openvino", "image.onnx"),
    Case("openvino", "pair.onnx"),
    Case("openvino", "pair.xml"),
    Case("torch", "pair.pt2"),
    Case("torch", "pair.pt2", options={"device": "cuda", "mode": "cuda_graphs"}),
    Case("onnxruntime", "image.onnx", options={"device": "cuda"}),
    Case("onnxruntime", "pair.onnx", options={"device": "cuda"}),
    Case("onnxruntime", "text.onnx", options={"device": "cuda"}),
    Case("tensorrt", "pair.onnx", precision="fp16", fake=True),
)
RUNTIMES = tuple(dict.fromkeys(case.runtime for case in TEXTS))
ONE_EACH = tuple(next(case for case in TEXTS if case.runtime == name) for name in RUNTIMES)
FROM_FILES = tuple(case for case in ONE_EACH if case.source is not None)
Sources = Callable[[str], Path]


texts = pytest.mark.parametrize("running", TEXTS, ids=str, indirect=True, scope="module")
stacked = pytest.mark.parametrize("running", STACKED, ids=str, indirect=True, scope="module")
everything = pytest.mark.parametrize(
    "running", TEXTS + STACKED, ids=str, indirect=True, scope="module"
)


each_backend = pytest.mark.parametrize("case", ONE_EACH, ids=str)
each_from_files = pytest.mark.parametrize("case", FROM_FILES, ids=str)


def settings(case: Case, sources: Sources, cache: Path, **fields: Any) -> RuntimeSettings:
    missing = catalog.available(case.runtime)
    if missing:
        pytest.skip(f"{missing} (unverified here: docs/runtimes.md)")
    folders = {name: str(sources(case.options[name])) for name in FOLDERS if name in case.options}
    return RuntimeSettings(
        name="tiny",
        runtime=case.runtime,
        source=sources(case.source) if case.source else None,
        cache_dir=cache,
        task=case.task,
        options=case.options | folders,
        precision=case.precision,
        **{"threads": 1, "edges": (8, LONGEST), "max_size": MAX_SIZE, "max_tokens": 256, **fields},
    )


def batch_of(limits: Limits, lengths: tuple[int, ...], seed: int = 0) -> Batch:
    """Rows with values of their own: row r is the same whatever batch of that seed it stands in."""
    needed = [spec for spec in limits.inputs if spec.name not in limits.optional_inputs]
    inputs = {spec.name: _ragged(spec, limits, lengths, seed) for spec in needed}
    return Batch(len(lengths), np.array(lengths, np.int64), inputs)


def _ragged(spec: TensorSpec, limits: Limits, lengths: tuple[int, ...], seed: int) -> Ragged:
    rows = []
    for row, length in enumerate(lengths):
        # Python hashes texts anew in every process, so the name enters by its bytes.
        random = np.random.default_rng([seed, row, *spec.name.encode()])
        shape = tuple(size if size >= 0 else length for size in spec.shape[1:])
        rows.append(_values(spec.datatype, shape, random))
    data = np.concatenate([values.reshape(-1) for values in rows])
    return Ragged(spec.datatype, data, tuple(values.shape for values in rows))


def _values(datatype: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if datatype == "BYTES":
        values = np.empty(shape, dtype=object)
        values[...] = b"row \xc3\xa9 %d" % random.integers(1000)
        return values
    if datatype.startswith("INT"):
        return random.integers(1, 90, shape).astype(DTYPES[datatype])
    return random.normal(size=shape).astype(DTYPES[datatype])


def row_of(batch: Batch, row: int) -> Batch:
    inputs = {name: one(ragged, row) for name, ragged in batch.inputs.items()}
    return Batch(1, batch.lengths[row : row + 1], inputs, batch.outputs)


def one(ragged: Ragged, row: int) -> Ragged:
    start = sum(math.prod(shape) for shape in ragged.shapes[:row])
    end = start + math.prod(ragged.shapes[row])
    return Ragged(ragged.datatype, ragged.data[start:end], (ragged.shapes[row],))


def tolerance_of(runtime: Runtime) -> float:
    return TOLERANCES[runtime.limits().precision]


def assert_same_rows(together: Result, alone: list[Result], tolerance: float = TOLERANCE) -> None:
    for name, ragged in together.outputs.items():
        assert len(ragged.shapes) == len(alone)
        for row, single in enumerate(alone):
            mine, own = one(ragged, row), single.outputs[name]
            assert mine.shapes == own.shapes
            assert_close(mine.data, own.data, tolerance)


def assert_close(left: np.ndarray, right: np.ndarray, tolerance: float = TOLERANCE) -> None:
    if left.dtype == object:
        assert left.tolist() == right.tolist()
    else:
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def answer_and_close(chosen: RuntimeSettings) -> Result:
    runtime = catalog.create(chosen)
    runtime.load()
    result = runtime.run(batch_of(runtime.limits(), LENGTHS))
    runtime.close()
    return result
