"""The stream suite over transformers' own model, and what is this engine's alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from stream_cases import SEQUENCES, StreamCase, settings
from stream_model_suite import ModelSuite

from examples import make_llm
from runtimes import catalog
from runtimes.types import StreamRuntime

MISSING = catalog.available("torch", "generate")
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

TORCH = StreamCase("torch", {"max_sequences": SEQUENCES})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llm.make(tmp_path_factory.mktemp("made") / "llm")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def runtime(model: Path, cache: Path) -> AsyncIterator[StreamRuntime]:
    runtime = catalog.create_stream(settings(TORCH, model, cache, threads=1))
    await runtime.load()
    await runtime.warm()
    yield runtime
    await runtime.close()


class TestTorch(ModelSuite):
    pass
