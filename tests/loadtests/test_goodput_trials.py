"""Is a run at a rate played as the search needs it: scaled, reseeded, and only if it counts?"""

from dataclasses import dataclass, field

import pytest

from loadtests.goodput_trials import GeneratorBehind, ScenarioTrials
from loadtests.results.record import Client, Record, TenantLengthStats
from loadtests.run import PreparedRun, RunOptions
from loadtests.traffic.scaled import rate_of
from loadtests.traffic.scenario_file import load

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
