"""Is the knee where larger batches stop to pay, on curves whose knee is known?"""

from __future__ import annotations

from math import inf

import pytest

from deployments.tools.profile.knee import knees, target

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


def test_of_nothing_there_is_no_target() -> None:
    assert knees([], 1.0) == ()
    assert target([], 32) is None
