"""Does the plan cover what is to be fitted, and hold back what the fit is judged by?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

from deployments.tools.profile.plan import HELD, Trial, grid, held_out, rounds
from runtimes.types import Limits, RuntimeSettings, TensorSpec

SETTINGS = RuntimeSettings(
    "m", "synthetic", None, Path(), edges=(16, 64), max_size=8, max_tokens=256
)
LIMITS = Limits((TensorSpec("ids", "INT64", (-1, -1)),), (), length_input="ids", max_length=64)
IMAGE = Limits((TensorSpec("pixels", "FP32", (-1, 3)),), ())


def test_the_grid_begins_with_its_extremes() -> None:
    shapes = [(trial.rows, trial.width(True)) for trial in grid(SETTINGS, LIMITS)]
    assert shapes[:3] == [(1, 16), (1, 40), (1, 64)]
    assert shapes[3:6] == [(8, 16), (6, 40), (4, 64)]
    assert len(set(shapes)) == len(shapes)
    assert not any(trial.held for trial in grid(SETTINGS, LIMITS))


def test_held_out_batches_keep_every_bound_and_one_interval_each() -> None:
    lengths = [3, 9, 16, 17, 40, 64, 100]
    found = held_out(SETTINGS, LIMITS, lengths, Random(1))
    assert 10 < len(found) <= HELD
    for trial in found:
        assert trial.held
        assert trial.rows <= 8
        assert trial.rows * max(trial.lengths) <= 256
        assert max(trial.lengths) <= 16 or min(trial.lengths) > 16
    assert held_out(SETTINGS, LIMITS, lengths, Random(1)) == found


def test_rows_without_lengths_are_held_out_by_size() -> None:
    assert [trial.rows for trial in held_out(SETTINGS, IMAGE, [1], Random(0))] == [3, 5, 6, 7]
    assert {trial.lengths for trial in grid(SETTINGS, IMAGE)} == {(1,) * n for n in (1, 2, 4, 8)}


def test_every_round_has_all_in_another_order() -> None:
    trials = [Trial((n,)) for n in range(1, 20)]
    first, second, third = islice(rounds(trials, Random(0)), 3)
    assert list(first) == trials
    assert second != first != third != second
    assert set(second) == set(third) == set(trials)


def test_packed_rows_count_by_their_mean() -> None:
    trial = Trial((10, 11, 30))
    assert (trial.width(True), trial.width(False), trial.tokens) == (30, 17, 51)
