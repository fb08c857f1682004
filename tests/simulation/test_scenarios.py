"""The scenarios that are shipped, run short: do they run, and does nothing get lost in them?"""

from pathlib import Path

import pytest

from deployments.simulation.play import Asked, prepare

FOLDER = Path(__file__).parents[2] / "loadtests" / "scenarios"
SCENARIOS = sorted(p.stem for p in FOLDER.glob("*.yaml") if "\nmodels:" not in p.read_text())


def play(name, *changes, **asked):
    changes = ("warmup_s=0.5", *changes)
    played = prepare(FOLDER / f"{name}.yaml", Asked(changes, **asked)).run(lambda now, n: None)
    assert not any(played.left_over.values()), played.left_over
    return played


SOONER = {"idle-then-spike": ["arrivals.steps=[{from_s: 0.5, rate: 700}]"]}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_that_is_shipped_runs_and_loses_nothing(name):
    changes = ["duration_s=1.5", *SOONER.get(name, ())]
    assert play(name, *changes).summary.total().offered >= 1


@pytest.mark.parametrize("seed", range(4))
def test_chaos_loses_nothing_and_answers_nothing_twice(seed):
    faults = "faults.chaos={every_s: 0.7, back_after_s: 0.5, hanging: 0.3}"
    hang_limit = "settings.models.device.replicas.hang_limit_s=0.4"
    played = play("chaos", "duration_s=6", faults, hang_limit, seed=seed)
    total = played.summary.total()
    assert total.latency.total + sum(total.reasons.values()) == total.offered
    assert total.latency.total > 0.5 * total.offered


@pytest.mark.slow
def test_a_minute_of_chaos_leaves_nothing_behind():
    played = play("chaos", "duration_s=60")
    assert played.summary.total().in_slo_share > 0.5
