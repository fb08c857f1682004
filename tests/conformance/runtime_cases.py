"""The backends and sources that the conformance suite runs over, and the batches it runs.

A row's values follow from a seed and its place: the same alone as in a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runtimes import catalog
from runtimes.testing import LENGTHS, LONGEST, MAX_SIZE, batch_of
from runtimes.types import (
    Result,
    RuntimeSettings,
)

# Options that name a case; options that name a source of the suite's.
MODES = (
    "mode", "shapes", "io_binding", "pin", "device", "tensorrt_engines", "pinned",
    "expandable_segments", "arena",
)  # fmt: skip
FOLDERS = ("calibration",)


@dataclass(frozen=True)
class Case:
    """`source` is a name that the fixture `sources` knows, None for a backend without one."""

    runtime: str
    source: str | None
    task: str = "tensors"
    options: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    entry: str = ""  # of a Python class
    fake: bool = False  # on a library and a device that stand in for the real ones

    def __str__(self) -> str:
        own = [f"{name}={value}" for name, value in self.options.items() if name in MODES]
        precision = [] if self.precision == "fp32" else [self.precision]
        fake = ["fake"] if self.fake else []
        entry = [self.entry] if self.entry else []
        return "-".join(
            [self.runtime, str(self.source), *entry, self.task, *own, *precision, *fake]
        )


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
    Case("torch", "text.pt2", options={"mode": "compile"}),  # BERT: test_torch_modes
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
    Case(
        "onnxruntime",
        "bert",
        "embed",
        {"device": "cuda", "tensorrt_engines": True, "calibration": "recorded"},
        "int8",
    ),
    Case("tensorrt", "bert", "embed"),
    Case("tensorrt", "bert", "embed", precision="fp16"),
    Case("tensorrt", "bert", "embed", {"calibration": "recorded"}, "int8"),
    Case("tensorrt", "bert", "embed", {"calibration": "recorded"}, "fp8"),
    Case("tensorrt", "bert", "embed", fake=True),
    Case("tensorrt", "bert", fake=True),
    Case("tensorrt", "bert", "classify", precision="fp16", fake=True),
    Case("tensorrt", "bert", "embed", precision="fp16", fake=True),
    Case("tensorrt", "bert", "embed", precision="bf16", fake=True),
    Case("tensorrt", "bert", "embed", {"calibration": "recorded"}, "int8", fake=True),
    Case("tensorrt", "bert", "embed", {"calibration": "recorded"}, "fp8", fake=True),
    Case("tensorrt", "bert", "classify", {"calibration": "recorded"}, "int8", fake=True),
    Case("synthetic", None, "embed", options={"base_ms": 0, "embed_width": 4}),
    Case("python", "classes", entry="classes:Sums"),
    Case("python", "classes", entry="classes:Padded", options={"padded": True}),
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
    Case("python", "classes", entry="classes:Pair"),
)
RUNTIMES = tuple(dict.fromkeys(case.runtime for case in TEXTS))
ONE_EACH = tuple(next(case for case in TEXTS if case.runtime == name) for name in RUNTIMES)
FROM_FILES = tuple(case for case in ONE_EACH if case.source is not None and not case.entry)
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
        entry=case.entry,
        cache_dir=cache,
        task=case.task,
        options=case.options | folders,
        precision=case.precision,
        **{"threads": 1, "edges": (8, LONGEST), "max_size": MAX_SIZE, "max_tokens": 256, **fields},
    )


def answer_and_close(chosen: RuntimeSettings) -> Result:
    runtime = catalog.create(chosen)
    runtime.load()
    result = runtime.run(batch_of(runtime.limits(), LENGTHS))
    runtime.close()
    return result
