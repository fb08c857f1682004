"""What a backend takes, gives and declares: ragged batches in, ragged results out.

Shapes: a ragged tensor is one flat buffer in row-major order, rows one after another, plus each
row's own shape (without the batch axis). Nothing is padded outside a runtime; the runtime pads (or
packs) for its device and cuts its outputs back. Data types carry the Open Inference Protocol's
names (BOOL, UINT8 … INT64, FP16, BF16, FP32, FP64, BYTES).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, Open Inference datatype and shape with -1 for a dynamic axis; axis 0 is the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ragged:
    """`data`: 1-D array of all rows' elements (dtype object of bytes for BYTES).
    `shapes`: one tuple a row, without the batch axis; Σ prod(shape) == data.size."""

    datatype: str
    data: np.ndarray[Any, Any]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """`lengths`: int64 [rows], tokens; `inputs` by name; `outputs`: those wanted, None for all."""

    rows: int
    lengths: np.ndarray[Any, Any]
    inputs: Mapping[str, Ragged]
    outputs: tuple[str, ...] | None = None


@dataclass(slots=True)
class StageTimes:
    """Seconds by stage of one run."""

    pad_s: float = 0.0
    copy_in_s: float = 0.0
    run_s: float = 0.0
    copy_out_s: float = 0.0
    post_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """One `Ragged` an output, rows in the batch's order; padded_tokens is rows x padded length."""

    outputs: Mapping[str, Ragged]
    times: StageTimes
    padded_tokens: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a loaded backend declares.

    pads: the device sees rows x longest (else the sum of lengths). fixed_edges: lengths it was
    compiled for, empty when any will do. max_rows / max_length: hard bounds, None when unbounded;
    max_length is what the settings ask for, which is never more than the model takes.
    length_input / length_axis: whose and which axis (batch axis is 0) is "the length"; None when
    rows have no length. mask_input: which input is 1 for real tokens, made by the runtime when the
    caller leaves it out; None when the model has none.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    pads: bool = True
    fixed_edges: tuple[int, ...] = ()
    max_rows: int | None = None
    max_length: int | None = None
    length_input: str | None = None
    length_axis: int = 1
    mask_input: str | None = None
    optional_inputs: tuple[str, ...] = ()
    precision: str = "fp32"
    device: str = "cpu"
    platform: str = ""  # Open Inference `platform`, such as "onnxruntime_onnx"


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What it takes to load one model; produced by the shell from the settings file.

    source: a file or folder (None for synthetic). cache_dir: where staged artifacts live, keyed by
    content, runtime, version and processor. threads: 0 means what the cgroup allows.
    length_input / length_axis / mask_input: what a row's length is, None for what the model
    declares; max_length: the longest row to accept, tokens, None for the longest it takes.
    edges / max_size / max_tokens: the grid that warm-up covers. options: the backend's own
    settings, validated by the backend. progress: called with (phase, fraction 0..1), phases
    "staging", "compiling", "warming".
    """

    name: str
    runtime: str
    source: Path | None
    cache_dir: Path
    precision: str = "fp32"
    threads: int = 0
    task: str = "tensors"  # tensors | embed | classify
    length_input: str | None = None
    length_axis: int | None = None
    mask_input: str | None = None
    max_length: int | None = None
    edges: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    max_size: int = 32
    max_tokens: int = 8192
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str, float], None] = lambda phase, fraction: None


class Runtime(Protocol):
    """A batch backend. One thread at a time calls it; `close` may be called once, from any.

    load: stage, compile, allocate; raises `LoadError`. warm: run real batches over the grid of
    lengths x sizes; raises `LoadError` where one fails. limits: after load. run: raises `BadRows`
    for input that is the caller's fault and `RunError` for its own; never leaves the device in a
    state that fails the next batch.
    health: raises `Unhealthy`. close: frees everything; idempotent.
    """

    def load(self) -> None: ...
    def warm(self) -> None: ...
    def limits(self) -> Limits: ...
    def run(self, batch: Batch) -> Result: ...
    def health(self) -> None: ...
    def close(self) -> None: ...


class StreamRuntime(Protocol):
    """As `Runtime`, but `run` yields as it goes; closing the iterator aborts the work."""

    def load(self) -> None: ...
    def warm(self) -> None: ...
    def limits(self) -> Limits: ...
    def run(self, batch: Batch) -> Iterator[Result]: ...
    def health(self) -> None: ...
    def close(self) -> None: ...
