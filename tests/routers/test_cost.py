"""The online cost line: what it learns, what it withstands."""

import random

import pytest

from routers.cost import CostModel


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
    assert trained().predict(rows, width) == pytest.approx(0.005 + 1e-5 * rows * width, rel=1e-6)


@pytest.mark.parametrize("initial_s", [0.0, 0.25])
def test_unmeasured_cost_is_the_initial_one(initial_s):
    assert CostModel(initial_s).predict(8, 64) == initial_s


def test_one_sample_is_believed():
    model = CostModel(1.0)
    observe(model, 4, 32, 0.02)
    assert model.predict(4, 32) == model.predict(1, 8) == pytest.approx(0.02)


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


def test_hiccups_bend_the_line_little():
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
    assert error.median < 1e-6
    for _ in range(10):
        observe(model, 8, 64, 2 * model.predict(8, 64))
    assert model.error().p99 == pytest.approx(0.5, rel=0.2)
