"""The stream suite over the engine for small models, with each network that it can have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from stream_cases import CONTEXT, SEQUENCES, StreamCase, hear, settings
from stream_model_suite import ModelSuite

from examples import make_llm
from runtimes import catalog
from runtimes.errors import MissingBackend
from runtimes.types import StreamRequest, StreamRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llm.make(tmp_path_factory.mktemp("made") / "llm")


@pytest_asyncio.fixture(
    loop_scope="module", scope="module", params=["torch", "torch on cuda", "openvino"]
)
async def runtime(
    request: pytest.FixtureRequest, model: Path, cache: Path
) -> AsyncIterator[StreamRuntime]:
    name, _, device = request.param.partition(" on ")
    missing = catalog.available(name, "generate")
    if missing is not None:
        pytest.skip(missing)
    on = {"device": device or "cpu"} if name == "torch" else {}
    case = StreamCase(name, {"max_sequences": SEQUENCES, **on})
    runtime = catalog.create_stream(settings(case, model, cache, threads=1))
    try:
        await runtime.load()
    except MissingBackend as absent:
        pytest.skip(f"{absent} (unverified here: docs/runtimes.md)")
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


async def test_its_cache_counts_with_what_a_token_takes_in_all_layers(
    runtime: StreamRuntime, model: Path
) -> None:
    config = json.loads((model / "config.json").read_text())
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 2 * 4 * config["num_hidden_layers"] * heads * width  # of float32
    limits = runtime.limits()
    least = limits.cache_tokens * token_bytes
    assert least <= limits.cache_bytes <= 3 * least  # blocks that are not full come besides


@pytest.mark.parametrize("name", ["torch", "openvino"])
async def test_what_goes_on_in_a_full_cache_has_the_tokens_of_a_new_one(
    name: str, model: Path, cache: Path
) -> None:
    """Both do not fit, so the second takes over what the first has left."""
    if (missing := catalog.available(name, "generate")) is not None:
        pytest.skip(missing)
    case = StreamCase(name, {"max_sequences": 1, "cache_tokens": CONTEXT})
    runtime = catalog.create_stream(settings(case, model, cache, threads=1))
    await runtime.load()

    async def asked(prompt: list[int], salt: str) -> dict[str, Any]:
        said = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "cache_salt": salt}  # fmt: skip
        request = StreamRequest(salt, "completions", json.dumps(said).encode())
        *_, last = [chunk async for chunk in runtime.run(request)]
        page: dict[str, Any] = json.loads(last.data)
        return page

    prompt = [10 + number % 200 for number in range(CONTEXT - 100)]
    for said in (prompt, prompt[:100], [*prompt[:80], *range(10, 90)]):
        await asked(prompt, "a")
        found, new = await asked(said, "a"), await asked(said, "b")
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] >= 80
        assert new["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert found["choices"][0]["token_ids"] == new["choices"][0]["token_ids"]
    await runtime.close()
