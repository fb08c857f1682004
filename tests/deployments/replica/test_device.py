"""Batches on the device: their order, their end, and what is done with one that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from itertools import pairwise

import numpy as np
import pytest
from device_jobs import WaitedJob, job_of, values, worker_of
from fake_runtimes import Gated, Moody, Quotient
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.channel.frames import rows_of
from deployments.replica.device import (
    DeviceTurn,
    DeviceWorker,
    HangLimits,
    Job,
    hang_limits,
    non_finite_rows,
    run_bisected,
)
from deployments.settings.model import ModelSettings
from runtimes.errors import BadRows, RunError, Unhealthy
from runtimes.types import DTYPES, Batch, Limits, Ragged, Result


class Busy:
    """A device that works on lease 1 of gateway `a` until `let`."""

    def __init__(self) -> None:
        self.runtime = Gated()
        self.worker = worker_of(self.runtime)
        self.queue = self.worker.queue
        self.first = self.put(job_of(1, "a"))

    def put(self, job: WaitedJob) -> WaitedJob:
        self.queue.put(job)
        return job

    async def let(self, *jobs: WaitedJob) -> None:
        """Lets the device work; returns when all these jobs have their answers."""
        self.runtime.let.set()
        await asyncio.wait_for(asyncio.gather(self.first.done, *(j.done for j in jobs)), 5.0)


@pytest.fixture
async def busy() -> AsyncIterator[Busy]:
    busy = Busy()
    yield busy
    busy.runtime.let.set()
    busy.worker.close()


async def test_of_two_gateways_the_lower_rank_runs_and_the_other_goes_back(busy: Busy) -> None:
    high, low = busy.put(job_of(2, "a", tag=5.0)), busy.put(job_of(3, "b", tag=1.0))
    await busy.let(high, low)
    assert (high.returned, low.returned) == (True, False)
    assert values(busy.runtime) == [1, 3]
    assert (high.wait_s, high.service_s) == (0.0, 0.0)
    assert busy.queue.inflight == 0


async def test_one_gateway_alone_never_gets_its_staged_batch_back(busy: Busy) -> None:
    staged = busy.put(job_of(2, "a", tag=9.0))
    await busy.let(staged)
    assert values(busy.runtime) == [1, 2]


async def test_an_urgent_batch_sends_its_own_gateways_bulk_one_back_at_once(busy: Busy) -> None:
    bulk = busy.put(job_of(2, "a", tag=9.0))
    urgent = busy.put(job_of(3, "a", tag=1.0))
    assert bulk.done.done()
    assert bulk.returned
    await busy.let(urgent)
    assert values(busy.runtime) == [1, 3]


async def test_a_dropped_batch_never_runs_and_its_place_is_free(busy: Busy) -> None:
    staged = busy.put(job_of(2, "a"))
    assert busy.queue.drop(staged.key)
    assert staged.returned
    assert not busy.queue.drop(staged.key)
    after = busy.put(job_of(3, "a"))
    await busy.let(after)
    assert values(busy.runtime) == [1, 3]


async def test_whoever_asked_hears_when_a_batch_starts(busy: Busy) -> None:
    staged, started = busy.put(job_of(2, "a")), list[Job]()
    busy.queue.watch(busy.first.key, started.append)
    busy.queue.watch(staged.key, started.append)
    assert started == [busy.first]
    await busy.let(staged)
    assert started == [busy.first, staged]


async def test_a_start_is_told_before_the_end_also_to_who_asked_at_once(busy: Busy) -> None:
    said: list[str] = []
    asked = job_of(2, "a")
    asked.on_start = lambda job: said.append("start")
    asked.done.add_done_callback(lambda job: said.append("end"))
    busy.put(asked)
    assert said == []
    await busy.let(asked)
    assert said == ["start", "end"]


async def test_a_batch_that_starts_as_it_comes_is_told_so_at_once() -> None:
    runtime, started = Gated(), list[Job]()
    worker = worker_of(runtime)
    job = job_of(1)
    job.on_start = started.append
    worker.queue.put(job)
    assert started == [job]
    runtime.let.set()
    await job.done
    worker.close()


async def test_nobody_hears_of_a_start_that_never_was(busy: Busy) -> None:
    started: list[Job] = []
    dropped = busy.put(job_of(2, "a"))
    busy.queue.watch(dropped.key, started.append)
    busy.queue.drop(dropped.key)
    returned = busy.put(job_of(3, "a", tag=5.0))
    busy.queue.watch(returned.key, started.append)
    await busy.let(busy.put(job_of(4, "b")))
    assert (dropped.returned, returned.returned, started) == (True, True, [])


async def test_the_next_batch_runs_although_the_loop_stands_still(busy: Busy) -> None:
    for gateway in "abc":
        busy.put(job_of(2, gateway, tag=float(ord(gateway))))
    started, run = threading.Semaphore(0), busy.runtime.run
    assert busy.runtime.begun.wait(5.0)

    def counted(batch: Batch) -> Result:
        started.release()
        return run(batch)

    busy.runtime.run = counted  # type: ignore[method-assign]
    busy.runtime.let.set()
    assert started.acquire(timeout=5.0)  # without a turn of the loop


async def test_batches_run_one_after_another_in_order() -> None:
    runtime = Gated()
    worker = worker_of(runtime, slots=3)
    jobs = [job_of(n) for n in (1, 2, 3)]
    for job in jobs:
        worker.queue.put(job)
    runtime.let.set()
    await asyncio.gather(*(job.done for job in jobs))
    assert values(runtime) == [1, 2, 3]
    assert all(a.finished <= b.started for a, b in pairwise(jobs))
    worker.close()


async def test_a_run_past_the_limit_is_told_and_a_staged_batch_is_none() -> None:
    told: list[bool] = []
    runtime = Gated()
    limits = HangLimits(5.0)
    worker = DeviceWorker(runtime, 2, limits=limits, on_hang=lambda: told.append(True))
    worker.check_hang()
    job = job_of(1)
    worker.queue.put(job)
    assert runtime.begun.wait(5.0)
    worker.check_hang()
    assert told == []
    worker._limits = HangLimits(0.0)
    worker.check_hang()
    assert told == [True]
    worker._limits = limits
    runtime.let.set()
    await job.done
    assert worker.running_for_s() == 0.0
    worker.close()


@pytest.mark.parametrize(
    ("factor", "predicted_s", "limit_s"),
    [(20.0, 0.1, 12.0), (20.0, 0.0, 30.0), (20.0, 5.0, 30.0), (0.0, 0.1, 30.0), (1.0, 1.0, 11.0)],
)
def test_a_run_may_take_its_share_of_what_was_predicted_and_the_limit_at_most(
    factor: float, predicted_s: float, limit_s: float
) -> None:
    assert HangLimits(30.0, factor).of(predicted_s) == pytest.approx(limit_s)


def test_a_model_s_settings_say_when_a_run_counts_as_hung() -> None:
    written = {"runtime": "synthetic", "replicas": {"hang_limit_s": 7, "hang_factor": 3}}
    assert hang_limits(ModelSettings.model_validate(written)) == HangLimits(7.0, 3.0)


@pytest.mark.parametrize(("answers", "hangs"), [(19, False), (20, True)])
async def test_a_prediction_is_held_against_a_run_once_the_replica_has_answered_some(
    monkeypatch: pytest.MonkeyPatch, answers: int, hangs: bool
) -> None:
    monkeypatch.setattr("deployments.replica.device._FLOOR_S", 0.0)
    told: list[bool] = []
    runtime = Gated()
    limits = HangLimits(5.0, factor=1e-9)
    worker = DeviceWorker(runtime, 2, limits=limits, on_hang=lambda: told.append(True))
    worker._answers = answers
    job = job_of(1, predicted_s=0.5)
    worker.queue.put(job)
    assert runtime.begun.wait(5.0)
    worker.check_hang()
    assert told == [True] * hangs
    runtime.let.set()
    await job.done
    worker.close()


async def test_health_does_not_wait_for_a_batch_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deployments.replica.device._HEALTH_S", 0.001)
    runtime = Gated()
    worker = worker_of(runtime)
    job = job_of(1)
    worker.queue.put(job)
    assert runtime.begun.wait(5.0)
    asked: list[bool] = []
    runtime.health = lambda: asked.append(True)  # type: ignore[method-assign]
    for _ in range(3):
        await worker.health()
    assert asked == []
    runtime.let.set()
    await job.done
    monkeypatch.setattr("deployments.replica.device._HEALTH_S", 5.0)
    await worker.health()
    assert asked == [True]  # one question for all that asked
    worker.close()


async def test_what_is_in_line_when_it_closes_is_still_run() -> None:
    runtime = Gated()
    worker = worker_of(runtime)
    jobs = [job_of(1), job_of(2)]
    for job in jobs:
        worker.queue.put(job)
    worker.queue.close()
    runtime.let.set()
    await asyncio.gather(*(job.done for job in jobs))
    worker._thread.join(5.0)
    assert not worker._thread.is_alive()


async def test_health_is_asked_between_the_running_batch_and_the_staged_one() -> None:
    runtime = Gated()
    worker = worker_of(runtime)
    first, second = job_of(1), job_of(2)
    worker.queue.put(first)
    worker.queue.put(second)
    assert runtime.begun.wait(5.0)
    asked: list[int] = []
    runtime.health = lambda: asked.append(len(runtime.batches))  # type: ignore[method-assign]
    health = asyncio.create_task(worker.health())
    await asyncio.sleep(0)
    runtime.let.set()
    await health
    await second.done
    assert asked == [1]
    worker.close()


async def test_health_raises_what_the_runtime_says() -> None:
    runtime = Moody(lambda value: None)
    worker = worker_of(runtime)

    def broken() -> None:
        raise Unhealthy("broken")

    runtime.health = broken  # type: ignore[method-assign]
    with pytest.raises(Unhealthy):
        await worker.health()
    worker.close()


async def test_of_a_runtime_that_will_not_recover_is_told_before_its_batch_has_failed() -> None:
    worker, told = worker_of(Moody(lambda value: Unhealthy("gone"))), []
    job = job_of(1)
    worker.on_death = lambda why: told.append((why, job.fault, job.done.done()))
    worker.queue.put(job)
    await job.done
    worker.close()
    assert told == [("gone, and 1 batches with it", None, False)]
    assert isinstance(job.fault, Unhealthy)


async def test_of_one_whose_health_says_so_is_told_and_not_once_it_closes() -> None:
    runtime = Moody(lambda value: None)
    worker, told = worker_of(runtime), list[str]()
    worker.on_death = told.append

    def gone() -> None:
        raise Unhealthy("gone")

    runtime.health = gone  # type: ignore[method-assign]
    with pytest.raises(Unhealthy):
        await worker.health()
    assert told == ["gone, and 0 batches with it"]
    worker._closing = True
    with pytest.raises(Unhealthy):
        await worker.health()
    assert len(told) == 1
    worker.close()


async def test_a_batch_or_a_health_check_that_only_failed_is_no_death() -> None:
    runtime = Moody(lambda value: RunError("bad"))
    worker, told = worker_of(runtime), list[str]()
    worker.on_death = told.append

    def fails() -> None:
        raise RunError("bad")

    runtime.health = fails  # type: ignore[method-assign]
    worker.queue.put(job := job_of(1))
    await job.done
    with pytest.raises(RunError):
        await worker.health()
    worker.close()
    assert told == []


async def test_the_duty_cycle_is_that_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("deployments.replica.device.time.perf_counter", lambda: now[0])
    worker = worker_of(Gated())
    worker._busy_s, now[0] = 5.0, 10.0
    assert worker.duty() == pytest.approx(0.5)
    now[0] = 20.0
    assert worker.duty() == pytest.approx(0.0)
    worker._busy_s, now[0] = 15.0, 30.0
    assert worker.duty() == pytest.approx(1.0)
    worker.close()


async def test_a_batch_whose_budget_ran_out_is_not_run_and_counts_as_not_served() -> None:
    runtime = Moody(lambda value: None)
    worker = worker_of(runtime)
    worker.queue.put(job_of(7, "other"))
    late = job_of(1, budget_s=-1.0, charges=((0, "x", 1.0),))
    worker.queue.put(late)
    await late.done
    worker.close()
    assert [(error.row, error.callers_fault) for error in late.result.errors] == [(0, False)]
    assert (late.result.outputs, values(runtime)) == ({}, [7])
    assert worker.queue.report("other").served == ()


class Ahead(Gated):
    """Puts a batch on its device while another runs; remembers which."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self.ahead: list[int] = []
        self.copied = threading.Event()

    def limits(self) -> Limits:
        return Limits((), (), device=self._device)

    def prefetch(self, batch: Batch) -> None:
        self.ahead.append(int(batch.inputs["x"].data[0]))
        self.copied.set()


