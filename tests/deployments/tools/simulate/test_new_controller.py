"""A new controller of admission is a class and a line in the registry: a settings file then names
it, a simulated server asks it, and what it does is counted by its name."""

import pytest
from click.testing import CliRunner

from deployments.cli import main
from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load
from deployments.tools.simulate.simulation import SimulateOptions, prepare
from routers.api.requests import Reason
from routers.policies.admission.types import ADMIT, REFUSE, OnArrival
from routers.policies.registry import ADMISSIONS

MOST = 4
SETTINGS = """
models:
  device:
    runtime: synthetic
    slo: {latency_ms: 100, timeout_ms: 400}
    lengths: {max: 64, buckets: [64]}
    batch: {max_size: 8}
    options: {base_ms: 20, per_request_ms: 1, per_token_us: 1, load_s: 60}
    policies: {admission: [few_rows]}
    admission: {few_rows: MODE}
tenants: {a: {}, b: {}}
"""
SCENARIO = """
settings: settings.yaml
duration_s: 2
warmup_s: 0
arrivals: {rate: 500}
lengths: {bands: [{share: 1, low: 8, high: 32}]}
tenants: {a: {share: 9}, b: {}}
"""


class FewRows(OnArrival):
    """Has the flow fewer than `MOST` rows waiting, late ones included?"""

    def judge(self, newcomer, now):
        flow = newcomer.flow
        waiting = flow.rows + flow.late_rows
        return REFUSE if waiting + newcomer.request.open > MOST else ADMIT


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(ADMISSIONS, "few_rows", FewRows)


@pytest.fixture
def scenario(tmp_path):
    def write(mode):
        (tmp_path / "settings.yaml").write_text(SETTINGS.replace("MODE", mode))
        (tmp_path / "scenario.yaml").write_text(SCENARIO)
        return tmp_path / "scenario.yaml"

    return write


def run(file):
    """The controller as the core shows it, and how many requests were refused, by reason."""
    result = prepare(file, SimulateOptions()).run(lambda now, requests: None)
    (core,) = result.cores
    (shown,) = core.controllers
    return shown, dict(core.offered.refused)


def test_it_refuses_and_is_counted(scenario):
    shown, refused = run(scenario("enforce"))
    assert (shown.name, shown.mode, shown.would_shed) == ("few_rows", "enforce", 0)
    assert shown.shed == refused[Reason.SHED.value] > 100


def test_observed_it_refuses_nothing_and_is_counted(scenario):
    shown, refused = run(scenario("observe"))
    assert (shown.name, shown.mode, shown.shed) == ("few_rows", "observe", 0)
    assert shown.would_shed > 100
    assert Reason.SHED.value not in refused


def test_off_it_is_not_asked(scenario):
    shown, refused = run(scenario("off"))
    assert (shown.mode, shown.shed, shown.would_shed) == ("off", 0, 0)
    assert Reason.SHED.value not in refused


def test_the_command_line_compares_with_it(scenario):
    file = scenario("enforce")
    asked = ["simulate", str(file), "--policy", "admission=none"]
    assert "the same with admission=none" in CliRunner().invoke(main, asked).stdout
    asked[-1] = "admission=few_rows+codel"
    assert CliRunner().invoke(main, asked).exit_code == 0


def test_its_mode_stands_among_those_of_the_others(scenario):
    file = scenario("enforce").parent / "settings.yaml"
    file.write_text(SETTINGS.replace("{few_rows: MODE}", "{most_rows: observe}"))
    with pytest.raises(SettingsErrors, match="one of feasibility, codel, limit, few_rows, got"):
        load(file)
