"""The contract of a backend: what it takes, what it returns, and what it declares.

A ragged tensor is one flat buffer in row-major order, one row after another, with the shape of each
row (without the batch axis). Tensors are padded only inside a runtime: it pads (or packs) for its
device and cuts its outputs back to the rows. Data types have the Open Inference Protocol's names;
BYTES are Python byte strings in arrays of objects, BF16 is `ml_dtypes.bfloat16`.

`Runtime` is for models that run batches, `StreamRuntime` for engines that batch by themselves. Both
have six members: load, warm, limits, run, health, close.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np

from runtimes.errors import BadRows, RunError


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model."""

    name: str
    datatype: str  # the Open Inference Protocol's name
    shape: tuple[int, ...]  # -1 for a dynamic axis; axis 0 is the batch


@dataclass(frozen=True, slots=True)
class RowShapes:
    """The only shapes that rows of one input may have. For rows such as images, whose answer would
    change if they were padded to another row's shape."""

    input: str | None  # None: the model's only input of that rank
    # (length, shape without the batch axis), lengths ascending. The caller defines the length.
    shapes: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted({length for length, _ in self.shapes}))


@dataclass(frozen=True, slots=True)
class Ragged:
    """One tensor of a batch, unpadded. Invariant: Σ prod(shape) == data.size."""

    datatype: str
    data: np.ndarray[Any, Any]  # 1-D, all rows' elements; for BYTES, dtype object of bytes
    shapes: tuple[tuple[int, ...], ...]  # one a row, without the batch axis

    def rows(self) -> Iterator[np.ndarray[Any, Any]]:
        """Each row's elements, as a view of `data`."""
        start = 0
        for shape in self.shapes:
            end = start + prod(shape)
            yield self.data[start:end]
            start = end

    def picked(self, rows: Sequence[int]) -> Ragged:
        """These rows, in this order, in memory of their own."""
        parts = list(self.rows())
        data = np.concatenate([parts[row] for row in rows]) if rows else self.data[:0]
        return Ragged(self.datatype, data, tuple(self.shapes[row] for row in rows))

    @staticmethod
    def joined(parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts, at least one, in memory of their own unless it is only one."""
        if len(parts) == 1:
            return parts[0]
        data = np.concatenate([part.data for part in parts])
        return Ragged(parts[0].datatype, data, tuple(s for part in parts for s in part.shapes))


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows that a runtime runs together."""

    rows: int
    lengths: np.ndarray[Any, Any]  # int64 [rows], tokens
    inputs: Mapping[str, Ragged]  # by name
    outputs: tuple[str, ...] | None = None  # the outputs that are wanted; None: all

    def picked(self, rows: Sequence[int]) -> Batch:
        """A batch of these rows, in this order."""
        inputs = {name: ragged.picked(rows) for name, ragged in self.inputs.items()}
        return Batch(len(rows), self.lengths[list(rows)], inputs, self.outputs)


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
        """The sums of several runs' times, stage by stage."""
        names = [field.name for field in fields(cls)]
        return cls(*(sum(getattr(r.times, name) for r in results) for name in names))


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs of one batch."""

    outputs: Mapping[str, Ragged]  # by name; rows in the batch's order, without those that failed
    times: StageTimes
    padded_tokens: int  # rows x padded length; the sum of lengths where nothing is padded
    failed: Mapping[int, BadRows | RunError] = field(default_factory=dict)  # by row


@dataclass(frozen=True, slots=True)
class Limits:
    """What a loaded backend declares of its model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    # How batches may look.
    pads: bool = True  # the device computes rows x longest; False: the sum of lengths
    fixed_edges: tuple[int, ...] = ()  # lengths that it was compiled for; empty: any length
    max_rows: int | None = None  # None: unbounded
    max_length: int | None = None  # as the settings ask, never above the model's; None: unbounded

    # What a row's length is.
    length_input: str | None = None  # the input that has the length axis; None: rows have no length
    length_axis: int = 1  # of `length_input`; axis 0 is the batch, and 0 means `text_length`
    mask_input: str | None = None  # 1 for real tokens; the runtime makes it if the caller does not
    row_shapes: RowShapes | None = None  # only rows of equal shape run together; None: any shape

    # What warm-up and profiles run: copies of a row of about this length; None: zeros.
    sample: Callable[[int], Mapping[str, Ragged]] | None = None
    takes_zeros: bool = True  # False: without a sample nothing can be tried

    optional_inputs: tuple[str, ...] = ()
    id_bounds: Mapping[str, int] = field(default_factory=dict)  # entries of an input's table
    precision: str = "fp32"
    device: str = "cpu"
    platform: str = ""  # Open Inference `platform`, such as "onnxruntime_onnx"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that requests ask for as `model:name`."""

    source: str  # as in the settings; another one is another adapter, whatever its name
    # Fetches it, where it is not here, and returns its folder and a digest of its content. Blocks;
    # raises LoadError.
    files: Callable[[], tuple[Path, str]]


class BlockAccount:
    """An engine tells it which blocks of prompts its cache holds; this one does not listen, see
    `deployments.replica.block_index`. Blocks are numbers, each for all tokens up to its end."""

    known = False  # whether what the engine holds is known here

    def ask(self, hashes: tuple[int, ...], tokens: int) -> int:
        """A request has come, with `StreamRequest.hashes`: its number, for the calls below."""
        return 0

    def locate(self, number: int, blocks: Sequence[int], tokens: int) -> None:
        """The engine knows the request's prompt as these whole blocks, of so many tokens in all.
        Only the first call counts."""

    def done(self, number: int) -> None:
        """The request has ended."""

    def update(self, stored: Sequence[int], removed: Sequence[int]) -> None:
        """The engine holds these blocks now, and then no longer those."""

    def replace(self, blocks: Sequence[int]) -> None:
        """The engine holds these blocks and no others; from now on `update` tells of changes."""

    def lose(self) -> None:
        """What the engine holds is not known until `replace` says so."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What a backend needs to load one model. The replica makes it from the settings file."""

    name: str
    runtime: str
    source: Path | None  # a file or folder; None: synthetic
    entry: str = field(default="", kw_only=True)  # of runtime python: [python:]module:Class
    cache_dir: Path  # of staged artifacts, keyed by content, runtime, version and processor
    precision: str = "fp32"
    threads: int = 0  # 0: as many as the control group allows
    task: str = "tensors"  # tensors | embed | classify | rerank | generate

    # What a row's length is. None: as the model declares.
    length_input: str | None = None
    length_axis: int | None = None
    mask_input: str | None = None
    max_length: int | None = None  # longest row to accept, tokens
    row_shapes: RowShapes | None = None  # as in `Limits`; lengths then come from here, not an axis

    # The batches that warm-up runs: rows up to `max_size` at each edge, within `max_tokens`.
    edges: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    max_size: int = 32
    max_tokens: int = 8192

    options: Mapping[str, Any] = field(default_factory=dict)  # checked by the backend

    # Of a model that generates.
    adapters: Mapping[str, Adapter] = field(default_factory=dict)  # by name; changes as it runs
    adapters_resident: int = 0  # that an engine holds at once; 0: it has none
    max_lora_rank: int = 0  # of any of them, unless the options say it
    sleeps: bool = False  # `Sleeping.sleep` is to give a GPU's memory back
    blocks: BlockAccount = field(default_factory=lambda: BlockAccount(), compare=False)
    # Called with (phase, fraction 0..1); phases: staging, compiling, verifying, warming.
    progress: Callable[[str, float], None] = lambda phase, fraction: None


DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(bool),
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (32, 64)},
    "BYTES": np.dtype(object),
}
_BYTES_PER_LENGTH = 4