async def test_batch_that_waits_is_put_on_the_device_while_another_computes() -> None:
    runtime = Ahead("cuda:0")
    worker = worker_of(runtime)
    runs, waits = job_of(1), job_of(2)
    worker.queue.put(runs)
    assert runtime.begun.wait(5.0)
    worker.queue.put(waits)
    assert runtime.copied.wait(5.0)
    assert runtime.ahead == [2]
    runtime.let.set()
    await asyncio.gather(runs.done, waits.done)
    assert values(runtime) == [1, 2]
    worker.close()


async def test_nothing_is_put_ahead_where_the_processors_compute() -> None:
    runtime = Ahead("cpu")
    worker = worker_of(runtime)
    jobs = [job_of(n) for n in (1, 2)]
    for job in jobs:
        worker.queue.put(job)
    runtime.let.set()
    await asyncio.gather(*(job.done for job in jobs))
    assert runtime.ahead == []
    worker.close()


async def test_workers_that_share_a_device_take_turns_in_the_order_of_coming() -> None:
    turn, order, entered = DeviceTurn(), [], []

    def take(name: str) -> None:
        entered.append(name)
        with turn:
            order.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abc"]
    with turn:
        for number, thread in enumerate(threads, start=1):
            thread.start()
            await until_given(turn, number + 1)
        assert order == []
    for thread in threads:
        thread.join(5.0)
    assert order == entered == ["a", "b", "c"]


