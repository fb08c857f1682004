"""Is what was played put beside what was simulated, of the same scenario?"""

import pytest

from loadtests.results.record import Record, TenantLengthStats
from loadtests.run import PreparedRun, RunOptions
from loadtests.traffic.scenario_file import load
from loadtests.versus import NotSimulated, side_by_side, simulated

SETTINGS = """
models:
  device:
    runtime: synthetic
    slo: {latency_ms: 100}
    lengths: {max: 512, buckets: [32, 512]}
    batch: {max_size: 8}
    options: {base_ms: 5}
"""
SCENARIO = "settings: s.yaml\nduration_s: 2\narrivals: {rate: 50}\nlengths: {fixed: 8}\n"
FOUND = {"offered": 90, "in_slo": 0.99, "rejected": 1, "wait_p99_ms": None}
FOUND |= {f"p{percent}_ms": 12.0 for percent in (50, 90, 99)}


def record() -> Record:
    cell = TenantLengthStats(offered=100, in_slo=98, rejected=2)
    for _ in range(98):
        cell.latency.add(0.01)
    return Record("x", cells={"a": {8: cell}}, edges=(8,))


def test_sides_stand_beside_each_other():
    (table,) = side_by_side(record(), FOUND)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["offered"] == (100, 90, "-10.0%")
    assert rows["in time, %"] == (98.0, 99.0, "")
    assert rows["p99, ms"][:2] == (pytest.approx(10, rel=0.01), 12.0)
    assert rows["p99, ms"][2].startswith("+20")
    assert rows["wait p99, ms"] == (None, None, "")


def ready(tmp_path, *changes: str) -> PreparedRun:
    (tmp_path / "s.yaml").write_text(SETTINGS)
    path = tmp_path / "some.yaml"
    path.write_text(SCENARIO)
    return PreparedRun(RunOptions(path, "http://x", changes=changes), load(path), None, 0.1, (8,))


@pytest.mark.integration
def test_scenario_is_simulated_with_its_changes(tmp_path):
    found = simulated(ready(tmp_path, "arrivals.rate=100"))
    assert found["offered"] == pytest.approx(200, rel=0.3)


@pytest.mark.integration
def test_what_the_simulator_says_is_passed_on(tmp_path):
    with pytest.raises(NotSimulated, match="replicas"):
        simulated(ready(tmp_path, "replicas=-1"))
