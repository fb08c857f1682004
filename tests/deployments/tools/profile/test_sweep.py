"""Are batches of the grid, and ragged ones between its points, timed within the time given?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest
from made_profiles import law, square

from deployments.tools.profile.sweep import HELD, Sweep, TimedBatch, held_out, rounds, shape_grid
from runtimes.errors import BadRows, OutOfMemory, RunError
from runtimes.types import Batch, Limits, Result, RuntimeSettings, StageTimes, TensorSpec

SETTINGS = RuntimeSettings(
    "m", "synthetic", None, Path(), edges=(16, 64), max_size=8, max_tokens=256
)
GRID_LIMITS = Limits((TensorSpec("ids", "INT64", (-1, -1)),), (), length_input="ids", max_length=64)
IMAGE = Limits((TensorSpec("pixels", "FP32", (-1, 3)),), ())


def test_the_grid_begins_with_its_extremes() -> None:
    shapes = [(timed.rows, timed.width(True)) for timed in shape_grid(SETTINGS, GRID_LIMITS)]
    assert shapes[:3] == [(1, 16), (1, 40), (1, 64)]
    assert shapes[3:6] == [(8, 16), (6, 40), (4, 64)]
    assert len(set(shapes)) == len(shapes)
    assert not any(timed.held for timed in shape_grid(SETTINGS, GRID_LIMITS))


def test_held_out_batches_keep_every_bound_and_one_interval_each() -> None:
    lengths = [3, 9, 16, 17, 40, 64, 100]
    found = held_out(SETTINGS, GRID_LIMITS, lengths, Random(1))
    assert 10 < len(found) <= HELD
    for timed in found:
        assert timed.held
        assert timed.rows <= 8
        assert timed.rows * max(timed.lengths) <= 256
        assert max(timed.lengths) <= 16 or min(timed.lengths) > 16
    assert held_out(SETTINGS, GRID_LIMITS, lengths, Random(1)) == found


def test_rows_without_lengths_are_held_out_by_size() -> None:
    assert [timed.rows for timed in held_out(SETTINGS, IMAGE, [1], Random(0))] == [3, 5, 6, 7]
    assert {timed.lengths for timed in shape_grid(SETTINGS, IMAGE)} == {
        (1,) * n for n in (1, 2, 4, 8)
    }


def test_every_round_has_all_in_another_order() -> None:
    all_timed = [TimedBatch((n,)) for n in range(1, 20)]
    first, second, third = islice(rounds(all_timed, Random(0)), 3)
    assert list(first) == all_timed
    assert second != first != third != second
    assert set(second) == set(third) == set(all_timed)


def test_packed_rows_count_by_their_mean() -> None:
    timed = TimedBatch((10, 11, 30))
    assert (timed.width(True), timed.width(False), timed.tokens) == (30, 17, 51)


LIMITS = Limits((TensorSpec("ids", "INT64", (-1, -1)),), (), length_input="ids")


class Device:
    """Takes what `law` says on a clock of its own; the first run of a shape takes a second more.
    After `stop_after` runs somebody presses Ctrl-C."""

    def __init__(self, stop_after: int = 1 << 30) -> None:
        self.now = 0.0
        self.shapes: list[tuple[int, int]] = []
        self._stop_after = stop_after

    def limits(self) -> Limits:
        return LIMITS

    def run(self, batch: Batch) -> Result:
        if len(self.shapes) == self._stop_after:
            raise KeyboardInterrupt
        shape = batch.rows, int(batch.lengths.max())
        self.now += law(*shape) + (shape not in self.shapes)
        self.shapes.append(shape)
        return Result({}, StageTimes(), 0)

    def sweep(self) -> Sweep:
        return Sweep(self, lambda what: None, lambda: self.now)  # type: ignore[arg-type]


def test_first_runs_do_not_count() -> None:
    device = Device()
    sweep = device.sweep()
    all_timed = square()
    sweep.run([all_timed], 1e9)
    for timed in all_timed:
        runs = device.shapes.count((timed.rows, timed.lengths[0]))
        took = [each.took_s for each in sweep.samples if each.timed == timed]
        assert len(took) == runs - 1
        assert took == pytest.approx([law(timed.rows, timed.lengths[0])] * len(took))


def test_warmed_shapes_count_from_their_first_run_on() -> None:
    device = Device()
    warmed = TimedBatch((10,) * 200)
    sweep = Sweep(device, lambda what: None, lambda: device.now, {(200, 10)})  # type: ignore[arg-type]
    sweep.run([[warmed]], 1e9)
    assert device.shapes == [(200, 10)]
    assert len(sweep.samples) == 1


def test_short_batches_are_run_several_times_at_a_visit() -> None:
    sweep = Device().sweep()
    sweep.run([[TimedBatch((10,)), TimedBatch((10,) * 200)]], 1e9)
    assert [each.timed.rows for each in sweep.samples] == [1, 1, 1, 1, 200]


@pytest.mark.parametrize("seconds", [0.5, 3.0, 12.0])
def test_the_time_is_kept_but_for_one_surprise(seconds: float) -> None:
    device = Device()
    device.sweep().run([square() for _ in range(1000)], seconds)
    assert device.now <= seconds + 2.2


def test_a_batch_too_long_for_the_rest_is_left_out() -> None:
    device = Device()
    sweep = device.sweep()
    small, large = TimedBatch((10,)), TimedBatch((10,) * 1000)
    sweep.run([[small], [small, large]], 1.1)
    assert {each.timed for each in sweep.samples} == {small}


def test_what_was_measured_before_an_interruption_is_kept() -> None:
    sweep = Device(stop_after=5).sweep()
    with pytest.raises(KeyboardInterrupt):
        sweep.run([square()], 1e9)
    assert len(sweep.samples) == 4


def test_a_model_that_refuses_zeros_says_so() -> None:
    class Picky(Device):
        def run(self, batch: Batch) -> Result:
            raise BadRows("ids begin at 1")

    with pytest.raises(RunError, match="refuses zeros as input: ids begin at 1"):
        Picky().sweep().run([square()], 1.0)


def test_a_batch_without_memory_is_left_out_and_not_tried_again() -> None:
    tried: list[tuple[int, int]] = []

    class Small(Device):
        def run(self, batch: Batch) -> Result:
            shape = batch.rows, int(batch.lengths.max())
            if shape[0] * shape[1] > 128:
                tried.append(shape)
                raise OutOfMemory("CUDA out of memory")
            return super().run(batch)

    too_large = TimedBatch((65,) * 4)
    sweep = Small().sweep()
    sweep.run([square(), (too_large,), (TimedBatch((8,)), too_large)], 1e9)
    assert tried.count((4, 65)) == 1
    assert {each.timed.tokens <= 128 for each in sweep.samples} == {True}
    with pytest.raises(OutOfMemory):
        Small().sweep().run([(TimedBatch((129,)),)], 1e9)
