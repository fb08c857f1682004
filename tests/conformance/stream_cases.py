"""The stream backends that one suite runs over, and what it asks of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployments.replica.block_index import BlockIndex
from runtimes.types import Chunk, RuntimeSettings, StreamRequest, StreamRuntime

MODEL = "llm"
CONTEXT = 512
SEQUENCES = 4
CACHE_TOKENS = 4096


@dataclass(frozen=True)
class StreamCase:
    runtime: str
    options: Mapping[str, Any] = field(default_factory=dict)


SYNTHETIC = StreamCase(
    "synthetic", {"base_ms": 1.0, "max_sequences": SEQUENCES, "cache_tokens": CACHE_TOKENS}
)


def settings(case: StreamCase, source: Path | None, cache: Path, **more: Any) -> RuntimeSettings:
    options = {**case.options, **more.pop("options", {})}
    more.setdefault("blocks", BlockIndex())
    return RuntimeSettings(
        MODEL, case.runtime, source, cache, task="generate", max_length=CONTEXT, options=options,
        **more,
    )  # fmt: skip


def completion(prompt: Any = "one two three", **fields: Any) -> bytes:
    asked = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8}
    return json.dumps({**asked, "ignore_eos": True, **fields}).encode()


def chat(content: str = "one two three", **fields: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    asked = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 8}
    return json.dumps({**asked, "ignore_eos": True, **fields}).encode()


@dataclass
class Heard:
    """All that a request brought."""

    chunks: list[Chunk]

    @property
    def last(self) -> Chunk:
        return self.chunks[-1]

    @property
    def status(self) -> int:
        return self.last.status

    @property
    def data(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)

    def page(self) -> dict[str, Any]:
        page: dict[str, Any] = json.loads(self.data)
        return page

    def events(self) -> list[dict[str, Any]]:
        """Checks that events come whole, and that the last one says so."""
        assert all(not c.data or c.data.endswith(b"\n\n") for c in self.chunks)
        lines = [line for line in self.data.split(b"\n\n") if line]
        assert all(line.startswith(b"data: ") for line in lines)
        assert lines[-1] == b"data: [DONE]"
        return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]

    def texts(self) -> dict[int, str]:
        """By the index of the choice, of an answer that streamed."""
        texts: dict[int, str] = {}
        for event in self.events():
            for choice in event["choices"]:
                part = choice["text"] if "text" in choice else choice["delta"].get("content")
                texts[choice["index"]] = texts.get(choice["index"], "") + (part or "")
        return texts


_number = iter(range(1_000_000))


def ask(
    body: bytes, endpoint: str = "completions", priority: int = 0, salt: str = "", **more: Any
) -> StreamRequest:
    return StreamRequest(f"r{next(_number)}", endpoint, body, priority, salt, **more)


async def hear(
    runtime: StreamRuntime, body: bytes, endpoint: str = "completions", salt: str = "", **more: Any
) -> Heard:
    async with aclosing(runtime.run(ask(body, endpoint, salt=salt, **more))) as chunks:
        return Heard([chunk async for chunk in chunks])