async def test_on_a_shared_device_a_batch_starts_with_its_turn() -> None:
    turn, runtime, started = DeviceTurn(), Gated(), list[Job]()
    worker = DeviceWorker(
        runtime, 2, limits=HangLimits(5.0), on_hang=lambda: pytest.fail("hangs"), turn=turn
    )
    asked, watched = job_of(1), job_of(2)
    asked.on_start = started.append
    with turn:  # another worker's
        worker.queue.put(asked)
        worker.queue.put(watched)
        worker.queue.watch(watched.key, started.append)
        await until_given(turn, 2)
        await asyncio.sleep(0)
        assert started == []
        assert worker.running is None
    async with asyncio.timeout(5.0):
        while not started:  # noqa: ASYNC110 - a thread says it
            await asyncio.sleep(0)
    worker.queue.watch(asked.key, started.append)
    assert started == [asked, asked]
    runtime.let.set()
    await asyncio.gather(asked.done, watched.done)
    assert started == [asked, asked, watched]
    worker.close()


async def until_given(turn: DeviceTurn, count: int) -> None:
    async with asyncio.timeout(5.0):
        while turn._given < count:  # noqa: ASYNC110 - a thread says it
            await asyncio.sleep(0)


async def test_a_turn_goes_on_after_a_batch_that_failed() -> None:
    turn = DeviceTurn()
    with pytest.raises(RunError), turn:
        raise RunError("no")
    with turn:
        pass


