"""What a backend takes, gives and declares: ragged batches in, ragged results out.

Shapes: a ragged tensor is one flat buffer in row-major order, rows one after another, plus each
row's own shape (without the batch axis). Nothing is padded outside a runtime; the runtime pads (or
packs) for its device and cuts its outputs back. Data types carry the Open Inference Protocol's
names (BOOL, UINT8 … INT64, FP16, BF16, FP32, FP64, BYTES).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, Open Inference datatype and shape with -1 for a dynamic axis; axis 0 is the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowShapes:
    """The only shapes that rows of `input` have (None: the model's only input of that rank), where
    padding one to another's would change its answer, as an image's. `shapes`: (length, shape
    without the batch axis), lengths ascending; the length is the shell's own measure."""

    input: str | None
    shapes: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted({length for length, _ in self.shapes}))


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

    @classmethod
    def total(cls, results: Sequence[Result]) -> StageTimes:
        """Of runs one after another, stage by stage."""
        names = [field.name for field in fields(cls)]
        return cls(*(sum(getattr(r.times, name) for r in results) for name in names))


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
    caller leaves it out; None when the model has none. id_bounds: inputs that index a table, and
    its number of entries, as far as known. row_shapes: the shapes that rows have, only equal ones
    of which run together; None where any will do.
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
    id_bounds: Mapping[str, int] = field(default_factory=dict)
    row_shapes: RowShapes | None = None


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What it takes to load one model; produced by the shell from the settings file.

    source: a file or folder (None for synthetic). cache_dir: where staged artifacts live, keyed by
    content, runtime, version and processor. threads: 0 means what the cgroup allows.
    length_input / length_axis / mask_input: what a row's length is, None for what the model
    declares; max_length: the longest row to accept, tokens, None for the longest it takes.
    edges / max_size / max_tokens: the grid that warm-up covers. row_shapes: as of `Limits`; a
    length is then what they say, and no axis. options: the backend's own settings, validated by
    the backend. progress: called with (phase, fraction 0..1), phases "staging", "compiling",
    "verifying", "warming".
    """

    name: str
    runtime: str
    source: Path | None
    cache_dir: Path
    precision: str = "fp32"
    threads: int = 0
    task: str = "tensors"  # tensors | embed | classify | generate
    length_input: str | None = None
    length_axis: int | None = None
    mask_input: str | None = None
    max_length: int | None = None
    edges: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    max_size: int = 32
    max_tokens: int = 8192
    row_shapes: RowShapes | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str, float], None] = lambda phase, fraction: None


class Runtime(Protocol):
    """A batch backend. One thread at a time calls it; `close` may be called once, from any.

    load: stage, compile, allocate; raises `LoadError`. warm: run real batches over the grid of
    lengths x sizes; raises `LoadError` where one fails. limits: after load. run: raises `BadRows`
    for input that is the caller's fault and `RunError` for its own; never leaves the device in a
    state that fails the next batch.
    health: raises `Unhealthy`, as `run` may: the device is lost to this process, which ends.
    close: frees everything; idempotent.
    """

    def load(self) -> None: ...
    def warm(self) -> None: ...
    def limits(self) -> Limits: ...
    def run(self, batch: Batch) -> Result: ...
    def health(self) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Prefetching(Protocol):
    """Beside `Runtime`, of a backend whose device copies while it computes: `prefetch` puts a batch
    there for the `run` that follows with the very same object. Another thread than the one that
    runs may call it; it never raises for what is wrong with a batch, `run` does."""

    def prefetch(self, batch: Batch) -> None: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to generate, in OpenAI's JSON as it came. `endpoint`: "chat" or "completions";
    `request_id`: unique among those that run; `priority`: 0 is the most urgent; `salt`: what is
    kept of its prompt is found again by those of the same salt alone, whatever its body says."""

    request_id: str
    endpoint: str
    body: bytes
    priority: int = 0
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer: server-sent events, each whole with its blank line, where the body asks
    to stream; else all of the JSON, at once. Counts are tokens so far, over all sequences: `cached`
    of the prompt were in the cache, `held` places of the cache are taken. `status`: HTTP's."""

    data: bytes
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    held_tokens: int
    status: int = 200


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What a loaded engine declares. context_tokens: the longest prompt and output together.
    cache_tokens: places in its key-value cache. max_sequences: that it runs at once. block_tokens:
    the unit in which prompts share the cache, 0: they do not."""

    context_tokens: int
    cache_tokens: int
    max_sequences: int
    block_tokens: int = 0
    precision: str = "fp32"
    device: str = "cpu"
    platform: str = ""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's own account. running, waiting: sequences; cache_used: share, 0..1; the rest are
    counters, ever."""

    running: int = 0
    waiting: int = 0
    cache_used: float = 0.0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    steps: int = 0


class StreamRuntime(Protocol):
    """An engine that batches by itself, on the event loop that loaded it; any number of runs.

    As `Runtime`, but `run` yields as it goes, nothing held back; closing the iterator aborts the
    work and frees its tokens. A fault of the request is a chunk with its status and OpenAI's error;
    `RunError` is the engine's on this request, and `Unhealthy`, of `run` and `health`, says that
    the engine itself has died, with all that ran there.
    """

    async def load(self) -> None: ...
    async def warm(self) -> None: ...
    def limits(self) -> StreamLimits: ...
    def run(self, ask: Ask) -> AsyncGenerator[Chunk, None]: ...
    async def health(self) -> EngineLoad: ...
    async def close(self) -> None: ...
