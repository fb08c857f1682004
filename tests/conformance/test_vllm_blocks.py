"""What vLLM's process tells of its cache is what its block pool holds, under forced eviction."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from stream_cases import MODEL, StreamCase, chat, completion, hear, settings
from stream_suite import settled

from deployments.replica import backend_env
from deployments.replica.block_index import BlockIndex
from examples import make_llm
from runtimes import catalog
from runtimes.types import StreamRequest

MISSING = catalog.available("vllm", "generate")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
BLOCK, BLOCKS = 32, 80  # of which a prompt takes up to 15, and four run at once
CASE = StreamCase(
    "vllm",
    {
        "max_num_seqs": 4,
        "block_size": BLOCK,
        "kv_cache_gib": 0.25,
        "enforce_eager": True,
        "engine_args": {"num_gpu_blocks_override": BLOCKS},
    },
)


class Engine:
    """`held`: hashes that are held, as a gateway is told of them."""

    def __init__(self, runtime: Any, index: Any) -> None:
        self.runtime, self.index = runtime, index
        self.held: set[int] = set()
        index.follow(self)

    def changed(self, held: Mapping[int, bool]) -> None:
        for each, is_held in held.items():
            (self.held.add if is_held else self.held.discard)(each)

    def begins_anew(self) -> None:
        self.held = set(self.index.held())

    async def ask(
        self, prompt: list[int], hashes: Iterable[int] = (), salt: str = "", tokens: int = 2
    ) -> int:
        """How many of its tokens were cached."""
        body = completion(prompt, max_tokens=tokens)
        request = StreamRequest(
            f"r{id(body)}", "completions", body, salt=salt, hashes=tuple(hashes),
            hashed_tokens=len(prompt),
        )  # fmt: skip
        async with aclosing(self.runtime.run(request)) as chunks:
            heard = [chunk async for chunk in chunks]
        assert heard[-1].status == 200, heard[-1].data
        return heard[-1].cached_tokens

    async def pool(self) -> set[int]:
        """The blocks that the engine's pool holds, told by itself."""
        reports = self.runtime._serving._blocks
        found: list[set[int]] = []
        replace = self.index.replace

        def replaced(blocks: Iterable[int]) -> None:
            found.append(set(blocks))
            replace(found[-1])

        reports.wants_all, self.index.replace = True, replaced
        await self.ask([7], (1,), tokens=1)
        self.index.replace = replace
        (blocks,) = found
        return blocks


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> AsyncIterator[Engine]:
    model = make_llm.make(tmp_path_factory.mktemp("made") / "llm")
    given = settings(CASE, model, cache, threads=1, blocks=BlockIndex())
    with pytest.MonkeyPatch().context() as changed:
        environ = dict(os.environ)
        backend_env.set_engine_variables(given, environ)
        for name, value in environ.items():
            changed.setenv(name, value)
        runtime = catalog.create_stream(given)
        await runtime.load()
        await runtime.warm()
        yield Engine(runtime, given.blocks)
        await runtime.close()


async def test_what_is_told_is_what_the_pool_holds_after_random_load(engine: Engine) -> None:
    rng = Random(1)
    beginnings = [[rng.randrange(3, 250) for _ in range(BLOCK * 12)] for _ in range(12)]
    dropped = 0

    async def load() -> None:
        nonlocal dropped
        for _ in range(20):
            start = rng.choice(beginnings)
            prompt = start[: BLOCK * rng.randint(1, 12)]
            prompt = [*prompt, *[rng.randrange(3, 250)] * rng.randint(1, 60)]
            ends = range(BLOCK, len(prompt) + 1, BLOCK)
            hashes = [hash(tuple(prompt[:end])) % 2**64 for end in ends]
            before = len(engine.held)
            if rng.random() < 0.2:
                task = asyncio.create_task(engine.ask(prompt, hashes, tokens=60))
                await asyncio.sleep(rng.random() * 0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                await engine.ask(prompt, hashes, tokens=rng.randint(1, 40))
            dropped += len(engine.held) < before

    for _ in range(4):
        await asyncio.gather(load(), load(), load(), load())
        await settled(engine.runtime)
        told = set(engine.index._held)
        assert told == await engine.pool()
        assert told
        assert engine.held == set(engine.index.held())
    assert dropped


async def test_a_prompt_is_found_as_far_as_its_hashes_are_held(engine: Engine) -> None:
    prompts = [[10 + number] * (BLOCK * 10 + 1) for number in range(20)]
    names = [[1000 * number + at for at in range(1, 11)] for number in range(20)]
    for prompt, hashes in zip(prompts, names, strict=True):
        await engine.ask(prompt, hashes)
    wrong = 0
    for prompt, hashes in list(zip(prompts, names, strict=True))[::-1]:
        held = sum(each in engine.held for each in hashes)
        wrong += held * BLOCK != await engine.ask(prompt, hashes)
    assert wrong == 0
    assert not all(each in engine.held for hashes in names for each in hashes)


async def test_blocks_of_another_salt_are_others(engine: Engine) -> None:
    prompt = [33] * 129
    await engine.ask(prompt, (501, 502, 503, 504), salt="acme")
    assert {501, 502, 503, 504} <= engine.held
    assert await engine.ask(prompt, (601, 602, 603, 604), salt="other") == 0
    assert await engine.ask(prompt, (501, 502, 503, 504), salt="acme") == 128


async def test_a_missing_report_makes_it_ask_for_all(engine: Engine) -> None:
    prompt = [44] * 129
    hashes = (701, 702, 703, 704)
    await engine.ask(prompt, hashes)
    reports = engine.runtime._serving._blocks
    reports._last -= 1
    await engine.ask([45] * 129, (801,))
    assert (engine.index.known, engine.held) == (False, set())
    await engine.ask(prompt, hashes)
    assert engine.index.known
    assert set(hashes) <= engine.held
    assert set(engine.index._held) == await engine.pool()


async def test_a_request_that_is_refused_leaves_nothing(engine: Engine) -> None:
    body = completion([1] * 129, max_tokens=100_000)
    request = StreamRequest("bad", "completions", body, hashes=(901,), hashed_tokens=129)
    async with aclosing(engine.runtime.run(request)) as chunks:
        (*_, last) = [chunk async for chunk in chunks]
    assert last.status == 400
    assert not engine.index._asked
    heard = await hear(engine.runtime, chat(), "chat")
    assert heard.page()["model"] == MODEL
