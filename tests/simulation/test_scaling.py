"""The autoscaler and the dispatcher together, on virtual time: is anything lost or answered twice,
do targets hold, is capacity there when it should be?"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from deployments.settings.plain import parse
from deployments.tools.simulate.devices import devices
from deployments.tools.simulate.scaling import scaling_setup_of, with_reserve
from deployments.tools.simulate.sim_setup import SimSetupError, set_up
from deployments.tools.simulate.simulation import Simulation
from loadtests.traffic.scenario_file import check

MODEL = {
    "runtime": "synthetic",
    "slo": {"latency_ms": 1000},
    "lengths": {"max": 64, "buckets": [64]},
    "batch": {"max_size": 16},
    "replicas": {"min": 1, "max": 8, "slots": 2},
    "options": {"base_ms": 40, "per_request_ms": 5},
}
STARTS = {"start": {"median_s": 8, "p90_s": 10}, "pool_start": {"median_s": 1, "p90_s": 1.5}}
SCENARIO = {
    "settings": "x",
    "duration_s": 100,
    "arrivals": {
        "rate": 60,
        "steps": [{"from_s": 30, "rate": 350}, {"from_s": 70, "rate": 60}],
    },
    "lengths": {"fixed": 32},
    "scaling": STARTS,
}


def simulation(model=None, whole=None, **scenario):
    """`model`, `whole`: what the settings say otherwise of the model, of all models' scaling."""
    data = {"models": {"device": MODEL | (model or {})}, "gateway": {"replicas": 2}}
    settings = parse(data | ({"scaling": whole} if whole else {}))
    described = check(SCENARIO | scenario)
    setup = set_up(described, settings)
    scaling = scaling_setup_of(described, settings, setup)
    if scaling is None:
        return Simulation(Path("x"), described, setup, devices(described, setup))
    return Simulation(Path("x"), described, with_reserve(setup, scaling), (), scaling)


def result(model=None, whole=None, **scenario):
    """Of a run in which each request has ended once."""
    found = simulation(model, whole, **scenario).run(lambda now, requests: None)
    total = found.summary.total()
    assert not any(found.left_over.values()), found.left_over
    assert total.latency.total + sum(total.reasons.values()) == total.offered
    return found


@cache
def spike():
    return result()


def series(found, name):
    return [getattr(each, name) for each in found.scaling.moments]


def unanswered(found):
    return sum(found.summary.total().reasons.values())


# -- what policies do


def test_a_spike_starts_replicas_which_serve_after_their_start():
    found = spike()
    assert max(series(found, "target")) >= 3
    assert 5.0 <= max(found.scaling.to_capacity_s) <= 25.0
    enough = next(n for n, hot in enumerate(series(found, "hot")) if hot >= 3)
    assert 35 <= enough <= 60


def test_the_pool_serves_a_spike_while_replicas_start():
    pooled = result(whole={"pool": {"min": 2, "max": 2}})
    assert unanswered(pooled) <= 0.1 * unanswered(spike())
    assert pooled.summary.total().in_slo_share > spike().summary.total().in_slo_share
    assert pooled.scaling.pool_hours == pytest.approx(2 * 100 / 3600, rel=0.05)


@pytest.mark.parametrize("bound", ["budget", "cluster"])
def test_more_than_the_budget_or_the_cluster_has_is_not_asked_for(bound):
    model = {"replicas": MODEL["replicas"] | {"num_cpus": 2}}
    if bound == "budget":
        found = result(model, {"budget": {"cpus": 4}})
    else:
        found = result(model, scaling=STARTS | {"cluster": {"CPU": 4}})
    assert max(series(found, "target")) == 2
    assert found.scaling.reasons["budget"] > 0


def test_a_model_sleeps_and_a_request_wakes_it_and_is_answered():
    sleepy = {
        "slo": {"latency_ms": 1000, "timeout_ms": 60_000},
        "replicas": {"min": 0, "max": 4},
        "scaling": {"idle_s": 20},
    }
    calls = {"rate": 5, "steps": [{"from_s": 5, "rate": 0}, {"from_s": 70, "rate": 5}]}
    found = result(sleepy, arrivals=calls)
    assert 0 in series(found, "hot")
    assert unanswered(found) == 0
    assert 5.0 < found.summary.total().latency.max_s < 15.0  # a start


def test_callers_without_the_patience_for_a_start_are_refused_at_once():
    sleepy = {"replicas": {"min": 0, "max": 4}, "scaling": {"idle_s": 20}}
    calls = {"rate": 5, "steps": [{"from_s": 5, "rate": 0}, {"from_s": 70, "rate": 5}]}
    slow = {"start": {"median_s": 40, "p90_s": 45}}
    reasons = result(sleepy, arrivals=calls, scaling=slow).summary.total().reasons
    assert reasons["late"] > 0  # the first ones had to be let in: nobody knew
    assert reasons["late"] > reasons["expired"]


# -- policies off


@pytest.mark.parametrize("off", [{"scaling": {"mode": "off"}}, {"replicas": {"count": 3}}])
def test_with_policies_off_it_is_as_with_a_fixed_number(off):
    replicas = off.get("replicas", {"min": 3, "max": 8})
    there = simulation(off | {"replicas": replicas}, duration_s=20)
    assert there.scaling_setup is None
    assert len(there.devices) == 3
    assert there.left_out == ["scaling (the number of replicas is fixed)"]
    fixed = simulation({"replicas": {"count": 3}}, duration_s=20, scaling=None)
    found, expected = (each.run(lambda now, n: None).as_json() for each in (there, fixed))
    assert found == expected
    assert "scaling" not in found


# -- who decides dies, and others do


def test_targets_hold_while_nobody_decides_and_decisions_go_on():
    away = {"decider_away": [{"from_s": 25, "to_s": 60}]}
    found = result(scaling=STARTS | away)
    target = series(found, "target")
    assert set(target[26:60]) == {target[25]}  # through the spike at 30
    assert found.scaling.reasons["nobody decides"] == 35
    assert max(target[60:70]) > target[25]  # within 10 s of its return


def test_what_was_lost_while_nobody_decides_is_made_good():
    faults = {"detect_s": 0.5, "deaths": [{"replica": 0, "at_s": 30}]}
    found = result(
        {"replicas": {"min": 2, "max": 8}}, arrivals={"rate": 60}, duration_s=60, faults=faults,
        scaling=STARTS | {"decider_away": [{"from_s": 20, "to_s": 60}]},
    )  # fmt: skip
    assert min(series(found, "hot")[31:36]) == 1
    assert series(found, "hot")[-1] == 2


@pytest.mark.parametrize("seed", range(2))
def test_deaths_at_random_while_it_scales_lose_and_repeat_nothing(seed):
    faults = {"detect_s": 0.3, "chaos": {"every_s": 6}}
    found = result(seed=seed, faults=faults)
    assert found.summary.total().latency.total > 0.5 * found.summary.total().offered


# -- what cannot be


def test_what_cannot_be_simulated_with_scaling_is_said():
    with pytest.raises(SimSetupError, match="joins: must be left out"):
        simulation(joins=[{"at_s": 1}])
    hanging = {"deaths": [{"replica": 0, "at_s": 1, "hangs": True}]}
    with pytest.raises(SimSetupError, match="hang"):
        simulation(faults=hanging)
