"""Does the sweep keep to its time, leave out first runs, and keep what it has when interrupted?"""

from __future__ import annotations

import pytest
from made_profiles import law, square

from deployments.tools.profile.plan import Trial
from deployments.tools.profile.sweep import Sweep
from runtimes.errors import BadRows, RunError
from runtimes.types import Batch, Limits, Result, StageTimes, TensorSpec

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
    trials = square()
    sweep.run([trials], 1e9)
    for trial in trials:
        runs = device.shapes.count((trial.rows, trial.lengths[0]))
        took = [each.took_s for each in sweep.samples if each.trial == trial]
        assert len(took) == runs - 1
        assert took == pytest.approx([law(trial.rows, trial.lengths[0])] * len(took))


def test_warmed_shapes_count_from_their_first_run_on() -> None:
    device = Device()
    warmed = Trial((10,) * 200)
    sweep = Sweep(device, lambda what: None, lambda: device.now, {(200, 10)})  # type: ignore[arg-type]
    sweep.run([[warmed]], 1e9)
    assert device.shapes == [(200, 10)]
    assert len(sweep.samples) == 1


def test_short_batches_are_run_several_times_at_a_visit() -> None:
    sweep = Device().sweep()
    sweep.run([[Trial((10,)), Trial((10,) * 200)]], 1e9)
    assert [each.trial.rows for each in sweep.samples] == [1, 1, 1, 1, 200]


@pytest.mark.parametrize("seconds", [0.5, 3.0, 12.0])
def test_the_time_is_kept_but_for_one_surprise(seconds: float) -> None:
    device = Device()
    device.sweep().run([square() for _ in range(1000)], seconds)
    assert device.now <= seconds + 2.2


def test_a_batch_too_long_for_the_rest_is_left_out() -> None:
    device = Device()
    sweep = device.sweep()
    small, large = Trial((10,)), Trial((10,) * 1000)
    sweep.run([[small], [small, large]], 1.1)
    assert {each.trial for each in sweep.samples} == {small}


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
