"""The non-negative fit: against brute force, what it keeps, what it lets go."""

import random
from itertools import combinations

import numpy as np
import pytest

from routers.estimates.cost.fit import CostFit, features


def seconds(rows, width):
    return 0.005 + 2e-4 * rows + 8e-6 * rows * width + 4e-9 * rows * width**2


def learn(fit, rows, width, took_s, **how):
    fit.learn(features(rows, width), took_s, took_s, **how)


def fitted(batches, law=seconds, **how):
    fit = CostFit()
    for rows, width in batches:
        learn(fit, rows, width, law(rows, width), **how)
    fit.solve()
    return fit


GRID = [(rows, width) for rows in (1, 2, 4, 8, 16, 32) for width in (16, 100, 128, 512)]


def brute_force(samples):
    """The best of all 16 choices of which coefficients are not zero, by the text book."""
    first = samples[0][0]
    reference = np.array([1e-4, *(10**-0.5 * np.array(features(*first)[1:3])), 0.0])
    tokens = first[0] * first[1]
    reference[3] = 10**-0.5 * tokens * max(first[1], 1024)
    known = [np.array(features(*batch)) / took_s for batch, took_s in samples]
    known += list(np.diag(reference / samples[0][1]))
    wanted = np.array([1.0] * len(samples) + [0.0] * 4)
    best, best_loss = np.zeros(4), float(wanted @ wanted)
    for size in range(1, 5):
        for keep in combinations(range(4), size):
            columns = np.array(known)[:, keep]
            scale = np.abs(columns).max(axis=0)
            c = np.linalg.lstsq(columns / scale, wanted, rcond=None)[0] / scale
            loss = float(np.square(columns @ c - wanted).sum())
            if c.min() >= 0 and loss < best_loss:
                best, best_loss = np.zeros(4), loss
                best[list(keep)] = c
    return best


@pytest.mark.parametrize("seed", range(30))
def test_fit_is_the_best_of_all_without_a_negative_coefficient(seed):
    rng = random.Random(seed)
    samples = []
    for _ in range(rng.choice((1, 2, 3, 5, 20))):
        rows, width = rng.randint(1, 32), rng.choice((16, 32, 100, 512))
        samples.append(((rows, width), seconds(rows, width) * rng.lognormvariate(0, 0.5)))
    fit = CostFit()
    for (rows, width), took_s in samples:
        learn(fit, rows, width, took_s, fade=0.0)
    fit.solve()
    for rows, width in GRID:
        expected = float(np.dot(brute_force(samples), features(rows, width)))
        assert fit.seconds(features(rows, width)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("batch", GRID)
def test_profile_without_noise_gives_the_coefficients(batch):
    fit = fitted(GRID, fade=0.0)
    assert fit.seconds(features(*batch)) == pytest.approx(seconds(*batch), rel=0.01)


def test_one_size_gives_a_constant():
    fit = fitted([(4, 32)] * 5, lambda rows, width: 0.02)
    assert fit.seconds(features(32, 512)) == pytest.approx(0.02, rel=1e-4)


def test_two_sizes_give_a_line_that_a_square_does_not_bend():
    fit = fitted([(1, 16), (8, 16)] * 5)
    assert fit.coefficients[3] * 512 < 0.1 * fit.coefficients[2]
    assert 0.2 < fit.seconds(features(8, 512)) / seconds(8, 512) < 5


@pytest.mark.parametrize("law", [lambda r, w: 1.0 / (r * w), lambda r, w: 0.1 - 5e-6 * r * w])
def test_what_falls_with_size_is_fitted_without_negatives(law):
    fit = fitted(GRID, law)
    assert min(fit.coefficients) >= 0.0
    assert fit.seconds(features(1, 1)) > 0.0


def test_doubt_falls_with_every_batch_of_the_kind():
    x, fit = features(8, 64), CostFit()
    assert fit.doubt(x, 0.01) == float("inf")
    for n in (1, 2, 3, 4):
        fit.learn(x, 0.01, 0.01, fade=0.0)
        assert fit.doubt(x, 0.01) == pytest.approx(1 / n, rel=1e-3)


def test_doubt_of_what_was_never_measured_stays_large():
    fit = fitted([(1, 16)] * 200)
    assert fit.doubt(features(1, 16), seconds(1, 16)) < 0.05
    assert fit.doubt(features(16, 512), seconds(16, 512)) > 1.0


def test_long_run_of_one_size_leaves_the_others_known():
    rng, fit = random.Random(1), fitted(GRID, fade=0.0)
    for _ in range(5000):
        took_s = seconds(8, 32) * rng.lognormvariate(0, 0.1)
        fit.learn(features(8, 32), took_s, seconds(8, 32))
    fit.solve()
    for rows, width in GRID:
        assert fit.seconds(features(rows, width)) == pytest.approx(seconds(rows, width), rel=0.2)


def test_changed_law_is_learnt_in_place_of_the_old_one():
    rng, fit = random.Random(2), fitted(GRID)
    for _ in range(1000):
        rows, width = rng.choice(GRID)
        took_s = 0.02 + 1e-3 * rows
        fit.learn(features(rows, width), took_s, took_s)
    fit.solve()
    for rows, width in GRID:
        assert fit.seconds(features(rows, width)) == pytest.approx(0.02 + 1e-3 * rows, rel=0.05)


def test_rows_without_length_are_fitted_by_number():
    fit = fitted([(rows, 1) for rows in (1, 2, 4, 8, 16)], lambda rows, width: 0.001 + 1e-4 * rows)
    assert fit.seconds(features(32, 1)) == pytest.approx(0.0042, rel=0.1)


def test_empty_rows_are_no_trouble():
    fit = fitted([(1, 0), (4, 0), (4, 16)], lambda rows, width: 0.01)
    assert fit.seconds(features(2, 0)) == pytest.approx(0.01, rel=0.01)
