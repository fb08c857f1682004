"""The stream suite over the engine for small models, with each network that it can have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from stream_cases import SEQUENCES, StreamCase, hear, settings
from stream_model_suite import ModelSuite

from examples import make_llm
from runtimes import catalog
from runtimes.types import StreamRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llm.make(tmp_path_factory.mktemp("made") / "llm")


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["torch", "openvino"])
async def runtime(
    request: pytest.FixtureRequest, model: Path, cache: Path
) -> AsyncIterator[StreamRuntime]:
    missing = catalog.available(request.param, "generate")
    if missing is not None:
        pytest.skip(missing)
    case = StreamCase(request.param, {"max_sequences": SEQUENCES})
    runtime = catalog.create_stream(settings(case, model, cache, threads=1))
    await runtime.load()
    await runtime.warm()
    yield runtime
    await runtime.close()


class TestSmallModels(ModelSuite):
    @pytest.mark.parametrize(
        "endpoint", ["messages", "responses", "count_tokens", "tokenize", "detokenize"]
    )
    async def test_other_ways_to_ask_are_refused_by_name(
        self, runtime: StreamRuntime, endpoint: str
    ) -> None:
        heard = await hear(runtime, b'{"model": "llm"}', endpoint)
        assert (heard.status, endpoint in heard.page()["error"]["message"]) == (400, True)
