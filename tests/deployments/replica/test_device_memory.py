"""Batches that the device has no memory for: cut in halves, and smaller ones from then on; and what
is told of the memory that is taken."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from device_jobs import job_of, worker_of
from fake_runtimes import FakeRuntime
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.channel.frames import rows_of
from deployments.replica import device_memory
from deployments.replica.device import run_bisected
from deployments.replica.device_memory import RECOVERS_S, MemoryCap, tokens_of
from runtimes.errors import OutOfMemory, failed
from runtimes.types import Batch, DeviceMemory, Limits, Ragged, Result, StageTimes, TensorSpec
from tests.fake_nvml import GIB, FakeDevice, FakeNvml, NVMLError_GpuIsLost

IDS = TensorSpec("x", "INT64", (-1, -1))


class Small(FakeRuntime):
    """A device with memory for batches of so many tokens, padding included."""

    LIMITS = Limits((IDS,), (IDS,), length_input="x")

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens, self.tried = tokens, list[int]()

    def run(self, batch: Batch) -> Result:
        tokens = tokens_of(batch, pads=True)
        self.tried.append(tokens)
        if tokens > self.tokens:
            raise OutOfMemory(f"CUDA out of memory for {tokens} tokens")
        return Result({"y": batch.inputs["x"]}, StageTimes(), tokens)


def batch_of(*lengths: int) -> Batch:
    """Rows of these lengths, each filled with its own number."""
    data = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    shapes = tuple((length,) for length in lengths)
    return Batch(len(lengths), np.array(lengths), {"x": Ragged("INT64", data, shapes)})


def capped(batch: Batch, fault: OutOfMemory | None = None, at: float = 0.0) -> MemoryCap:
    cap = MemoryCap("m")
    cap.exceeded(batch, tokens_of(batch, pads=True), fault or OutOfMemory("none"), at)
    return cap


def test_batch_without_memory_is_answered_in_halves():
    runtime = Small(tokens=64)
    found = run_bisected(runtime, batch_of(*[16] * 8))
    assert runtime.tried == [128, 64, 64]
    assert found.errors == ()
    assert found.memory_faults == 1
    assert [int(row[0]) for row in rows_of(found.outputs["y"])] == list(range(8))


def test_batches_after_it_are_cut_before_they_run():
    runtime, cap = Small(tokens=70), MemoryCap()
    run_bisected(runtime, batch_of(*[16] * 8), cap=cap)
    assert cap.tokens == 64
    runtime.tried.clear()
    found = run_bisected(runtime, batch_of(*[16] * 8), cap=cap)
    assert runtime.tried == [64, 64]
    assert found.memory_faults == 0
    assert found.padded_tokens == 128


def test_row_that_fits_nowhere_fails_alone_and_says_so():
    runtime, cap = Small(tokens=64), MemoryCap()
    found = run_bisected(runtime, batch_of(16, 100, 16, 16), cap=cap)
    assert [(e.row, e.callers_fault, e.out_of_memory) for e in found.errors] == [(1, False, True)]
    assert [int(row[0]) for row in rows_of(found.outputs["y"])] == [0, 2, 3]


def test_row_alone_lowers_no_cap():
    assert capped(batch_of(100)).tokens is None


def test_other_faults_lower_no_cap():
    class Broken(Small):
        def run(self, batch: Batch) -> Result:
            raise failed("no such kernel", RuntimeError("no such kernel"))

    cap = MemoryCap()
    found = run_bisected(Broken(0), batch_of(4, 4), cap=cap)
    assert cap.tokens is None
    assert found.memory_faults == 0
    assert [e.out_of_memory for e in found.errors] == [False, False]


def test_cap_doubles_a_minute_and_ends_above_what_did_not_fit():
    cap = capped(batch_of(*[16] * 8))
    again = batch_of(*[16] * 4)
    cap.exceeded(again, 64, OutOfMemory("none"), 10.0)
    minutes = (10.0, 10.0 + RECOVERS_S, 10.0 + 2 * RECOVERS_S)
    for now, allowed in zip(minutes, (32, 64, 128), strict=True):
        assert not cap.holds(allowed + 1, now)
        assert cap.holds(allowed, now + RECOVERS_S - 1)
    assert cap.holds(10**9, 10.0 + 3 * RECOVERS_S)
    assert cap.tokens is None


def test_a_try_that_fails_waits_again():
    cap = capped(batch_of(*[16] * 8))
    assert cap.holds(128, RECOVERS_S)
    cap.exceeded(batch_of(*[16] * 8), 128, OutOfMemory("none"), RECOVERS_S)
    assert not cap.holds(65, 2 * RECOVERS_S - 1)


def test_reason_is_logged_with_the_model(caplog):
    with caplog.at_level(logging.WARNING, "headrace.replica"):
        capped(batch_of(16, 16), OutOfMemory("CUDA out of memory"))
    (line,) = caplog.records
    assert "2 rows of up to 16 tokens; batches are cut to 16 tokens" in line.getMessage()
    assert "CUDA out of memory" in line.getMessage()
    assert line.model == "m"


def test_rows_of_no_padding_count_with_their_lengths():
    assert tokens_of(batch_of(3, 10), pads=False) == 13
    assert tokens_of(batch_of(3, 10), pads=True) == 20


@given(st.lists(st.integers(1, 40), min_size=1, max_size=24), st.integers(1, 400))
def test_every_row_is_answered_or_alone_too_large(lengths, memory):
    runtime, cap = Small(memory), MemoryCap()
    for _ in range(3):
        found = run_bisected(runtime, batch_of(*lengths), cap=cap)
        lost = {e.row for e in found.errors}
        assert lost == {row for row, length in enumerate(lengths) if length > memory}
        assert all(e.out_of_memory for e in found.errors)
        kept = [row for row in range(len(lengths)) if row not in lost]
        rows = rows_of(found.outputs["y"]) if kept else []
        assert [int(row[0]) for row in rows] == kept
    assert cap.tokens is None or cap.tokens >= 1


async def test_worker_lives_on_and_remembers():
    runtime = Small(tokens=0)
    worker = worker_of(runtime)
    try:
        first, second = job_of(1), job_of(2)
        worker.queue.put(first)
        await first.done
        assert first.fault is None
        assert [e.out_of_memory for e in first.result.errors] == [True]
        runtime.tokens = 8
        worker.queue.put(second)
        await second.done
        assert second.result.errors == ()
        await worker.health()
    finally:
        worker.close()


@pytest.mark.parametrize(
    "said",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 9.75 GiB",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested "
        "buffer of size 4294967296",
        "Available memory of 1024 is smaller than requested bytes of 2048",
        "CUDA failure 2: out of memory ; GPU=0",
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)",
        "std::bad_alloc",
    ],
)
def test_libraries_say_it_in_words(said):
    assert isinstance(failed("m", RuntimeError(said)), OutOfMemory)


def test_pythons_own_error_says_nothing():
    assert isinstance(failed("m", MemoryError()), OutOfMemory)


@pytest.mark.parametrize(
    "said", ["CUDA error: an illegal memory access was encountered", "shape mismatch", ""]
)
def test_other_words_are_other_faults(said):
    assert not isinstance(failed("m", RuntimeError(said)), OutOfMemory)


# ---- what is taken ------------------------------------------------------------------------------


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs, in this process's place."""
    monkeypatch.setattr(device_memory, "LOOKS_S", 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    mine = {os.getpid(): GIB}
    library = FakeNvml(
        FakeDevice("GPU-0", used=3 * GIB, processes=mine), FakeDevice("GPU-1", used=GIB)
    )
    monkeypatch.setattr("runtimes.nvml._binding", lambda: library)
    return library


@pytest.mark.parametrize(
    ("device", "num_gpus", "used"),
    [("cuda:0", 1, 3), ("cuda:1", 0, 1), ("cuda", 1, 4), ("cpu", 2, 4), ("cpu", 0.5, 4)],
)
def test_gpus_are_those_that_the_model_runs_on(nvml, device, num_gpus, used):
    gpus = device_memory.gpus_of(device, num_gpus)
    assert gpus.read([os.getpid()]).used == used * GIB


def test_model_on_processors_has_none(nvml):
    assert device_memory.gpus_of("cpu", 0) is None
    assert nvml.opened == 0


def test_memory_of_processes_that_it_started_is_the_replicas(nvml):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        nvml.gpus[0].processes[child.pid] = 2 * GIB
        gpus = device_memory.gpus_of("cuda:0", 1)
        assert device_memory.read(gpus) == DeviceMemory(3 * GIB, 3 * GIB, 80 * GIB)
    finally:
        child.communicate(b"\n")


async def test_watch_tells_again_and_again_until_the_driver_is_gone(nvml, caplog):
    told: list[Any] = []

    def tell(memory: Any) -> None:
        told.append(memory)
        nvml.gpus[0].used = 5 * GIB
        if len(told) == 2:
            nvml.fails = NVMLError_GpuIsLost

    gpus = partial(device_memory.gpus_of, "cuda:0", 1)
    await asyncio.wait_for(device_memory.watch_device_memory(gpus, tell, "m"), 5.0)
    total = 80 * GIB
    assert told == [
        DeviceMemory(GIB, 3 * GIB, total), DeviceMemory(GIB, 5 * GIB, total), None
    ]  # fmt: skip
    (line,) = caplog.records
    assert "the device's memory is not shown" in line.getMessage()


async def test_watch_of_no_gpu_ends(nvml):
    gpus = partial(device_memory.gpus_of, "cpu", 0)
    await asyncio.wait_for(device_memory.watch_device_memory(gpus, pytest.fail), 5.0)
