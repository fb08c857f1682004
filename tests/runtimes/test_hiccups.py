"""When a pretended device stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes.errors import LoadError
from runtimes.synthetic import runtime as batches
from runtimes.synthetic import stream as streams
from runtimes.synthetic.hiccups import Hiccups
from runtimes.synthetic.runtime import SyntheticRuntime
from runtimes.synthetic.stream import SyntheticStreamRuntime
from runtimes.types import Batch, Ragged, RuntimeSettings, StreamRequest


def stalls(every: int, seed: int, process: int, batches: int = 5000) -> list[float]:
    hiccups = Hiccups(every, 400.0, seed, process)
    return [hiccups.next_s() for _ in range(batches)]


def settings(**options: Any) -> RuntimeSettings:
    return RuntimeSettings("device", "synthetic", None, Path("unused"), options=options)


def test_one_batch_in_so_many_stalls_and_the_others_take_no_longer():
    drawn = stalls(50, seed=1, process=7)
    assert set(drawn) == {0.0, 0.4}
    assert 60 <= drawn.count(0.4) <= 140  # 100 expected, a deviation is 10


def test_none_stalls_unless_asked():
    assert set(stalls(0, seed=1, process=7)) == {0.0}


def test_every_batch_stalls_where_one_in_one_does():
    assert set(stalls(1, seed=1, process=7, batches=20)) == {0.4}


def test_a_process_with_the_same_seed_stalls_at_the_same_batches():
    assert stalls(50, seed=1, process=7) == stalls(50, seed=1, process=7)


@pytest.mark.parametrize(("seed", "process"), [(2, 7), (1, 8)])
def test_another_seed_or_process_stalls_at_others(seed: int, process: int):
    assert stalls(50, seed=1, process=7) != stalls(50, seed, process)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[float]]:
    """Seconds each batch or step was to take, on a clock that moves by that; nothing sleeps."""
    now, slept = 0.0, []

    def advance(due: float) -> None:
        nonlocal now
        slept.append(due - now)
        now = due

    async def turn(due: float) -> None:
        advance(due)
        await asyncio.sleep(0)

    for module in (batches, streams):
        monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    monkeypatch.setattr(batches, "_wait_until", advance)
    monkeypatch.setattr(streams, "_until", turn)
    return lambda: slept


def test_a_batch_that_stalls_takes_so_much_longer(sleeps: Callable[[], list[float]]):
    device = SyntheticRuntime(settings(base_ms=5, hiccup_every=4, hiccup_ms=400, hiccup_seed=3))
    device.load()
    ids = Ragged("INT64", np.array([1]), ((1,),))
    for _ in range(100):
        device.run(Batch(1, np.array([1]), {"ids": ids}))
    took = [round(each, 6) for each in sleeps()]
    assert set(took) == {0.005, 0.405}
    assert 10 <= took.count(0.405) <= 42  # 25 expected, a deviation is 4


async def test_a_step_that_stalls_gives_its_tokens_so_much_later(
    sleeps: Callable[[], list[float]],
):
    engine = SyntheticStreamRuntime(settings(base_ms=5, hiccup_every=1, hiccup_ms=400))
    await engine.load()
    sleeps().clear()
    body = b'{"model": "device", "prompt": [1, 2, 3], "max_tokens": 3, "stream": true}'
    heard = [chunk async for chunk in engine.run(StreamRequest("one", "completions", body))]
    await engine.close()
    assert heard[-1].output_tokens == 3
    assert [round(each, 6) for each in sleeps()][:3] == [0.405] * 3


@pytest.mark.parametrize("option", ["hiccup_every", "hiccup_ms"])
@pytest.mark.parametrize("runtime", [SyntheticRuntime, SyntheticStreamRuntime])
def test_negative_hiccups_are_refused(runtime: Callable[[RuntimeSettings], object], option: str):
    with pytest.raises(LoadError, match=f"'{option}' is -1"):
        runtime(settings(**{option: -1}))
