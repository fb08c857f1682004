"""The scenarios that are shipped, run short: do they run, and does nothing get lost in them?"""

from pathlib import Path

import pytest

from deployments.tools.simulate.simulation import SimulateOptions, prepare
from loadtests.traffic.scenario_file import load

FOLDER = Path(__file__).parents[2] / "loadtests" / "scenarios"
SCENARIOS = sorted(p.stem for p in FOLDER.glob("*.yaml") if "\nmodels:" not in p.read_text())

# What happens late in a scenario, early enough to happen in a short run of it.
EARLIER = {
    "idle-then-spike": ("arrivals.steps=[{from_s: 0.5, rate: 700}]",),
    "replica-killed": ("faults.deaths=[{replica: 3, at_s: 0.5, back_after_s: 0.5}]",),
    "rolling-change": ("joins.0.at_s=0.2", "faults.deaths.0.at_s=0.4", "faults.deaths.1.at_s=0.9"),
    "burst": ("arrivals.steps.0.from_s=0.5", "arrivals.steps.1.from_s=1"),
    "spike-cold": ("arrivals.steps=[{from_s: 0.5, rate: 400}]",),
    "spike-pool": ("arrivals.steps=[{from_s: 0.5, rate: 400}]",),
    "sleeper": ("tenants.two.arrivals.steps.0.from_s=0.5",),
}
WANTED = {
    "ragged-mix", "flood-of-long", "aggressor", "overload-10x", "burst", "slow-replica", "hiccups",
    "replica-killed", "rolling-change", "idle-then-spike", "generation-mix", "recorded",
    "groups", "spike-cold", "spike-pool", "diurnal-day", "scale-to-zero", "sawtooth",
}  # fmt: skip


def simulation(name, *changes, folder=FOLDER, **asked):
    changes = ("warmup_s=0.5", *changes)
    result = prepare(folder / f"{name}.yaml", SimulateOptions(changes, **asked)).run(
        lambda now, n: None
    )
    assert not any(result.left_over.values()), result.left_over
    return result


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_that_is_shipped_runs_and_loses_nothing(name):
    result = simulation(name, "duration_s=1.5", *EARLIER.get(name, ()))
    assert result.summary.total().offered >= 1


@pytest.mark.parametrize("name", ["replica-killed", "rolling-change"])
def test_no_request_is_lost_with_a_replica(name):
    assert not simulation(name, "duration_s=1.5", *EARLIER[name]).summary.total().reasons


def test_stored_log_of_streams_has_all_that_may_become_of_one():
    folder = Path(__file__).parents[1] / "oracles"
    found = simulation("stream-faults", "duration_s=40", "warmup_s=2", folder=folder, seed=1)
    (core,) = found.cores
    counts = core.preempted, core.hedges, core.hedges_won, core.suspensions, core.moved_rows
    assert all(counts), counts
    assert core.retries
    assert found.summary.total().reasons["replica_lost"]


def test_those_that_people_ask_for_are_there_and_say_what_to_look_for():
    assert set(SCENARIOS) >= WANTED
    for name in WANTED:
        assert "ook " in load(FOLDER / f"{name}.yaml").about


@pytest.mark.parametrize("seed", range(4))
def test_chaos_loses_nothing_and_answers_nothing_twice(seed):
    faults = "faults.chaos={every_s: 0.7, back_after_s: 0.5, hanging: 0.3}"
    hang_limit = "settings.models.device.replicas.hang_limit_s=0.4"
    result = simulation("chaos", "duration_s=6", faults, hang_limit, seed=seed)
    total = result.summary.total()
    assert total.latency.total + sum(total.reasons.values()) == total.offered
    assert total.latency.total > 0.5 * total.offered


@pytest.mark.slow
def test_twenty_seconds_of_chaos_leave_nothing_behind():
    result = simulation("chaos", "duration_s=20")
    assert result.summary.total().in_slo_share > 0.5
