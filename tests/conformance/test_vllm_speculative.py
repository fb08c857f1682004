"""Speculative decoding on vLLM: greedy answers stay the same, and what was proposed is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from stream_cases import StreamCase, completion, hear, settings
from stream_suite import settled

from deployments.replica import backend_env
from examples import make_llm
from runtimes import catalog
from runtimes.types import StreamRuntime

MISSING = catalog.available("vllm", "generate")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
PLAIN = StreamCase(
    "vllm", {"max_num_seqs": 8, "block_size": 32, "kv_cache_gib": 0.25, "enforce_eager": True}
)
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 100, 200, 359)
# A pattern that comes again and again, so that ngram finds something to propose.
PROMPTS = [[7 + at % 11 for at in range(length)] for length in LENGTHS]
TOKENS = 40


@dataclass
class Models:
    folder: Path
    cache: Path
    plain: list[str] = field(default_factory=list)

    def folder_of(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("made")
    make_llm.make(folder / "llm")
    make_llm.make(folder / "other", make_llm.Sizes(hidden=64, layers=1))
    patch = pytest.MonkeyPatch()
    with patch.context() as changed:
        import os

        environ = dict(os.environ)
        backend_env.set_engine_variables(settings(PLAIN, None, cache, threads=1), environ)
        for name, value in environ.items():
            changed.setenv(name, value)
        yield Models(folder, cache)


@asynccontextmanager
async def loaded(models: Models, **options: Any) -> AsyncIterator[StreamRuntime]:
    source = Path(models.folder_of("llm"))
    runtime = catalog.create_stream(
        settings(PLAIN, source, models.cache, threads=1, options=options)
    )
    await runtime.load()
    try:
        yield runtime
    finally:
        await runtime.close()


async def answers(runtime: StreamRuntime, *, stream: bool) -> list[str]:
    """Of all prompts at once, more than run together."""
    bodies = [completion(prompt, max_tokens=TOKENS, stream=stream) for prompt in PROMPTS]
    heard = await asyncio.gather(*(hear(runtime, body) for body in bodies))
    assert [each.last.output_tokens for each in heard] == [TOKENS] * len(PROMPTS)
    assert [each.last.input_tokens for each in heard] == list(LENGTHS)
    return [each.texts()[0] if stream else each.page()["choices"][0]["text"] for each in heard]


async def plain_answers(models: Models) -> list[str]:
    if not models.plain:
        async with loaded(models) as runtime:
            models.plain = await answers(runtime, stream=False)
            load = await runtime.health()
            assert (load.drafted, load.accepted) == (0, 0)
    return models.plain


@pytest.mark.parametrize("method", ["ngram", "the same model", "another model"])
async def test_greedy_answers_are_those_without_it(models: Models, method: str) -> None:
    expected = await plain_answers(models)
    chosen: dict[str, Any] = {"method": "ngram", "tokens": 3}
    if method != "ngram":
        folder = models.folder_of("llm" if method == "the same model" else "other")
        chosen = {"method": "draft_model", "tokens": 3, "model": folder}
    async with loaded(models, speculative=chosen) as runtime:
        assert await answers(runtime, stream=False) == expected
        assert await answers(runtime, stream=True) == expected
        load = await settled(runtime, within_s=5)
        assert load.drafted > 0
        assert load.accepted <= load.drafted
        if method == "the same model":
            assert load.accepted > load.drafted / 2


async def test_with_more_sequences_than_said_nothing_is_proposed(models: Models) -> None:
    expected = await plain_answers(models)
    chosen = {"method": "ngram", "tokens": 3, "off_above": 1}
    async with loaded(models, speculative=chosen) as runtime:
        alone = await hear(runtime, completion(PROMPTS[-1], max_tokens=TOKENS))
        assert alone.page()["choices"][0]["text"] == expected[-1]
        drafted = (await settled(runtime, within_s=5)).drafted
        assert drafted > 0
        for refused in ({"min_p": 0.5}, {"logit_bias": {"7": 1}}):
            heard = await hear(runtime, completion(temperature=1, **refused))
            assert heard.status == 400
            assert "speculative" in heard.page()["error"]["message"]
        # Equal lengths begin and end together, but for a step or two.
        bodies = [completion([7 + at, *PROMPTS[-1]], max_tokens=100) for at in range(4)]
        await asyncio.gather(*(hear(runtime, body) for body in bodies))
        together = (await settled(runtime, within_s=5)).drafted - drafted
        assert together <= 8 * 3


async def test_proposals_that_are_never_right_end_by_themselves(models: Models) -> None:
    expected = await plain_answers(models)
    other = {"method": "draft_model", "tokens": 3, "model": models.folder_of("other")}
    async with loaded(models, speculative={**other, "off_above": "measured"}) as runtime:
        assert await answers(runtime, stream=False) == expected
        body = completion(PROMPTS[-1], max_tokens=100)
        for _ in range(3):
            await hear(runtime, body)
        before = (await settled(runtime, within_s=5)).drafted
        await hear(runtime, body)
        assert (await settled(runtime, within_s=5)).drafted - before <= 3
