"""The stream suite over the backend that is nothing but time, and the faults it can be told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from adapter_suite import PLACES, Adapted, AdapterSuite, adapters
from api_suite import ApiSuite
from stream_cases import CACHE_TOKENS, SYNTHETIC, completion, hear, settings
from stream_suite import StreamSuite, settled

from runtimes import catalog
from runtimes.errors import LoadError, RunError, Unhealthy
from runtimes.types import Sleeping, StreamRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def runtime(cache: Path) -> AsyncIterator[StreamRuntime]:
    runtime = catalog.create_stream(settings(SYNTHETIC, None, cache))
    await runtime.load()
    await runtime.warm()
    yield runtime
    await runtime.close()


class TestSynthetic(StreamSuite, ApiSuite):
    pass


async def test_a_closed_engine_is_unhealthy_and_ends_what_ran(cache: Path) -> None:
    runtime = catalog.create_stream(settings(SYNTHETIC, None, cache))
    await runtime.load()
    running = asyncio.create_task(hear(runtime, completion(max_tokens=400)))
    await asyncio.sleep(0.01)
    await runtime.close()
    await runtime.close()
    with pytest.raises(RunError):
        await running
    with pytest.raises(Unhealthy):
        await runtime.health()


async def test_an_engine_that_was_never_loaded_is_unhealthy(cache: Path) -> None:
    runtime = catalog.create_stream(settings(SYNTHETIC, None, cache))
    with pytest.raises(Unhealthy):
        await runtime.health()


async def test_a_word_that_fails_fails_its_request_alone(cache: Path) -> None:
    runtime = catalog.create_stream(
        settings(SYNTHETIC, None, cache, options={"fail_words": ["broken"]})
    )
    await runtime.load()
    other = asyncio.create_task(hear(runtime, completion()))
    with pytest.raises(RunError):
        await hear(runtime, completion("a broken one"))
    assert (await other).last.output_tokens == 8
    await runtime.close()


async def test_a_word_that_kills_the_engine_takes_all_that_runs_and_what_comes(cache: Path) -> None:
    runtime = catalog.create_stream(
        settings(SYNTHETIC, None, cache, options={"engine_die_words": ["deadly"]})
    )
    await runtime.load()
    other = asyncio.create_task(hear(runtime, completion(max_tokens=400)))
    await asyncio.sleep(0.01)
    for dies in (hear(runtime, completion("a deadly one")), other, hear(runtime, completion())):
        with pytest.raises(Unhealthy, match="died"):
            await dies
    with pytest.raises(Unhealthy, match="died"):
        await runtime.health()
    await runtime.close()


async def test_a_word_that_hangs_stops_the_steps(cache: Path) -> None:
    runtime = catalog.create_stream(
        settings(SYNTHETIC, None, cache, options={"hang_words": ["stuck"]})
    )
    await runtime.load()
    task = asyncio.create_task(hear(runtime, completion("stuck")))
    await asyncio.sleep(0.02)
    before = await runtime.health()
    await asyncio.sleep(0.02)
    assert (await runtime.health()).steps == before.steps
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await runtime.close()


async def test_outputs_end_by_themselves_where_the_options_say_so(cache: Path) -> None:
    runtime = catalog.create_stream(settings(SYNTHETIC, None, cache, options={"output_tokens": 5}))
    await runtime.load()
    (choice,) = (await hear(runtime, completion(max_tokens=50))).page()["choices"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["text"].split()) == 5
    await runtime.close()


async def test_a_full_cache_makes_the_last_begin_anew_and_all_are_answered(cache: Path) -> None:
    runtime = catalog.create_stream(
        replace(
            settings(SYNTHETIC, None, cache, options={"cache_tokens": 160, "base_ms": 0.5}),
            max_length=128,
        )
    )
    await runtime.load()
    bodies = [completion(f"{i} words " * 4, max_tokens=60) for i in range(4)]
    alone = [(await hear(runtime, body)).page()["choices"] for body in bodies]
    together = await asyncio.gather(*(hear(runtime, body) for body in bodies))
    assert [heard.page()["choices"] for heard in together] == alone
    load = await settled(runtime)
    assert load.preemptions > 0
    assert load.cache_used == 0.0
    await runtime.close()


async def test_a_context_that_the_cache_cannot_hold_is_refused_at_load(cache: Path) -> None:
    runtime = catalog.create_stream(
        replace(settings(SYNTHETIC, None, cache), max_length=CACHE_TOKENS)
    )
    with pytest.raises(LoadError, match="cache_tokens"):
        await runtime.load()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def adapted(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "sizes").write_text("[16, 1]")
    table = adapters(folder, 16, 1)
    runtime = catalog.create_stream(
        settings(
            SYNTHETIC, None, cache, adapters=table, adapters_resident=PLACES,
            options={"adapter_load_ms": 5.0},
        )
    )  # fmt: skip
    await runtime.load()
    yield Adapted(runtime, folder, table)
    await runtime.close()


class TestSyntheticAdapters(AdapterSuite):
    pass


async def test_one_that_sleeps_answers_nobody_and_waking_takes_its_time(cache: Path) -> None:
    runtime = catalog.create_stream(
        settings(SYNTHETIC, None, cache, options={"wake_s": 0.05, "cache_mib": 3})
    )
    assert isinstance(runtime, Sleeping)
    await runtime.load()
    assert runtime.limits().cache_bytes == 3 << 20
    await runtime.sleep()
    with pytest.raises(RunError, match="sleeps"):
        await hear(runtime, completion())
    began = time.perf_counter()
    await runtime.wake()
    assert time.perf_counter() - began >= 0.05
    assert (await hear(runtime, completion())).status == 200
    await runtime.close()
