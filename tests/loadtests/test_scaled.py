"""Does a scenario at another rate stay itself, and what is its rate?"""

from pathlib import Path

import pytest

from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scaled import rate_of, scaled
from loadtests.traffic.scenario_file import ScenarioErrors, check

PLAIN = {"duration_s": 20, "warmup_s": 5, "lengths": {"fixed": 8}}
STEPS = [{"from_s": 10, "rate": 300, "ramp_s": 2}]


@pytest.mark.parametrize(
    "parts",
    [
        {"arrivals": {"rate": 100}},
        {"arrivals": {"rate": 60, "plus": [{"process": "constant", "rate": 40}]}},
        {"arrivals": {"rate": 100, "steps": STEPS}, "tenants": {"a": {}, "b": {}}},
        {"tenants": {"a": {"arrivals": {"rate": 50}}, "b": {"arrivals": {"rate": 50}}}},
    ],
)
def test_everybody_calls_more_often_in_proportion(parts):
    scenario = check(PLAIN | parts)
    rate = rate_of(scenario, Path())
    assert rate_of(scaled(scenario, 3.0), Path()) == pytest.approx(3 * rate, rel=0.1)


def test_recording_is_replayed_faster(tmp_path):
    rows = "".join(f"{n / 20},8\n" for n in range(2000))
    (tmp_path / "trace.csv").write_text("seconds,length\n" + rows)
    scenario = check(PLAIN | {"arrivals": {"process": "trace", "file": "trace.csv"}})
    assert rate_of(scenario, tmp_path) == pytest.approx(20, rel=0.01)
    assert rate_of(scaled(scenario, 2.0), tmp_path) == pytest.approx(40, rel=0.01)


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [({"process": "closed"}, "closed loop has no rate"), ({"rate": 0}, "sends nothing")],
)
def test_scenario_without_a_rate_is_told(arrivals, said):
    with pytest.raises(ScenarioErrors, match=said):
        rate_of(check(PLAIN | {"arrivals": arrivals}), Path())


def test_scaled_scenario_makes_a_plan():
    scenario = scaled(check(PLAIN | {"arrivals": {"rate": 10}}), 0.5)
    assert len(list(TrafficPlan(scenario, Path()).requests())) < 250