def batch_of(values: list[int]) -> Batch:
    shapes = ((1,),) * len(values)
    ids = Ragged("INT64", np.array(values, dtype=np.int64), shapes)
    return Batch(len(values), np.ones(len(values), dtype=np.int64), {"x": ids})


@pytest.mark.slow
@given(st.lists(st.sampled_from([BadRows, RunError, KeyError, None]), min_size=1, max_size=40))
def test_any_set_of_bad_rows_fails_alone_and_the_rest_is_answered_right(
    faults: list[type[Exception] | None],
) -> None:
    def mood(value: int) -> Exception | None:
        fault = faults[value]
        return None if fault is None else fault(f"row {value}")

    result = run_bisected(Moody(mood), batch_of(list(range(len(faults)))))
    bad = {e.row: e.callers_fault for e in result.errors}
    assert bad == {i: f is BadRows for i, f in enumerate(faults) if f is not None}
    good = [i for i, fault in enumerate(faults) if fault is None]
    answered = rows_of(result.outputs["y"]) if good else []
    assert [int(row[0]) for row in answered] == good
    assert result.padded_tokens == len(good)


@pytest.mark.parametrize("size", [1, 2, 31, 32])
def test_one_bad_row_costs_logarithmically_many_runs(size: int) -> None:
    runtime = Moody(lambda value: BadRows("bad") if value == 0 else None)
    run_bisected(runtime, batch_of(list(range(size))))
    assert len(runtime.batches) <= 1 + 2 * np.ceil(np.log2(size))


