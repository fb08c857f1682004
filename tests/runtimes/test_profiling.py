"""What is timed, in which order, and what it says of the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from routers.estimates.cost.model import CostModel
from runtimes import catalog
from runtimes.errors import LoadError, OutOfMemory, RunError
from runtimes.profiling import measure, measure_stream
from runtimes.synthetic.runtime import LIMITS, SyntheticOptions, service_s
from runtimes.types import Limits, RuntimeSettings, StreamRuntime, TensorSpec

SETTINGS = RuntimeSettings(
    "m", "synthetic", None, Path("unused"), edges=(16, 64, 256), max_size=8, max_tokens=1024
)


class Device:
    """Takes the time that `law` says, on a clock of its own; the first run of a shape longer."""

    def __init__(self, law, first_s=0.0):
        self.now = 0.0
        self.runs = []
        self._law, self._first_s = law, first_s

    def clock(self):
        return self.now

    def run(self, batch):
        shape = batch.rows, int(batch.lengths.max())
        self.now += self._law(*shape) + (0.0 if shape in self.runs else self._first_s)
        self.runs.append(shape)


def profiled(device, seconds=1e9, settings=SETTINGS, limits=LIMITS):
    return measure(settings, limits, device.run, seconds, device.clock)


def law(rows, length):
    return service_s(SyntheticOptions(5.0, 0.2, 8.0), rows, length)


def test_fit_recovers_what_the_synthetic_device_takes():
    model = CostModel(0.0, profiled(Device(law)))
    found = model.coefficients
    assert found.launch_s == pytest.approx(0.005, rel=0.02)
    assert found.row_s == pytest.approx(0.0002, rel=0.1)
    assert found.token_s == pytest.approx(8e-6, rel=0.02)
    for rows, length in ((1, 16), (3, 100), (8, 256), (32, 512)):
        assert model.predict(rows, length) == pytest.approx(law(rows, length), rel=0.02)


def test_every_size_of_every_edge_and_one_between_is_timed():
    shapes = {(rows, length) for rows, length, _ in profiled(Device(law))}
    edges = {(rows, length) for rows in (1, 2, 4, 8) for length in (16, 64)}
    assert shapes == edges | {(rows, length) for rows in (1, 2, 4) for length in (160, 256)} | {
        (6, 160)
    }


def test_extremes_come_first():
    shapes = [(rows, length) for rows, length, _ in profiled(Device(law))]
    assert shapes[:4] == [(1, 16), (1, 64), (1, 160), (1, 256)]
    assert shapes[4:8] == [(8, 16), (8, 64), (6, 160), (4, 256)]


def test_least_of_at_least_two_runs_is_kept():
    device = Device(lambda rows, length: 0.02, first_s=1.0)
    assert [took_s for *_, took_s in profiled(device)] == [pytest.approx(0.02)] * 15
    assert device.runs.count((1, 16)) == 2


def test_short_batches_are_run_more_often():
    device = Device(lambda rows, length: 0.001)
    profiled(device)
    assert device.runs.count((1, 16)) == 5


@pytest.mark.parametrize("seconds", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("token_ms", [0.01, 0.3, 3.0])
def test_time_is_kept_whatever_a_batch_takes(seconds, token_ms):
    device = Device(lambda rows, length: 0.001 + token_ms / 1e3 * rows * length)
    found = profiled(device, seconds)
    assert found[0][:2] == (1, 16)
    first_s = 5 * (0.001 + token_ms / 1e3 * 16)
    assert device.now <= max(seconds, first_s) * 1.5


def test_no_time_is_no_profile():
    device = Device(law)
    assert profiled(device, 0.0) == ()
    assert not device.runs


def test_compiled_lengths_are_the_only_ones():
    limits = Limits(LIMITS.inputs, LIMITS.outputs, length_input="ids", fixed_edges=(32, 128))
    assert {length for _, length, _ in profiled(Device(law), limits=limits)} == {32, 128}


def test_rows_without_length_are_timed_by_number():
    image = Limits(inputs=(TensorSpec("x", "FP32", (-1, 3, 4, 4)),), outputs=(), max_rows=4)
    found = profiled(Device(lambda rows, length: 0.01 * rows), limits=image)
    assert [(rows, length) for rows, length, _ in found] == [(1, 1), (4, 1), (2, 1)]


def test_batch_that_fails_is_a_load_error():
    def fail(batch):
        raise RunError("no room")

    with pytest.raises(LoadError, match="no room"):
        measure(SETTINGS, LIMITS, fail, 1.0, Device(law).clock)


def test_shapes_without_memory_are_left_out_of_the_profile():
    device = Device(law)

    def run(batch):
        if batch.rows * int(batch.lengths.max()) > 512:
            raise OutOfMemory("CUDA out of memory")
        device.run(batch)

    found = measure(SETTINGS, LIMITS, run, 1e9, device.clock)
    shapes = {(rows, length) for rows, length, _ in profiled(Device(law))}
    assert {(rows, length) for rows, length, _ in found} == {
        (rows, length) for rows, length in shapes if rows * length <= 512
    }
    with pytest.raises(LoadError, match="does not run 1 rows of 160"):
        measure(replace(SETTINGS, max_size=1), LIMITS, lambda b: fail_above(128, b), 1.0)


def fail_above(length, batch):
    if int(batch.lengths.max()) > length:
        raise OutOfMemory("CUDA out of memory")


async def engine(**options: Any) -> StreamRuntime:
    chosen = {"base_ms": 1.0, "max_sequences": 8, "step_tokens": 256, **options}
    settings = RuntimeSettings(
        "m", "synthetic", None, Path(), task="generate", max_length=1024, options=chosen
    )
    runtime = catalog.create_stream(settings)
    await runtime.load()
    return runtime


async def test_steps_are_timed_by_sequences_and_by_tokens_read() -> None:
    runtime = await engine(per_sequence_us=500.0, per_prefill_token_us=20.0)
    profile = await measure_stream("m", runtime, 5.0)
    decoding = {count: took for count, tokens, took in profile if count == tokens}
    reading = {tokens: took for count, tokens, took in profile if count == 1 < tokens}
    assert {1, 2, 4, 8} <= decoding.keys()
    assert decoding[8] > decoding[1] + 0.002
    assert max(reading) <= 256
    assert reading[max(reading)] == pytest.approx(0.001 + 20e-6 * max(reading), rel=0.5)
    await runtime.close()


async def test_no_time_measures_nothing() -> None:
    runtime = await engine()
    assert await measure_stream("m", runtime, 0.0) == ()
    await runtime.close()


async def test_little_time_measures_little() -> None:
    runtime = await engine(base_ms=5.0)
    began = perf_counter()
    profile = await measure_stream("m", runtime, 0.15)
    assert perf_counter() - began < 1.0
    assert 1 <= len(profile) <= 3
    await runtime.close()


async def test_an_engine_that_refuses_does_not_start() -> None:
    runtime = await engine()
    with pytest.raises(LoadError, match="does not exist"):
        await measure_stream("another", runtime, 1.0)
    await runtime.close()
