"""What is measured of an engine's steps, and in how much time."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from runtimes import catalog
from runtimes.errors import LoadError
from runtimes.stream_profiling import measure
from runtimes.types import RuntimeSettings, StreamRuntime


async def engine(**options: Any) -> StreamRuntime:
    chosen = {"base_ms": 1.0, "max_sequences": 8, "step_tokens": 256, **options}
    settings = RuntimeSettings(
        "m", "synthetic", None, Path(), task="generate", max_length=1024, options=chosen
    )
    runtime = catalog.create_stream(settings)
    await runtime.load()
    return runtime


async def test_steps_are_timed_by_sequences_and_by_tokens_read() -> None:
    runtime = await engine(per_sequence_us=500.0, per_prefill_token_us=20.0)
    profile = await measure("m", runtime, 5.0)
    decoding = {count: took for count, tokens, took in profile if count == tokens}
    reading = {tokens: took for count, tokens, took in profile if count == 1 < tokens}
    assert {1, 2, 4, 8} <= decoding.keys()
    assert decoding[8] > decoding[1] + 0.002
    assert max(reading) <= 256
    assert reading[max(reading)] == pytest.approx(0.001 + 20e-6 * max(reading), rel=0.5)
    await runtime.close()


async def test_no_time_measures_nothing() -> None:
    runtime = await engine()
    assert await measure("m", runtime, 0.0) == ()
    await runtime.close()


async def test_little_time_measures_little() -> None:
    runtime = await engine(base_ms=5.0)
    began = perf_counter()
    profile = await measure("m", runtime, 0.15)
    assert perf_counter() - began < 1.0
    assert 1 <= len(profile) <= 3
    await runtime.close()


async def test_an_engine_that_refuses_does_not_start() -> None:
    runtime = await engine()
    with pytest.raises(LoadError, match="does not exist"):
        await measure("another", runtime, 1.0)
    await runtime.close()