def test_stage_times_of_the_parts_add_up() -> None:
    result = run_bisected(Moody(lambda v: BadRows("x") if v == 0 else None), batch_of([0, 1, 2, 3]))
    assert result.times.run_s == pytest.approx(0.002)  # rows 1, and 2 with 3


def test_rows_of_a_batch_are_taken_with_all_their_inputs() -> None:
    ragged = Ragged("FP32", np.arange(6, dtype=np.float32), ((1,), (2,), (3,)))
    words = Ragged("BYTES", np.array([b"a", b"b", b"c"], dtype=object), ((1,), (1,), (1,)))
    batch = Batch(3, np.array([1, 2, 3]), {"a": ragged, "w": words}, ("out",))
    part = batch.picked(range(1, 3))
    assert (part.rows, part.lengths.tolist(), part.outputs) == (2, [2, 3], ("out",))
    assert part.inputs["a"].data.tolist() == [1, 2, 3, 4, 5]
    assert part.inputs["a"].shapes == ((2,), (3,))
    assert part.inputs["w"].data.tolist() == [b"b", b"c"]


def test_an_unhealthy_device_is_not_bisected() -> None:
    runtime = Moody(lambda value: Unhealthy("broken"))
    with pytest.raises(Unhealthy):
        run_bisected(runtime, batch_of([1, 2, 3, 4]))
    assert len(runtime.batches) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_rows_without_a_finite_answer_fail_alone_and_nothing_runs_again(values: list[int]) -> None:
    runtime = Quotient()
    result = run_bisected(runtime, batch_of(values))
    assert [e.row for e in result.errors] == [i for i, value in enumerate(values) if not value]
    assert all(e.not_finite and not e.callers_fault for e in result.errors)
    answers = [float(row[0]) for row in rows_of(result.outputs["y"])]
    assert answers == pytest.approx([1 / value for value in values if value])
    assert len(runtime.batches) == 1


def test_where_the_settings_allow_it_infinity_is_an_answer() -> None:
    result = run_bisected(Quotient(), batch_of([0, 1]), allow_non_finite=True)
    assert result.errors == ()
    assert [float(row[0]) for row in rows_of(result.outputs["y"])] == [np.inf, 1.0]


SHAPES = ((2,), (0,), (1, 2), ())


def ragged(values: list[float], datatype: str = "FP32") -> Ragged:
    return Ragged(datatype, np.array(values).astype(DTYPES[datatype]), SHAPES)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_the_row_with_an_odd_element_is_found(datatype: str, odd: float) -> None:
    assert non_finite_rows({"y": ragged([1, 2, 3, odd, 5], datatype)}) == [2]
    assert non_finite_rows({"y": ragged([1, odd, 3, 4, odd], datatype)}) == [0, 3]


def test_the_largest_numbers_are_finite_and_so_is_what_is_no_number() -> None:
    largest = float(np.finfo(np.float32).max)
    words = Ragged("BYTES", np.array([b"nan"] * 5, dtype=object), SHAPES)
    found = {"y": ragged([largest] * 5), "n": ragged([1, 2, 3, 4, 5], "INT64"), "w": words}
    assert non_finite_rows(found) == []


def test_a_row_is_odd_if_any_of_its_outputs_is() -> None:
    outputs = {"a": ragged([np.nan, 2, 3, 4, 5]), "b": ragged([1, 2, 3, 4, np.inf])}
    assert non_finite_rows(outputs) == [0, 3]
