"""Predictions of the cost model, and the typical batch of a bucket."""

from __future__ import annotations

import random

import pytest

from routers.api.settings import DispatcherSettings
from routers.estimates.cost.model import Coefficients, CostModel, TypicalBatches


@pytest.mark.parametrize(("edge", "rows"), [(16, 16), (512, 8), (8192, 1), (100_000, 1), (0, 16)])
def test_half_of_what_fits_is_assumed(edge, rows):
    typical = TypicalBatches(max_size=32, max_tokens=8192).of(edge)
    assert (typical.rows, typical.width) == (rows, edge)


def test_batches_of_a_bucket_are_averaged_and_no_other_is_touched():
    batches = TypicalBatches(32, 8192)
    for _ in range(100):
        batches.observe(64, 2, 40)
        batches.observe(64, 6, 60)
    typical = batches.of(64)
    assert typical.rows == pytest.approx(4, abs=0.3)
    assert typical.width == pytest.approx(50, abs=2)
    assert batches.of(128).rows == 16


def observe(model, rows, width, service_s, replica_id=""):
    model.observe(
        rows,
        width,
        service_s,
        predicted_s=model.predict(rows, width, replica_id),
        replica_id=replica_id,
    )


def trained(seconds=lambda rows, width: 0.005 + 1e-5 * rows * width, samples=100):
    model, rng = CostModel(), random.Random(7)
    for _ in range(samples):
        rows, width = rng.randint(1, 32), rng.choice((16, 32, 128, 512))
        observe(model, rows, width, seconds(rows, width))
    return model


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (8, 64), (32, 512)])
def test_affine_cost_is_learnt(rows, width):
    assert trained().predict(rows, width) == pytest.approx(0.005 + 1e-5 * rows * width, rel=2e-3)


@pytest.mark.parametrize("initial_s", [0.0, 0.25])
def test_unmeasured_cost_is_the_initial_one(initial_s):
    assert CostModel(initial_s).predict(8, 64) == initial_s


def test_one_sample_is_believed():
    model = CostModel(1.0)
    observe(model, 4, 32, 0.02)
    for rows, width in ((4, 32), (1, 8), (32, 512)):
        assert model.predict(rows, width) == pytest.approx(0.02, rel=1e-4)


def test_batches_of_one_size_give_a_constant():
    model = CostModel()
    for _ in range(50):
        observe(model, 8, 64, 0.01)
    assert model.predict(8, 64) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "seconds", [lambda r, w: 0.1 - 1e-6 * r * w, lambda r, w: 1e-6 * (r * w) ** 2]
)
def test_predictions_are_never_negative_and_grow_with_size(seconds):
    model = trained(seconds)
    small, large = model.predict(1, 1), model.predict(32, 512)
    assert 0 <= small <= large


def test_hiccup_bends_predictions_little():
    model = trained()
    before = model.predict(8, 64)
    observe(model, 8, 64, 100 * before)
    assert model.predict(8, 64) < 1.2 * before


def test_lasting_change_is_followed():
    model = trained()
    for _ in range(60):
        observe(model, 8, 64, 0.5)
    assert model.predict(8, 64) == pytest.approx(0.5, rel=0.15)


def test_slow_replica_is_predicted_slower():
    model, rng = CostModel(), random.Random(3)
    for _ in range(300):
        rows = rng.randint(1, 32)
        observe(model, rows, 64, 0.005 + 1e-5 * rows * 64, "fast")
        observe(model, rows, 64, 0.010 + 2e-5 * rows * 64, "slow")
    assert model.predict(8, 64, "slow") > 1.7 * model.predict(8, 64, "fast")
    assert model.slowdown("slow") > 1.3
    model.forget("slow")
    assert model.predict(8, 64, "slow") == model.predict(8, 64)


def test_answer_without_a_service_time_is_no_sample():
    model = CostModel(1.0)
    observe(model, 8, 64, 0.0)
    assert not model.measured
    assert model.predict(8, 64) == 1.0


def test_error_is_reported_over_recent_batches():
    assert CostModel().error().samples == 0
    model = trained(samples=1000)
    error = model.error()
    assert error.samples == 256
    assert error.median < 1e-3
    for _ in range(10):
        observe(model, 8, 64, 2 * model.predict(8, 64))
    assert model.error().p99 == pytest.approx(0.5, rel=0.2)


LAW = (0.005, 2e-4, 8e-6, 3e-9)


def ragged(rows, width):
    launch, row, token, square = LAW
    return launch + rows * (row + width * (token + square * width))


PROFILE = tuple(
    (rows, width, ragged(rows, width)) for rows in (1, 4, 8, 32) for width in (32, 100, 512)
)


def test_profile_is_known_from_the_start():
    model = CostModel(9.0, PROFILE)
    assert model.measured
    for rows, width in ((1, 16), (16, 256), (32, 512)):
        assert model.predict(rows, width) == pytest.approx(ragged(rows, width), rel=0.01)
    found = model.coefficients
    assert (found.launch_s, found.row_s, found.token_s, found.square_s) == pytest.approx(
        LAW, rel=0.03
    )


def test_profile_without_times_is_none():
    assert CostModel(0.5, [(1, 16, 0.0)]).coefficients == Coefficients(0.5, 0.0, 0.0, 0.0)


def test_device_slower_than_its_profile_is_followed_at_once_in_all_sizes():
    model = CostModel(0.0, PROFILE)
    for _ in range(3):
        observe(model, 8, 64, 2 * ragged(8, 64), "a")
    for rows, width in ((1, 16), (8, 64), (32, 512)):
        assert model.predict(rows, width, "a") == pytest.approx(2 * ragged(rows, width), rel=0.05)


