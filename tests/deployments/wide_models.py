"""Models whose answers are wide: what they cost is the answers' alone, as computing one is a copy.

`Wide` answers each row, or with `ragged` each token, with the same `width` numbers. `wide_stand` is
a gateway with one such model, `m`, that takes texts or tokens; `asked` is a client that counts what
it gets and keeps none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from fake_runtimes import FakeRuntime
from in_process import Stand, standing

from deployments.preprocess.tokenizer import TextTokenizer
from runtimes.types import Batch, Limits, Ragged, Result, StageTimes, TensorSpec

MAX_ROWS, MAX_LENGTH = 4096, 512


class Wide(FakeRuntime):
    """`declares`: its width; False: that only its answers tell it."""

    def __init__(self, width: int, *, ragged: bool = False, declares: bool = True) -> None:
        super().__init__()
        self.runs, self._ragged = 0, ragged
        self.numbers = np.random.default_rng(0).standard_normal(width).astype(np.float32)
        last = width if declares else -1
        self.LIMITS = Limits(
            inputs=(TensorSpec("input_ids", "INT64", (-1, -1)),),
            outputs=(TensorSpec("out", "FP32", (-1, -1, last) if ragged else (-1, last)),),
            length_input="input_ids",
        )

    def run(self, batch: Batch) -> Result:
        self.runs += 1
        width, lengths = len(self.numbers), batch.lengths.tolist()
        shapes = tuple([(n, width) if self._ragged else (width,) for n in lengths])
        data = np.tile(self.numbers, sum(lengths) if self._ragged else len(lengths))
        return Result({"out": Ragged("FP32", data, shapes)}, StageTimes(), batch.rows)


@asynccontextmanager
async def wide_stand(
    runtime: Wide, folder: Path, task: str = "tensors", labels: Sequence[str] = (), **options: Any
) -> AsyncIterator[Stand]:
    model: dict[str, Any] = {
        "runtime": "synthetic", "task": task, "lengths": {"max": MAX_LENGTH},
        "queue": {"max_rows": MAX_ROWS}, "slo": {"latency_ms": 600_000},
    }  # fmt: skip
    if labels:
        model["classify"] = {"labels": list(labels), "top_k": 5}
    async with standing({"m": model}, folder, runtimes={"m": runtime}, **options) as stand:
        if task != "tensors":
            vocabulary = tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")
            words = tokenizers.Tokenizer(vocabulary).to_str().encode()
            embeds = {"embed_output": "out", "embed_width": len(runtime.numbers)}
            stand.swap("m", tokenizer_digest="words", **(embeds if task == "embed" else {}))
            stand.models.served["m"].tokenizer = TextTokenizer(words, MAX_LENGTH, False, 0)
        stand.channels["m"].calls = _Forgetful()
        yield stand


class _Forgetful(list[Any]):
    """What the channel would keep for tests to look at."""

    def append(self, _: Any) -> None: ...


@dataclass(slots=True)
class Got:
    """`beginning`: of a body of `size` bytes, which came in `parts`."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0
    parts: list[int] = field(default_factory=list)
    beginning: bytes = b""


async def asked(app: Any, path: str, body: bytes) -> Got:
    got, chunks = Got(), [body]

    async def receive() -> dict[str, Any]:
        if not chunks:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunks.pop(), "more_body": False}

    async def send(message: Any) -> None:
        if "status" in message:
            got.status, got.headers = message["status"], dict(message["headers"])
        data = message.get("body", b"")
        got.beginning = got.beginning or bytes(data[:2000])
        got.size += len(data)
        got.parts.append(len(data))

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [], "client": ("127.0.0.1", 1), "extensions": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return got
