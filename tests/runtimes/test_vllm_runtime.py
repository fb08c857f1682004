"""What of vLLM's ends is a request's failure, and what its engine's death, without vLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from runtimes.errors import RunError, Unhealthy
from runtimes.types import Chunk, RuntimeSettings, StreamRequest
from runtimes.vllm.runtime import VLLMRuntime

TOKEN = Chunk(b"data: a\n\n", 3, 0, 1, 16)
ERROR = Chunk(b'data: {"error": {}}\n\n', 3, 0, 1, 16)


class Layer:
    """Stands for `Serving`: gives a token, and then what vLLM's layer gives where its engine dies
    (`dies`) or fails on the request: an exception, or in a stream an event that says so."""

    def __init__(self, *, dies: bool, fault: Exception | None) -> None:
        self.dead = False
        self.closed = False
        self._dies, self._fault = dies, fault

    async def answers(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        try:
            yield TOKEN
            self.dead = self._dies
            if self._fault is not None:
                raise self._fault
            yield ERROR
        finally:
            self.closed = True


async def heard(layer: Any, tmp_path: Path) -> list[Chunk | str]:
    runtime = VLLMRuntime(RuntimeSettings("llm", "vllm", None, tmp_path, task="generate"))
    runtime._serving = layer
    chunks: list[Chunk | str] = []
    try:
        async with aclosing(runtime.run(StreamRequest("r", "chat", b"{}"))) as run:
            async for chunk in run:
                chunks += [chunk]
    except (RunError, Unhealthy) as fault:
        chunks.append(type(fault).__name__)
    assert layer.closed
    return chunks


@pytest.mark.parametrize("fault", [RunError("vLLM failed: EngineDeadError"), None])
async def test_the_engines_death_is_unhealthy_and_none_of_its_words_is_passed_on(
    tmp_path: Path, fault: Exception | None
) -> None:
    assert await heard(Layer(dies=True, fault=fault), tmp_path) == [TOKEN, "Unhealthy"]


async def test_a_failed_request_is_none(tmp_path: Path) -> None:
    fault = RunError("vLLM failed: one request")
    assert await heard(Layer(dies=False, fault=fault), tmp_path) == [TOKEN, "RunError"]
    assert await heard(Layer(dies=False, fault=None), tmp_path) == [TOKEN, ERROR]
