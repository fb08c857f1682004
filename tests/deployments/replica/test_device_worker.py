"""The device's own line: bisecting, order, hangs, the duty cycle."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fake_runtimes import Gated, Moody
from hypothesis import given
from hypothesis import strategies as st

from deployments.queues.wire import rows_of
from deployments.replica.device_worker import DeviceWorker, Job, run_bisected, take
from runtimes.errors import BadRows, RunError, Unhealthy
from runtimes.types import Batch, Ragged


def batch_of(values: list[int]) -> Batch:
    shapes = ((1,),) * len(values)
    ids = Ragged("INT64", np.array(values, dtype=np.int64), shapes)
    return Batch(len(values), np.ones(len(values), dtype=np.int64), {"x": ids})


def ran(runtime: Any, batch: Batch) -> Job:
    job = Job(batch, None, 0.0)  # type: ignore[arg-type]
    run_bisected(runtime, job)
    return job


@given(st.lists(st.sampled_from([BadRows, RunError, KeyError, None]), min_size=1, max_size=40))
def test_any_set_of_bad_rows_fails_alone_and_the_rest_is_answered_right(
    faults: list[type[Exception] | None],
) -> None:
    def mood(value: int) -> Exception | None:
        fault = faults[value]
        return None if fault is None else fault(f"row {value}")

    job = ran(Moody(mood), batch_of(list(range(len(faults)))))
    bad = {e.row: e.callers_fault for e in job.errors}
    assert bad == {i: f is BadRows for i, f in enumerate(faults) if f is not None}
    good = [i for i, fault in enumerate(faults) if fault is None]
    answered = rows_of(job.outputs["y"]) if good else []
    assert [int(row[0]) for row in answered] == good
    assert job.padded_tokens == len(good)


@pytest.mark.parametrize("size", [1, 2, 31, 32])
def test_one_bad_row_costs_logarithmically_many_runs(size: int) -> None:
    runtime = Moody(lambda value: BadRows("bad") if value == 0 else None)
    ran(runtime, batch_of(list(range(size))))
    assert len(runtime.batches) <= 1 + 2 * np.ceil(np.log2(size))


def test_stage_times_of_the_parts_add_up() -> None:
    job = ran(Moody(lambda v: BadRows("x") if v == 0 else None), batch_of([0, 1, 2, 3]))
    assert job.times.run_s == pytest.approx(0.002)  # rows 1, and 2 with 3


def test_rows_of_a_batch_are_taken_with_all_their_inputs() -> None:
    ragged = Ragged("FP32", np.arange(6, dtype=np.float32), ((1,), (2,), (3,)))
    words = Ragged("BYTES", np.array([b"a", b"b", b"c"], dtype=object), ((1,), (1,), (1,)))
    batch = Batch(3, np.array([1, 2, 3]), {"a": ragged, "w": words}, ("out",))
    part = take(batch, 1, 3)
    assert (part.rows, part.lengths.tolist(), part.outputs) == (2, [2, 3], ("out",))
    assert part.inputs["a"].data.tolist() == [1, 2, 3, 4, 5]
    assert part.inputs["a"].shapes == ((2,), (3,))
    assert part.inputs["w"].data.tolist() == [b"b", b"c"]


def test_an_unhealthy_device_is_not_bisected() -> None:
    runtime = Moody(lambda value: Unhealthy("broken"))
    with pytest.raises(Unhealthy):
        ran(runtime, batch_of([1, 2, 3, 4]))
    assert len(runtime.batches) == 1


async def test_batches_run_one_after_another_in_order() -> None:
    runtime = Gated()
    worker = DeviceWorker(runtime, hang_limit_s=5.0, on_hang=lambda: None)
    done = [worker.submit(batch_of([n])) for n in range(3)]
    runtime.let.set()
    jobs = await asyncio.gather(*done)
    assert [int(b.inputs["x"].data[0]) for b in runtime.batches] == [0, 1, 2]
    assert all(a.finished <= b.started for a, b in pairwise(jobs))
    worker.close()


async def test_a_run_past_the_limit_is_told_and_a_staged_batch_is_none() -> None:
    told: list[bool] = []
    runtime = Gated()
    worker = DeviceWorker(runtime, hang_limit_s=5.0, on_hang=lambda: told.append(True))
    worker.check_hang()
    done = worker.submit(batch_of([1]))
    assert runtime.begun.wait(5.0)
    worker.check_hang()
    assert told == []
    worker._hang_limit_s = 0.0
    worker.check_hang()
    assert told == [True]
    worker._hang_limit_s = 5.0
    runtime.let.set()
    await done
    assert worker.running_for_s() == 0.0
    worker.close()


async def test_a_job_that_nobody_waits_for_is_no_fault() -> None:
    runtime = Gated()
    worker = DeviceWorker(runtime, hang_limit_s=5.0, on_hang=lambda: None)
    left, stays = worker.submit(batch_of([1])), worker.submit(batch_of([2]))
    left.cancel()
    runtime.let.set()
    assert (await stays).fault is None
    worker.close()


async def test_the_duty_cycle_is_that_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("deployments.replica.device_worker.time.perf_counter", lambda: now[0])
    worker = DeviceWorker(Gated(), hang_limit_s=5.0, on_hang=lambda: None)
    worker._busy_s, now[0] = 5.0, 10.0
    assert worker.duty() == pytest.approx(0.5)
    now[0] = 20.0
    assert worker.duty() == pytest.approx(0.0)
    worker._busy_s, now[0] = 15.0, 30.0
    assert worker.duty() == pytest.approx(1.0)
    worker.close()


async def test_a_batch_whose_budget_ran_out_is_not_run() -> None:
    runtime = Moody(lambda value: None)
    worker = DeviceWorker(runtime, hang_limit_s=30, on_hang=lambda: None)
    try:
        await worker.submit(batch_of([1]), budget_s=30.0)
        job = await worker.submit(batch_of([2, 3]), budget_s=-1.0)
    finally:
        worker.close()
    assert [(error.row, error.callers_fault) for error in job.errors] == [(0, False), (1, False)]
    assert (job.outputs, len(runtime.batches)) == ({}, 1)
