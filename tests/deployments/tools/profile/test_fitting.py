"""Are the cost model, the target and the edges those of the device that was timed?"""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from made_profiles import law, samples, square

from deployments.tools.profile.fitting import fit, knees, target
from deployments.tools.profile.sweep import TimedBatch

SIZES = (1, 2, 4, 8, 16, 32)


def curve(seconds: list[float], width: int = 64) -> list[tuple[int, int, float]]:
    return [(rows, width, s) for rows, s in zip(SIZES, seconds, strict=True)]


def test_a_device_that_saturates_at_eight_rows_has_its_knee_there() -> None:
    # 10 ms up to eight rows, then as long again for each eight more: throughput is flat from 8 on.
    (knee,) = knees(curve([0.01, 0.01, 0.01, 0.01, 0.02, 0.04]), inf)
    assert (knee.at.rows, knee.at.rows_per_s, knee.rises) == (8, pytest.approx(800), False)
    assert target([knee], 32) == 8


def test_small_gains_are_not_worth_the_latency() -> None:
    # 32 rows gain 4 % over 16, 16 gain 30 % over 8.
    (knee,) = knees(curve([1, 1, 1, 1, 16 / 10.4, 32 / 10.8]), inf)
    assert knee.at.rows == 16
    assert knee.best.rows == 32


def test_a_device_of_one_fixed_time_has_no_knee_and_no_target() -> None:
    (knee,) = knees(curve([0.002] * 6), inf)
    assert (knee.at.rows, knee.rises) == (32, True)
    assert target([knee], 32) is None


def test_a_device_that_gains_nothing_runs_single_rows() -> None:
    (knee,) = knees(curve([0.01 * rows for rows in SIZES]), inf)
    assert knee.at.rows == 1
    assert target([knee], 32) == 1


def test_the_target_is_the_largest_knee() -> None:
    short = curve([0.01, 0.01, 0.01, 0.01, 0.01, 0.02], 16)
    long = curve([0.01, 0.02, 0.04, 0.08, 0.16, 0.32], 512)
    assert [(k.width, k.at.rows) for k in knees(short + long, inf)] == [(16, 16), (512, 1)]
    assert target(knees(short + long, inf), 32) == 16


def test_what_the_slo_allows_is_told_beside_it() -> None:
    seconds = [0.01, 0.011, 0.012, 0.02, 0.04, 0.08]
    assert knees(curve(seconds), 0.02)[0].in_slo == 8
    assert knees(curve(seconds), 0.001)[0].in_slo == 1


HELD = [TimedBatch((40, 9, 33), True), TimedBatch((100,) * 7, True), TimedBatch((12,), True)]
BOUNDS = {"pads": True, "max_size": 32, "max_tokens": 8192}


def test_a_device_without_noise_is_found_exactly() -> None:
    found = fit(samples(square() + HELD, runs=3), **BOUNDS)
    assert found is not None
    c = found.coefficients
    assert (c.launch_s, c.row_s, c.token_s) == pytest.approx((5e-3, 2e-4, 8e-6), rel=0.01)
    assert c.square_s == pytest.approx(0.0, abs=1e-12)
    assert found.held is not None
    assert found.held.samples == 3
    assert found.held.p99 < 0.01
    assert found.model.predict(3, 40) == pytest.approx(law(3, 40), rel=0.01)


def test_what_the_grid_does_not_show_is_the_held_out_batches_error() -> None:
    def bent(rows: int, width: int) -> float:
        return law(rows, width) * (1.0 if width in (16, 128) else 1.5)

    found = fit(samples(square() + HELD, bent, runs=3), **BOUNDS)
    assert found is not None
    assert found.held is not None
    assert found.fitted is not None
    assert found.held.median == pytest.approx(1 / 3, rel=0.05)
    assert found.fitted.p99 < 0.01


def test_noise_is_in_the_runs_and_not_in_the_medians() -> None:
    rng = Random(3)

    def noisy(rows: int, width: int) -> float:
        return law(rows, width) * rng.lognormvariate(0.0, 0.1)

    found = fit(samples(square() + HELD, noisy, runs=101), **BOUNDS)
    assert found is not None
    assert found.held is not None
    assert found.runs is not None
    assert found.noise is not None
    assert found.held.p99 < 0.05 < found.runs.median
    assert found.noise.median == pytest.approx(found.runs.median, rel=0.2)
    assert found.runs.samples == 303
