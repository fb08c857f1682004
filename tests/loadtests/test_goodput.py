"""Is the highest rate found that a server can keep, and is a lucky or unlucky run outvoted?"""

from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path

import pytest

from loadtests.goodput import GeneratorBehind, ScenarioTrials, Search, rate_of, scaled, search
from loadtests.results.record import Client, Record, TenantLengthStats
from loadtests.run import PreparedRun, RunOptions
from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario_file import ScenarioErrors, check, load


def cliff(at: float):
    """A server that keeps everything up to a rate and nothing above it."""
    return lambda rate: 1.0 if rate <= at else 0.5


@pytest.mark.parametrize("at", [3.0, 10.0, 11.0, 479.0, 12_345.0])
def test_interval_holds_the_highest_rate_and_is_narrow(at):
    found = search(cliff(at), Search(low=10, within=0.02))
    assert found.holds <= at < found.fails
    assert found.fails <= found.holds * 1.02 + 1e-9


def test_ninety_nine_per_cent_is_enough_and_less_is_not():
    assert search(lambda rate: 0.99, Search(low=1, high=8)).holds == 8
    assert search(lambda rate: 0.9899, Search(low=1, high=8)).holds == 0


def test_no_rate_above_the_highest_is_tried():
    found = search(cliff(inf), Search(low=3, high=100))
    assert max(trial.rate for trial in found.trials) == 100
    assert (found.holds, found.fails) == (100, inf)
    assert str(found) == "at least 100/s"


def test_server_that_never_keeps_it_is_given_up():
    found = search(cliff(0.0), Search(low=10))
    assert found.holds == 0
    assert len(found.trials) < 50


def test_one_unlucky_run_does_not_end_the_search():
    runs = count()

    def measure(rate: float) -> float:
        return 0.0 if next(runs) == 0 else cliff(500)(rate)

    found = search(measure, Search(low=100))
    assert 470 < found.holds <= 500 < found.fails


def test_bounds_have_had_all_their_runs_in_turn():
    found = search(cliff(300), Search(low=100, repeats=5))
    rates = [trial.rate for trial in found.trials]
    assert rates.count(found.holds) == rates.count(found.fails) == 5
    assert rates[-1] != rates[-2]


def test_rate_that_failed_once_is_not_said_to_hold():
    """Between the two lies where runs disagree."""
    seen: dict[float, int] = {}

    def measure(rate: float) -> float:
        seen[rate] = seen.get(rate, 0) + 1
        unlucky = 400 < rate <= 500 and seen[rate] == 3
        return 0.5 if unlucky else cliff(500)(rate)

    found = search(measure, Search(low=100))
    assert found.holds <= 400
    assert 500 < found.fails < 530


@pytest.mark.parametrize("wrong", [{"low": 0}, {"low": 5, "high": 4}, {"low": 1, "repeats": 0}])
def test_search_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="needs"):
        Search(**wrong)


# ---- a scenario at a rate ------------------------------------------------------------------------

SCENARIO = "duration_s: 20\narrivals: {rate: 50}\nlengths: {fixed: 8}\n"


@dataclass
class Played:
    """Stands in for playing: notes scenarios, gives what it is told to."""

    reasons: dict[str, int] = field(default_factory=dict)
    spoilt: int = 0
    scenarios: list = field(default_factory=list)

    def __call__(self, ready: PreparedRun) -> Record:
        self.scenarios.append(ready.scenario)
        self.spoilt -= 1
        client = Client(behind="too slow" if self.spoilt >= 0 else "")
        cell = TenantLengthStats(offered=200, in_slo=150, reasons=self.reasons)
        return Record("x", cells={"default": {8: cell}}, client=client)


@pytest.fixture
def ready(tmp_path) -> PreparedRun:
    path = tmp_path / "some.yaml"
    path.write_text(SCENARIO)
    asked = RunOptions(path, "http://server", timeout_s=30.0)
    return PreparedRun(asked, load(path), wire=None, slo_s=0.1, edges=(8,))


def trials(ready: PreparedRun, monkeypatch, played: Played) -> tuple[ScenarioTrials, list[float]]:
    monkeypatch.setattr(PreparedRun, "play", lambda self: played(self))
    pauses: list[float] = []
    return ScenarioTrials(ready, pause_s=2.0, sleep=pauses.append), pauses


def test_share_is_of_what_was_offered_at_that_rate(ready, monkeypatch, tmp_path):
    played = Played()
    found, _ = trials(ready, monkeypatch, played)
    assert found.measure(200.0) == 0.75
    assert rate_of(played.scenarios[0], tmp_path) == pytest.approx(200, rel=0.1)


def test_every_run_has_another_seed(ready, monkeypatch):
    played = Played()
    found, _ = trials(ready, monkeypatch, played)
    for _ in range(3):
        found.measure(50.0)
    assert [scenario.seed for scenario in played.scenarios] == [1, 2, 3]


def test_server_is_left_alone_between_runs_and_longer_when_callers_gave_up(ready, monkeypatch):
    found, pauses = trials(ready, monkeypatch, Played())
    found.measure(50.0)
    gave_up, longer = trials(ready, monkeypatch, Played(reasons={"timeout": 1}))
    gave_up.measure(50.0)
    assert (pauses, longer) == ([2.0], [32.0])


def test_run_that_the_generator_spoilt_is_played_once_more(ready, monkeypatch):
    played = Played(spoilt=1)
    found, _ = trials(ready, monkeypatch, played)
    assert found.measure(50.0) == 0.75
    assert len(played.scenarios) == 2


def test_rate_that_cannot_be_sent_ends_the_search(ready, monkeypatch):
    found, _ = trials(ready, monkeypatch, Played(spoilt=2))
    with pytest.raises(GeneratorBehind, match="at 50/s too slow"):
        found.measure(50.0)


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