def text_length(text: bytes) -> int:
    """The length of a row that is a raw text: a quarter of its bytes, rounded up, at least 1. That
    is about its tokens in English."""
    return max(1, -(-len(text) // _BYTES_PER_LENGTH))


INDICES, VALUES = "indices", "values"  # the outputs of a sparse vector, of one width
TOKEN_VECTORS = "token_embeddings"  # the output with a vector for each token
PROMPT_MASK = "prompt_mask"  # the input that marks tokens that pooling leaves out; 0 where missing
MAXSIM = "maxsim"  # the output with the score of a pair by such vectors
Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """How texts become rows of a model with a vector for each token (late interaction). Lengths are
    tokens, special ones included; None: as long as any row.

    prompts: (name, text); markers: those texts, or their beginnings, that are one token each. fill:
    the token that follows a query up to `fill_length`, which the network looks at only where
    `attended`. skipped: tokens of documents that have no vector. mean: the score of a document is
    the mean over the query's tokens, else the sum.
    """

    prompts: tuple[tuple[str, str], ...] = ()
    markers: tuple[str, ...] = ()
    query_length: int | None = None
    document_length: int | None = None
    fill: int | None = None
    fill_length: int = 0
    attended: bool = False
    skipped: tuple[int, ...] = ()
    mean: bool = False

    @property
    def unattended(self) -> int | None:
        return None if self.attended else self.fill


@dataclass(frozen=True, slots=True)
class PairPrompt:
    """What a language model that judges a pair reads: each text stands between two of these, and
    `ends` is never cut. `instruction` follows `begins`, unless a request brings its own."""

    begins: str
    instruction: str
    query: str  # before the query
    document: str  # behind it; a space, which belongs to the document's first word, follows
    ends: str


def side_by_side(one: tuple[Vector, Vector], other: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    """Two sparse vectors, indices and values each, as values of the same entries. A vector that is
    full may have more entries, none above its least."""
    entries = np.union1d(one[0], other[0])
    entries = entries[entries >= 0]
    sides = []
    for indices, values in (one, other):
        kept = indices >= 0
        least = values.min() if kept.all() and values.size else 0
        side = np.full(entries.shape, least, values.dtype)
        side[np.searchsorted(entries, indices[kept])] = values[kept]
        sides.append(side)
    return sides[0], sides[1]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of the memory of a GPU or a MIG slice; sums, where a process has several."""

    own: int | None  # taken by this process and those that it started; None: the driver hides it
    used: int  # by all processes, and by the driver
    total: int


class Runtime(Protocol):
    """A batch backend. One thread at a time calls it; `close` may be called from any thread.

    load: stages, compiles and allocates; raises `LoadError`.
    warm: runs real batches over the grid of lengths x sizes; raises `LoadError` if one fails.
    limits: what the loaded model declares; only after `load`.
    run: raises `BadRows` for the caller's faults and `RunError` for the backend's own. A failed
    batch must not make the next one fail, and no later one may write to what this one returned.
    health: raises `Unhealthy` if the device is lost to this process, which then ends; `run` may
    raise it too.
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
    """A `Runtime` whose device can copy one batch while it computes another.

    `prefetch` copies a batch to the device, for a later `run` with the same object. It may be
    called from another thread than `run`. It never raises for a faulty batch; `run` does."""

    def prefetch(self, batch: Batch) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One request to generate."""

    request_id: str  # unique among the running requests
    # "chat", "completions" or "responses" (OpenAI's), "messages" (Anthropic's), all of which
    # generate; "count_tokens" (Anthropic's), "tokenize" or "detokenize" (vLLM's), which do not.
    endpoint: str
    body: bytes  # the caller's JSON in the form of the endpoint, unchanged
    priority: int = 0  # 0 is the most urgent
    salt: str = ""  # only requests of the same salt share cached prompts, whatever the body says
    # Of the prompt's blocks, as the caller cuts it into tokens; for `RuntimeSettings.blocks`.
    hashes: tuple[int, ...] = ()
    hashed_tokens: int = 0  # of the whole prompt, as the caller counts


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer to a request to generate."""

    # Whole server-sent events with their blank lines, if the body asks to stream; else the whole
    # JSON answer in one piece.
    data: bytes
    # Tokens so far, over all sequences of the request.
    input_tokens: int
    cached_tokens: int  # of the prompt, found in the cache
    output_tokens: int
    held_tokens: int  # places of the KV cache that the request takes now
    status: int = 200  # of HTTP


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What a loaded engine declares."""

    context_tokens: int  # the longest prompt and output together
    cache_tokens: int  # places in its KV cache
    max_sequences: int  # that it runs at once
    block_tokens: int = 0  # the unit in which prompts share the cache; 0: they do not share
    precision: str = "fp32"
    device: str = "cpu"
    platform: str = ""
    cache_bytes: int = 0  # that its KV cache may come to take after it was loaded


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """The adapters of an engine."""

    held: tuple[str, ...] = ()  # names of those that are loaded now
    loads: int = 0  # since it was loaded, those that failed left out
    failures: int = 0  # loads that failed
    load_s: float = 0.0  # mean seconds of a load lately; 0.0: there was none
    waiting: int = 0  # requests that wait for one, and are not at the engine
    failing: tuple[str, ...] = ()  # names of those that could not be loaded, and are refused now


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's load, and counts since it was loaded."""

    # Now.
    running: int = 0  # sequences
    waiting: int = 0  # sequences
    cache_used: float = 0.0  # share of the KV cache, 0..1
    # Counters.
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    steps: int = 0
    drafted: int = 0  # tokens that were proposed, of speculative decoding
    accepted: int = 0  # of these, kept
    adapters: AdapterLoad | None = None  # None: it has none


class StreamRuntime(Protocol):
    """An engine that batches by itself. It runs on the event loop that loaded it, and any number of
    `run`s may be under way at once.

    It differs from `Runtime` in `run`: that yields each piece of the answer at once; closing the
    iterator aborts the request and frees its tokens. A fault of the request is a chunk with an HTTP
    status and OpenAI's error, at every endpoint. `run` raises `RunError` if the engine fails this
    request. `run` and `health` raise `Unhealthy` if the engine has died, with all requests that ran
    there.
    """

    async def load(self) -> None: ...
    async def warm(self) -> None: ...
    def limits(self) -> StreamLimits: ...
    def run(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]: ...
    async def health(self) -> EngineLoad: ...
    async def close(self) -> None: ...


@runtime_checkable
class Sleeping(StreamRuntime, Protocol):
    """An engine that may stay while others use its device, and is back sooner than it was loaded.

    sleep: empties its cache, and moves its weights from a GPU (with `RuntimeSettings.sleeps`) to
    the host's memory. `wake`: back again; then it runs requests as before. Both are called while no
    request runs, and raise `RunError`; an engine that raised it is of no further use.
    """

    async def sleep(self) -> None: ...
    async def wake(self) -> None: ...
