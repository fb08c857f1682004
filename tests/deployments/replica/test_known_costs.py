"""Does a replica start from what was stored for it, and say where its costs come from?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.replica.describe import runtime_settings
from deployments.replica.known_costs import KnownCosts, known_costs, start_of
from deployments.replica.stored_profile import StoredProfile, identity_of, save
from deployments.settings.model import ModelSettings
from runtimes.synthetic.runtime import SyntheticRuntime

POINTS = ((1, 16, 0.002), (8, 16, 0.003), (16, 16, 0.006))


def model(**fields: Any) -> ModelSettings:
    return ModelSettings.model_validate(
        {"runtime": "synthetic", "profile_s": 0, "options": {"base_ms": 0.1}, **fields}
    )


def store(tmp_path: Path, settings: ModelSettings, **fields: Any) -> None:
    told = runtime_settings("m", settings, tmp_path, lambda *_: None)
    made = {"target_rows": 8, "edges": (40, 512), **fields}
    save(StoredProfile(identity_of(told), "2026-11-21", POINTS, (0.002, 0, 0, 0), **made), tmp_path)


def started(tmp_path: Path, settings: ModelSettings) -> tuple[KnownCosts, tuple[int, ...], str]:
    """The costs, the edges that the backend is warmed with, and the log."""
    told = runtime_settings("m", settings, tmp_path, lambda *_: None)
    start, said = start_of(told, settings, tmp_path), []
    runtime = SyntheticRuntime(start.settings)
    runtime.load()
    costs = known_costs(start, settings, runtime, said.append)
    return costs, start.settings.edges, "; ".join(said)


def test_a_stored_profile_is_used_instead_of_measuring(tmp_path: Path) -> None:
    settings = model(profile_s=600)
    store(tmp_path, settings)
    costs, edges, log = started(tmp_path, settings)
    assert costs == KnownCosts(POINTS, "stored, 2026-11-21", (40, 512), 8)
    assert edges == (40, 512)
    assert log == "costs: stored, 2026-11-21"


@pytest.mark.parametrize(("target", "max_size", "used"), [(16, 16, 16), (16, 32, None), (8, 32, 8)])
def test_a_target_that_was_the_most_then_allowed_is_no_bound_for_more(
    tmp_path: Path, target: int, max_size: int, used: int | None
) -> None:
    settings = model(batch={"max_size": max_size})
    store(tmp_path, settings, target_rows=target)
    costs, _, _ = started(tmp_path, settings)
    assert costs.target_rows == used


def test_profile_start_ignores_it(tmp_path: Path) -> None:
    settings = model(profile="start", profile_s=0.05)
    store(tmp_path, settings)
    costs, edges, log = started(tmp_path, settings)
    assert costs.points
    assert costs.points != POINTS
    assert (costs.edges, costs.target_rows) == (None, None)
    assert edges[0] == 16
    assert log == "costs: measured at the start, 0.05 s"


def test_one_of_other_options_is_not_used_and_the_log_says_why(tmp_path: Path) -> None:
    store(tmp_path, model())
    costs, _, log = started(tmp_path, model(options={"base_ms": 7}))
    assert costs.points == ()
    assert "no stored profile is used: the stored profile is of options" in log
    assert "learnt from callers' batches" in log


@pytest.mark.parametrize(
    ("fields", "edges", "target"),
    [
        ({"lengths": {"buckets": [64, 512]}}, None, 8),
        ({"lengths": {"buckets": 4}}, None, 8),
        ({"lengths": {"max": 256}}, None, 8),
    ],
)
def test_what_the_settings_say_stands(
    tmp_path: Path, fields: dict[str, Any], edges: tuple[int, ...] | None, target: int | None
) -> None:
    store(tmp_path, model())
    costs, warmed, _ = started(tmp_path, model(**fields))
    assert (costs.points, costs.edges, costs.target_rows) == (POINTS, edges, target)
    assert edges is None or warmed == edges


def test_edges_for_another_longest_row_are_named(tmp_path: Path) -> None:
    store(tmp_path, model())
    costs, _, _ = started(tmp_path, model(lengths={"max": 256}))
    assert "edges end at 512, not at lengths.max" in costs.source


def test_without_a_stored_profile_nothing_is_said_of_one(tmp_path: Path) -> None:
    _, _, log = started(tmp_path, model(profile_s=0.05))
    assert log == "costs: measured at the start, 0.05 s"


def test_what_a_running_replica_measured_is_not_measured_again(tmp_path: Path) -> None:
    settings = model(profile_s=600)
    told = runtime_settings("m", settings, tmp_path, lambda *_: None)
    start = replace(start_of(told, settings, tmp_path), measured=POINTS)
    runtime = SyntheticRuntime(start.settings)
    assert known_costs(start, settings, runtime, lambda _: None).points == POINTS


def test_a_stored_profile_goes_before_what_a_running_replica_measured(tmp_path: Path) -> None:
    settings = model()
    store(tmp_path, settings)
    told = runtime_settings("m", settings, tmp_path, lambda *_: None)
    start = replace(start_of(told, settings, tmp_path), measured=((1, 16, 9.0),))
    runtime = SyntheticRuntime(start.settings)
    assert known_costs(start, settings, runtime, lambda _: None).points == POINTS
