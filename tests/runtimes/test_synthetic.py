"""The synthetic device: true sums, the time it takes, and the faults it can be told to have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes.errors import LoadError, RunError, Unhealthy
from runtimes.synthetic import runtime as batches
from runtimes.synthetic import runtime as synthetic
from runtimes.synthetic import stream as streams
from runtimes.synthetic.runtime import Hiccups, SyntheticOptions, SyntheticRuntime, service_s
from runtimes.synthetic.stream import SyntheticStreamRuntime
from runtimes.types import Batch, Ragged, RuntimeSettings, StreamRequest


def device(**options: Any) -> SyntheticRuntime:
    settings = RuntimeSettings(
        "device", "synthetic", None, Path("unused"), options={"base_ms": 0, **options}
    )
    runtime = SyntheticRuntime(settings)
    runtime.load()
    return runtime


def batch(*rows: list[int]) -> Batch:
    lengths = [len(row) for row in rows]
    data = np.array([value for row in rows for value in row], dtype=np.int64)
    return Batch(
        len(rows),
        np.array(lengths),
        {"ids": Ragged("INT64", data, tuple((length,) for length in lengths))},
    )


def sums(runtime: SyntheticRuntime, *rows: list[int]) -> list[float]:
    return runtime.run(batch(*rows)).outputs["sum"].data.tolist()


def test_every_row_gets_its_own_sum_in_order():
    assert sums(device(), [1, 2], [], [3], [4, 5, -6]) == [3, 0, 3, 3]


def test_a_bias_is_in_every_answer():
    assert sums(device(answer_bias=0.5), [1, 2], [3]) == [3.5, 3.5]


def test_every_batch_adds_to_the_memory_that_is_resident():
    runtime = device(grow_mib=8)
    for count in range(1, 5):
        runtime.run(batch([1]))
        kept = runtime._leaked
        assert sum(each.nbytes for each in kept) == count * 8 << 20
        assert all(each.all() for each in kept)  # written, so that it is resident


def test_only_rows_with_a_marked_id_are_answered_with_nan():
    outputs = device(nan_ids=[7], embed_width=2).run(batch([1, 2], [], [3, 7], [4])).outputs
    assert np.isnan(outputs["sum"].data).tolist() == [False, False, True, False]
    assert np.isnan(outputs["embedding"].data.reshape(-1, 2)).any(axis=1).tolist() == [
        False, False, True, False,
    ]  # fmt: skip


def test_embedding_folds_every_row_into_its_width():
    outputs = device(embed_width=2).run(batch([1, 2, 3], [], [4], [5, 6, 7, 8])).outputs
    assert outputs["embedding"].data.reshape(-1, 2).tolist() == [[4, 2], [0, 0], [4, 0], [12, 14]]
    assert outputs["embedding"].shapes == ((2,),) * 4
    assert outputs["sum"].data.tolist() == [6, 0, 4, 26]


def test_only_an_embedding_device_declares_an_embedding():
    assert [spec.name for spec in device().limits().outputs] == ["sum"]
    assert device(embed_width=3).limits().outputs[1].shape == (-1, 3)


def test_one_value_a_row_comes_back():
    answer = device().run(batch([1], [2, 3]))
    assert answer.outputs["sum"].shapes == ((), ())
    assert answer.outputs["sum"].data.dtype == np.float32
    assert answer.padded_tokens == 4


def test_time_grows_with_rows_and_padded_tokens():
    speed = SyntheticOptions(base_ms=5.0, per_request_ms=0.2, per_token_us=8.0)
    assert service_s(speed, 0, 0) == pytest.approx(0.005)
    assert service_s(speed, 1, 1) == pytest.approx(0.005208)
    assert service_s(speed, 10, 100) == pytest.approx(0.015)


def test_batch_takes_at_least_its_time():
    slow = device(base_ms=0.5)
    start = time.perf_counter()
    slow.run(batch([1]))
    assert time.perf_counter() - start >= 0.0005


def test_marked_id_fails_its_batch_and_no_other():
    runtime = device(fail_ids=[13])
    with pytest.raises(RunError):
        runtime.run(batch([1], [2, 13]))
    assert sums(runtime, [1]) == [1]


def test_hanging_batch_ends_when_its_time_is_up():
    with pytest.raises(RunError, match="hangs"):
        device(hang_ids=[7], hang_s=0).run(batch([7]))


def test_marked_id_ends_the_process(monkeypatch):
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(synthetic.os, "_exit", leave)
    with pytest.raises(SystemExit) as left:
        device(die_ids=[9]).run(batch([9]))
    assert left.value.code == synthetic.EXIT_CODE


def test_marked_id_loses_the_device_for_good():
    runtime = device(lose_ids=[5])
    assert sums(runtime, [1]) == [1]
    runtime.health()
    for ids in ([5], [1]):
        with pytest.raises(Unhealthy, match="lost"):
            runtime.run(batch(ids))
    with pytest.raises(Unhealthy, match="lost"):
        runtime.health()


def test_starting_tells_its_progress():
    told: list[tuple[str, float]] = []
    settings = RuntimeSettings(
        "device", "synthetic", None, Path("unused"), progress=lambda *step: told.append(step)
    )
    runtime = SyntheticRuntime(settings)
    runtime.load()
    runtime.warm()
    assert told[0] == ("staging", 0.0)
    assert told[-1] == ("warming", 1.0)
    assert ("staging", 1.0) in told


def test_device_that_was_not_loaded_is_unhealthy():
    with pytest.raises(Unhealthy):
        SyntheticRuntime(RuntimeSettings("d", "synthetic", None, Path("unused"))).health()


def test_other_precision_is_refused():
    settings = RuntimeSettings("d", "synthetic", None, Path("unused"), precision="bf16")
    with pytest.raises(LoadError, match="fp32 only"):
        SyntheticRuntime(settings).load()


def test_negative_time_is_refused():
    with pytest.raises(LoadError, match="'base_ms' is -1"):
        device(base_ms=-1)


def stalls(every: int, seed: int, process: int, batches: int = 5000) -> list[float]:
    hiccups = Hiccups(every, 400.0, seed, process)
    return [hiccups.next_s() for _ in range(batches)]


def settings(**options: Any) -> RuntimeSettings:
    return RuntimeSettings("device", "synthetic", None, Path("unused"), options=options)


def test_one_batch_in_so_many_stalls_and_the_others_take_no_longer():
    drawn = stalls(50, seed=1, process=7)
    assert set(drawn) == {0.0, 0.4}
    assert 60 <= drawn.count(0.4) <= 140  # 100 expected, a deviation is 10


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
