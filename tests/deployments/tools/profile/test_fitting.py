"""Is the fit's error that of batches it has not seen, and is noise told apart from it?"""

from __future__ import annotations

from random import Random

import pytest
from made_profiles import law, samples, square

from deployments.tools.profile.fitting import fit
from deployments.tools.profile.plan import Trial

HELD = [Trial((40, 9, 33), True), Trial((100,) * 7, True), Trial((12,), True)]
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
    assert found.seconds(3, 40) == pytest.approx(law(3, 40), rel=0.01)


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


def test_only_held_out_batches_are_no_fit() -> None:
    assert fit(samples(HELD), **BOUNDS) is None


def test_without_held_out_batches_there_is_no_error_to_tell() -> None:
    found = fit(samples(square()), **BOUNDS)
    assert found is not None
    assert (found.held, found.runs, found.noise) == (None, None, None)
