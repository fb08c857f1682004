"""`headrace simulate`: one JSON object, the same for the same seed, and mistakes told where."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from deployments.cli import main
from deployments.tools.simulate.simulation import SimulateOptions, prepare
from loadtests.traffic.scenario_file import ScenarioErrors

SETTINGS = """
models:
  device:
    runtime: synthetic
    slo: {latency_ms: 100}
    lengths: {max: 512, buckets: [32, 512]}
    batch: {max_size: 8}
    replicas: {count: 2}
    options: {base_ms: 5, per_request_ms: 1, per_token_us: 8, load_s: 60}
tenants:
  a: {weight: 3, priority: interactive}
  b: {priority: bulk}
"""
SCENARIO = """
settings: settings.yaml
duration_s: 2
warmup_s: 0.5
arrivals: {rate: 200}
lengths: {bands: [{share: 3, low: 8, high: 32}, {share: 1, low: 100, high: 400}]}
tenants: {a: {share: 3}, b: {}}
"""


@pytest.fixture
def scenario(tmp_path) -> Path:
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    return file


def simulated(file, *arguments):
    return CliRunner().invoke(main, ["simulate", str(file), *arguments])


def as_json(file, *arguments):
    result = simulated(file, "--json", *arguments)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def test_json_is_one_object_with_the_agreed_names(scenario):
    found = as_json(scenario)
    names = ("offered", "in_slo", "jain", "padding_ratio", "hedge_ratio", "rejected", "tenants")
    assert all(name in found for name in names)
    assert found["offered"] == pytest.approx(400, rel=0.2)
    assert 0.9 <= found["in_slo"] <= 1.0
    for tenant in ("a", "b"):
        assert {"offered", "in_slo", "rejected", "p50_ms", "p99_ms"} <= set(
            found["tenants"][tenant]
        )
    assert sum(each["offered"] for each in found["tenants"].values()) == found["offered"]
    assert found["left_over"] == {"requests": 0, "rows": 0, "leases": 0, "drift": 0}
    assert found["gateways"][0]["edges"] == [32, 512]
    assert sum(each["offered"] for each in found["buckets"].values()) == found["offered"]


@pytest.mark.slow
def test_same_seed_prints_the_same_and_another_something_else(scenario):
    first, again, other = (as_json(scenario, "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again != other


def test_more_replicas_are_less_busy(scenario):
    two, eight = (as_json(scenario, "--replicas", n)["utilisation"] for n in ("2", "8"))
    assert eight < two


def test_values_of_scenario_and_settings_can_be_changed(scenario):
    slow = as_json(scenario, "--set", "settings.models.device.options.base_ms=80")
    few = as_json(scenario, "--set", "arrivals.rate=20")
    assert slow["p50_ms"] > 80
    assert few["offered"] < 60


def test_recording_takes_the_place_of_arrivals_and_lengths(scenario, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("when,tokens\n" + "".join(f"{0.5 + n / 10},{n * 100}\n" for n in range(1, 11)))
    found = as_json(scenario, "--trace", str(trace), "--set", "warmup_s=0")
    assert found["offered"] == 10
    assert found["answered"] == 10  # rows longer than the model takes are cut


def test_first_in_first_out_runs_beside_it(scenario):
    found = as_json(scenario, "--fifo", "--set", "arrivals.rate=900")
    assert found["fifo"]["offered"] == found["offered"]
    assert found["fifo"]["padding_ratio"] > found["padding_ratio"]


def test_tables_name_tenants_lengths_and_what_happened(scenario):
    result = simulated(scenario, "--fifo")
    assert result.exit_code == 0
    for word in ("in time", "up to 32", "padding", "fairness", "copies", "first in, first out"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "arrivals.rate=fast"], "arrivals.rate: is 'fast'; must be a number"),
        (["--set", "settings.models.device.batch.max_size=0"], "models.device.batch.max_size"),
        (["--set", "tenants.c.share=1"], "tenants.c: settings.yaml has no such tenant, but a, b"),
        (["--set", "tenants.a.priority=urgent"], "must be one of interactive, standard, bulk"),
        (["--set", "model=other"], "model: is 'other'; settings.yaml has device"),
        (["--set", "settings=none.yaml"], "none.yaml: cannot be read"),
        (
            ["--set", "faults.slow=[{replica: 2, factor: 2}]"],
            "faults.slow[0].replica: is 2; there are 2, from 0",
        ),
        (["--set", "faults.deaths=[{replica: 9, at_s: 1}]"], "faults.deaths[0].replica: is 9"),
        (
            ["--set", "settings.models.device.options.base_ms=-5"],
            "settings.models.device.options: option 'base_ms' is -5",
        ),
        (["--set", "settings.models.device.lengths.buckets.²=7"], "² is no position"),
        (["--trace", "none.csv"], "none.csv: cannot be read: no such file"),
    ],
)
def test_mistakes_are_told_with_exit_code_2(scenario, arguments, said):
    result = simulated(scenario, *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_mistake_in_the_settings_names_their_file_and_line(scenario):
    (scenario.parent / "settings.yaml").write_text(SETTINGS.replace("max_size: 8", "max_size: 0"))
    result = simulated(scenario)
    assert result.exit_code == 2
    assert f"{scenario.parent / 'settings.yaml'}:7: models.device.batch.max_size" in result.output


def test_model_that_is_not_synthetic_needs_a_device(scenario):
    text = SETTINGS.replace("runtime: synthetic", "runtime: onnxruntime\n    source: model.onnx")
    (scenario.parent / "settings.yaml").write_text(
        "\n".join(line for line in text.splitlines() if "options" not in line)
    )
    with pytest.raises(ScenarioErrors, match="device: is missing"):
        prepare(scenario, SimulateOptions())
    simulation = prepare(
        scenario, SimulateOptions(changes=["device={base_ms: 7, per_token_us: 2}"])
    )
    assert simulation.setup.service_s(4, 100) == pytest.approx(0.0078)


def test_recording_is_parted_among_all_tenants_by_their_shares(scenario, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("when,tokens\n" + "".join(f"{n / 100},8\n" for n in range(240)))
    trace_alone = as_json(scenario, "--trace", str(trace), "--set", "warmup_s=0")
    assert trace_alone["offered"] == 200
    file = tmp_path / "own.yaml"
    file.write_text(SCENARIO.replace("b: {}", "b: {arrivals: {rate: 1}, lengths: {fixed: 9}}"))
    assert as_json(file, "--trace", str(trace), "--set", "warmup_s=0") == trace_alone


def test_what_cannot_be_simulated_is_said_and_left_out(scenario):
    whole = simulated(scenario, "--json")
    changes = ("--set", "tenants.a.malformed=1.0", "--set", "output.fixed=9")
    rest = simulated(scenario, "--json", *changes)
    assert "not simulated: malformed, output" in rest.stderr
    tenants = [json.loads(each.stdout)["tenants"] for each in (whole, rest)]
    assert tenants[0]["b"]["offered"] == tenants[1]["b"]["offered"] > 0
    assert tenants[1]["a"]["offered"] == 0 < tenants[0]["a"]["offered"]


def test_scenario_without_settings_cannot_be_simulated(scenario):
    scenario.write_text(SCENARIO.replace("settings: settings.yaml", ""))
    result = simulated(scenario)
    assert result.exit_code == 2
    assert "settings: is missing" in result.stderr


@pytest.mark.parametrize(
    ("percentile", "verdict"),
    [("30", "in time, goodput (30%)"), ("50", "in time, not goodput (50%)")],
)
def test_a_run_is_judged_by_the_percentile_of_the_slo(scenario, percentile, verdict):
    result = simulated(
        scenario, "--set", f"settings.models.device.slo.percentile={percentile}",
        "--set", "arrivals.rate=2000",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert verdict in " ".join(result.stdout.split())
