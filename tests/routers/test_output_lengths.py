"""Outputs are predicted from the tenant's own, else from everybody's, within what may come."""

from __future__ import annotations

import pytest

from routers.estimates.generations import OutputLengths


def known(**tenants: list[float]) -> OutputLengths:
    lengths = OutputLengths()
    for tenant, outputs in tenants.items():
        for tokens in outputs:
            lengths.learn(tenant, 100, tokens)
    return lengths


def test_without_history_all_that_may_come_is_expected() -> None:
    assert OutputLengths().predict("a", 100, 500, 0.5) == 500


@pytest.mark.parametrize("outputs", [1, 7])
def test_few_outputs_are_no_history(outputs: int) -> None:
    assert known(a=[50.0] * outputs).predict("a", 100, 500, 0.5) == 500


def test_median_and_ninth_decile_are_those_of_the_outputs() -> None:
    lengths = known(a=[float(n) for n in range(1, 101)] * 3)
    assert lengths.predict("a", 100, 10_000, 0.5) == pytest.approx(50, rel=0.15)
    assert lengths.predict("a", 100, 10_000, 0.9) == pytest.approx(90, rel=0.15)


def test_new_tenant_is_predicted_by_all_others() -> None:
    lengths = known(a=[50.0] * 20)
    assert lengths.predict("new", 100, 500, 0.5) == pytest.approx(50, rel=0.1)


def test_tenants_have_histories_of_their_own() -> None:
    lengths = known(a=[10.0] * 20, b=[1000.0] * 20)
    assert lengths.predict("a", 100, 5000, 0.9) < 20
    assert lengths.predict("b", 100, 5000, 0.5) > 900


def test_prompts_of_other_lengths_have_histories_of_their_own() -> None:
    lengths = known(a=[50.0] * 20)
    assert lengths.predict("a", 10_000, 5000, 0.5) == 5000


def test_no_prediction_exceeds_what_may_come() -> None:
    assert known(a=[500.0] * 20).predict("a", 100, 64, 0.9) == 64


@pytest.mark.parametrize("so_far", [50.0, 100.0, 399.0])
def test_one_that_goes_on_is_predicted_by_those_that_went_as_far(so_far: float) -> None:
    lengths = known(a=[10.0] * 90 + [400.0] * 30)
    assert lengths.predict("a", 100, 5000, 0.5) < 15
    assert lengths.predict("a", 100, 5000, 0.5, so_far) == pytest.approx(400, rel=0.1)


def test_one_that_outlives_all_is_expected_to_double() -> None:
    assert known(a=[10.0] * 50).predict("a", 100, 5000, 0.9, 300.0) == 600
    assert known(a=[10.0] * 50).predict("a", 100, 500, 0.9, 300.0) == 500


def test_everything_may_be_reserved() -> None:
    assert known(a=[10.0] * 50).predict("a", 100, 5000, 1.0) == 5000


def test_fixed_prediction_is_not_learnt() -> None:
    lengths = OutputLengths(fixed=30)
    for _ in range(20):
        lengths.learn("a", 100, 500.0)
    assert lengths.predict("a", 100, 5000, 0.9) == 30
    assert lengths.predict("a", 100, 20, 0.9) == 20
    assert len(lengths) == 0


def test_frozen_predictions_stay() -> None:
    lengths = known(a=[10.0] * 20)
    lengths.frozen = True
    before = lengths.predict("a", 100, 5000, 0.5)
    for _ in range(50):
        lengths.learn("a", 100, 500.0)
    assert lengths.predict("a", 100, 5000, 0.5) == before


def test_what_tenants_do_now_outweighs_what_they_did() -> None:
    lengths = known(a=[10.0] * 500 + [400.0] * 500)
    assert lengths.predict("a", 100, 5000, 0.5) > 350


def test_memory_is_bounded_by_forgetting_whoever_was_away_longest() -> None:
    lengths = OutputLengths()
    for n in range(3000):
        lengths.learn(f"tenant {n}", 100, 10.0)
    assert len(lengths) == 1024


def test_weights_stay_finite() -> None:
    lengths = known(a=[10.0] * 20_000)
    assert lengths.predict("a", 100, 5000, 0.9) < 15