def test_first_batches_of_another_size_teach_the_fit_and_not_the_replica():
    model = CostModel()
    for _ in range(50):
        observe(model, 1, 16, ragged(1, 16), "a")
    for width in (512, 300, 400):
        observe(model, 16, width, ragged(16, width), "a")
    assert model.predict(16, 450, "a") == pytest.approx(ragged(16, 450), rel=0.15)
    assert model.predict(1, 16, "a") == pytest.approx(ragged(1, 16), rel=0.05)
    assert model.slowdown("a") == pytest.approx(1.0, abs=0.05)


def test_slow_replica_leaves_the_others_predictions_alone():
    model, rng = CostModel(0.0, PROFILE), random.Random(1)
    for turn in range(400):
        rows, width, slow = rng.randint(1, 16), rng.randint(8, 512), turn % 8 == 0
        observe(model, rows, width, ragged(rows, width) * (5 if slow else 1), str(turn % 8))
    assert model.predict(8, 64, "1") == pytest.approx(ragged(8, 64), rel=0.03)
    assert model.predict(8, 64, "0") == pytest.approx(5 * ragged(8, 64), rel=0.03)
    assert model.predict(8, 64, "new") == pytest.approx(ragged(8, 64), rel=0.1)


def noisy(samples=1000, hiccups=0.0, seed=5):
    model, rng = CostModel(0.0, PROFILE), random.Random(seed)
    below = {0.5: 0, 0.99: 0}
    for _ in range(samples):
        rows, width = rng.randint(1, 16), rng.randint(8, 512)
        took_s = ragged(rows, width) * rng.lognormvariate(0, 0.1)
        took_s *= 20 if rng.random() < hiccups else 1
        for quantile in below:
            below[quantile] += took_s <= model.predict(rows, width, "a", quantile)
        observe(model, rows, width, took_s, "a")
    return model, {quantile: count / samples for quantile, count in below.items()}


def test_quantiles_hold_what_they_promise():
    _, below = noisy()
    assert below[0.5] == pytest.approx(0.5, abs=0.05)
    assert below[0.99] == pytest.approx(0.985, abs=0.01)


def test_hiccups_widen_no_quantile():
    model, _ = noisy(hiccups=0.01)
    assert model.predict(8, 64, "a", 0.99) < 1.5 * model.predict(8, 64, "a")


def test_nothing_is_learnt_while_frozen_but_errors_are_counted():
    model = trained()
    before = model.predict(8, 64), model.unit_s(64), model.coefficients
    model.freeze(True)
    for _ in range(300):
        observe(model, 8, 64, 3 * before[0])
    assert (model.predict(8, 64), model.unit_s(64), model.coefficients) == before
    assert model.error().median == pytest.approx(2 / 3)
    model.freeze(False)
    for _ in range(30):
        observe(model, 8, 64, 3 * before[0])
    assert model.predict(8, 64) == pytest.approx(3 * before[0], rel=0.05)


def test_row_costs_its_share_of_half_a_batch_until_one_was_measured():
    model = CostModel(0.0, PROFILE, max_size=32, max_tokens=4096)
    assert model.unit_s(32) == pytest.approx(ragged(16, 32) / 16, rel=0.01)
    assert model.unit_s(512) == pytest.approx(ragged(4, 512) / 4, rel=0.01)


def test_row_costs_its_share_of_the_usual_batch():
    model = CostModel(0.0, PROFILE)
    for _ in range(100):
        rows, width = 2, 50
        took_s = ragged(rows, width)
        model.observe(rows, width, took_s, predicted_s=took_s, replica_id="a", edge=64)
    assert model.unit_s(64) == pytest.approx(ragged(2, 50) / 2, rel=0.01)
    assert model.unit_s(128) == pytest.approx(ragged(16, 128) / 16, rel=0.01)


def test_row_is_weighed_with_the_pool_as_it_is():
    model = CostModel(0.0, PROFILE)
    before = model.unit_s(64)
    for _ in range(40):
        observe(model, 8, 64, 2 * ragged(8, 64), "a")
    assert model.unit_s(64) == pytest.approx(2 * before, rel=0.05)


def settings(**fields):
    return DispatcherSettings((32, 512), **{"profile": PROFILE, **fields})


def test_other_profile_is_another_model():
    model = CostModel.of(settings())
    for _ in range(20):
        observe(model, 8, 64, 3 * ragged(8, 64), "a")
    model.adopt(settings(max_queue_rows=7))
    assert model.predict(8, 64, "a") == pytest.approx(3 * ragged(8, 64), rel=0.05)
    twice = tuple((rows, width, 2 * took_s) for rows, width, took_s in PROFILE)
    model.adopt(settings(profile=twice))
    assert model.predict(8, 64, "a") == pytest.approx(2 * ragged(8, 64), rel=0.01)
    assert model.error().samples == 0


def test_other_batch_bounds_keep_what_was_learnt():
    model = CostModel.of(settings())
    before = model.predict(8, 64), model.unit_s(64)
    model.adopt(settings(max_size=16, fixed_size=8))
    assert model.predict(8, 64) == before[0]
    assert model.unit_s(64) == pytest.approx(ragged(4, 64) / 4, rel=0.01)
    assert model.unit_s(64) > before[1]


def test_settings_freeze_and_thaw():
    model = CostModel.of(settings(frozen=True))
    before = model.predict(8, 64)
    observe(model, 8, 64, 1.0)
    assert model.predict(8, 64) == before
    model.adopt(settings())
    observe(model, 8, 64, 1.0)
    assert model.predict(8, 64) > before
