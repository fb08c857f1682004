"""Does every scenario that ships run, to its end, with nothing left over?"""

from pathlib import Path

import pytest

from deployments.simulation.play import Asked, prepare
from loadtests.traffic import made_up_trace

FOLDER = Path(__file__).parents[3] / "loadtests" / "scenarios"
SHIPPED = sorted(file for file in FOLDER.glob("*.yaml") if "models:" not in file.read_text())
SHORT = ("duration_s=1.5", "warmup_s=0.5")
EARLIER = {
    "idle-then-spike": ("arrivals.steps=[{from_s: 0.5, rate: 700}]",),
    "replica-killed": ("faults.deaths=[{replica: 3, at_s: 0.5, back_after_s: 0.5}]",),
    "rolling-change": ("joins.0.at_s=0.2", "faults.deaths.0.at_s=0.4", "faults.deaths.1.at_s=0.9"),
    "burst": ("arrivals.steps.0.from_s=0.5", "arrivals.steps.1.from_s=1"),
    "sleeper": ("tenants.two.arrivals.steps.0.from_s=0.5",),
}
WANTED = {
    "ragged-mix", "flood-of-long", "aggressor", "overload-10x", "burst", "slow-replica", "hiccups",
    "replica-killed", "rolling-change", "idle-then-spike", "generation-mix", "recorded",
}  # fmt: skip


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_scenario_runs_to_its_end(file):
    changes = (*SHORT, *EARLIER.get(file.stem, ()))
    played = prepare(file, Asked(changes=changes)).run(lambda now, requests: None)
    assert played.summary.total().offered > 0
    assert not any(played.left_over.values())


@pytest.mark.parametrize("name", ["replica-killed", "rolling-change"])
def test_nothing_is_lost_with_a_replica(name):
    changes = (*SHORT, *EARLIER[name])
    played = prepare(FOLDER / f"{name}.yaml", Asked(changes=changes)).run(lambda now, n: None)
    assert not played.summary.total().reasons


def test_those_that_people_ask_for_are_there_and_say_what_to_look_for():
    found = {file.stem: file for file in SHIPPED}
    assert set(found) >= WANTED
    for name in WANTED:
        assert "ook " in prepare(found[name], Asked()).scenario.about


def test_recording_that_ships_is_what_the_script_writes():
    lines = (FOLDER / "recorded.csv").read_text().splitlines()
    assert lines[1:] == [",".join(map(str, row)) for row in made_up_trace.rows()]
