"""Stored profiles: used for what was measured, and a version that is too slow is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_profiles import IDENTITY, identity

from deployments.contract.rollout.observations import CostBounds, LiveCosts
from deployments.replica.describe import runtime_settings
from deployments.replica.known_costs import (
    MEASURES,
    KnownCosts,
    StoredProfile,
    TooCostly,
    admit,
    cost_sources,
    identity_of,
    known_costs,
    least,
    look_up,
    measured_again,
    save,
)
from deployments.settings.model import ModelSettings
from runtimes import staging
from runtimes.profiling import Profile
from runtimes.synthetic.runtime import SyntheticRuntime
from runtimes.types import RuntimeSettings

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
    sources, said = cost_sources(told, settings, tmp_path), []
    runtime = SyntheticRuntime(sources.settings)
    runtime.load()
    costs = known_costs(sources, settings, runtime, said.append)
    return costs, sources.settings.edges, "; ".join(said)


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
    sources = replace(cost_sources(told, settings, tmp_path), measured=POINTS)
    runtime = SyntheticRuntime(sources.settings)
    assert known_costs(sources, settings, runtime, lambda _: None).points == POINTS


def test_a_stored_profile_goes_before_what_a_running_replica_measured(tmp_path: Path) -> None:
    settings = model()
    store(tmp_path, settings)
    told = runtime_settings("m", settings, tmp_path, lambda *_: None)
    sources = replace(cost_sources(told, settings, tmp_path), measured=((1, 16, 9.0),))
    runtime = SyntheticRuntime(sources.settings)
    assert known_costs(sources, settings, runtime, lambda _: None).points == POINTS


PROFILE = StoredProfile(
    IDENTITY, "2026-11-21T12:00:00+00:00", ((1, 16, 0.001), (8, 16, 0.004)),
    (1e-3, 1e-4, 1e-6, 0.0), 8, (32, 512), (0.02, 0.1),
)  # fmt: skip


def test_what_was_stored_is_found_again(tmp_path: Path) -> None:
    path = save(PROFILE, tmp_path)
    assert look_up(IDENTITY, tmp_path).profile == PROFILE
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_nothing_stored_is_nothing_to_say(tmp_path: Path) -> None:
    assert look_up(IDENTITY, tmp_path) == look_up(IDENTITY, tmp_path / "gone")
    assert look_up(IDENTITY, tmp_path).problem == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"processor": "arm 1"}, "processor 'x86_64 chip 0123', not 'arm 1'"),
        ({"version": "2027"}, "version '2026.4', not '2027'"),
        ({"precision": "bf16"}, "precision 'fp32', not 'bf16'"),
        ({"threads": 1}, "threads 2, not 1"),
        ({"options": '{"a": 1}'}, "options '{}', not '{\"a\": 1}'"),
    ],
)
def test_one_of_something_else_is_not_used_and_what_differs_is_said(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    save(PROFILE, tmp_path)
    lookup = look_up(identity(**changes), tmp_path)
    assert lookup.profile is None
    assert lookup.problem == f"the stored profile is of {said}"


def test_another_artifact_says_nothing(tmp_path: Path) -> None:
    save(PROFILE, tmp_path)
    assert look_up(identity(artifact="b" * 64), tmp_path).problem == ""


def test_of_several_the_nearest_is_named(tmp_path: Path) -> None:
    save(PROFILE, tmp_path)
    other = StoredProfile(identity(threads=1, precision="bf16"), "t", ((1, 1, 1.0),), (1, 0, 0, 0))
    save(other, tmp_path)
    assert look_up(identity(threads=1), tmp_path).problem.count(" and of ") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"points": []}, {"points": [[1, 16, -1.0]]}, {"edges": [64, 32]},
        {"coefficients": [1]}, {"target_rows": "x"}, {"identity": {}},
    ],
)  # fmt: skip
def test_a_damaged_file_is_not_used(tmp_path: Path, change: dict[str, Any]) -> None:
    path = save(PROFILE, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    lookup = look_up(IDENTITY, tmp_path)
    assert lookup.profile is None
    assert f"{path} cannot be used" in lookup.problem


@pytest.mark.parametrize("text", ["", "[", "null", "[]"])
def test_a_file_of_something_else_is_not_used(tmp_path: Path, text: str) -> None:
    path = save(PROFILE, tmp_path)
    path.write_text(text)
    assert "cannot be used" in look_up(IDENTITY, tmp_path).problem


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file")
    with pytest.raises(OSError, match="profiles"):
        save(PROFILE, tmp_path)


def test_a_later_profile_replaces_the_earlier_one(tmp_path: Path) -> None:
    save(PROFILE, tmp_path)
    later = StoredProfile(IDENTITY, "later", ((1, 16, 0.002),), (2e-3, 0, 0, 0))
    save(later, tmp_path)
    assert look_up(IDENTITY, tmp_path).profile == later


def test_a_synthetic_device_is_known_by_its_options(tmp_path: Path) -> None:
    def of(**options: Any) -> Any:
        return identity_of(RuntimeSettings("m", "synthetic", None, tmp_path, options=options))

    assert of(base_ms=1) == of(base_ms=1)
    assert of(base_ms=1) != of(base_ms=2)
    assert of(a=1, b=2) == of(b=2, a=1)


LIVE = ((1, 16, 0.010), (8, 16, 0.020))
BOUNDS = CostBounds(slo_s=1.0, max_ratio=5.0)


def scaled(by: float) -> Profile:
    return tuple((rows, length, by * seconds) for rows, length, seconds in LIVE)


class Host:
    """Says what the live version takes and what each further measurement finds; time is counted,
    not spent."""

    def __init__(
        self, live: Sequence[LiveCosts | None] = (LiveCosts(LIVE),), again: Sequence[Profile] = ()
    ) -> None:
        self.live, self.again = list(live), list(again)
        self.asked = self.measured = 0
        self.paused_s = 0.0

    async def live_costs(self) -> LiveCosts | None:
        self.asked += 1
        return self.live[min(self.asked, len(self.live)) - 1]

    async def measure_again(self) -> Profile:
        self.measured += 1
        return self.again[self.measured - 1]

    async def pause(self, seconds: float) -> None:
        self.paused_s += seconds

    async def admit(self, points: Profile) -> Profile:
        return await admit(points, BOUNDS, self.live_costs, self.measure_again, self.pause)


async def test_as_fast_as_the_live_version_is_let_in_at_once() -> None:
    host = Host()
    assert await host.admit(LIVE) == LIVE
    assert (host.asked, host.measured, host.paused_s) == (1, 0, 0.0)


async def test_nothing_to_compare_with_lets_it_in() -> None:
    host = Host(live=[None])
    assert await host.admit(scaled(100)) == scaled(100)
    assert host.measured == 0


async def test_slow_in_each_measurement_is_refused_with_length_cost_and_bound() -> None:
    host = Host(again=[scaled(10)] * 2)
    with pytest.raises(TooCostly) as refused:
        await host.admit(scaled(12))
    assert str(refused.value) == (
        "a batch of length 16 takes it 200 ms, the live version 20 ms: more than 5 times as long "
        "(measured 3 times; accept.max_cost_ratio)"
    )
    assert (host.asked, host.measured, host.paused_s) == (MEASURES, MEASURES - 1, 2.0)


async def test_a_measurement_that_was_disturbed_refuses_nothing() -> None:
    host = Host(again=[scaled(11), scaled(1)])
    assert await host.admit(scaled(12)) == LIVE


async def test_a_machine_that_slows_the_live_version_too_refuses_nothing() -> None:
    by_now = LiveCosts(LIVE, ((0.100, 0.0, 0.0, 0.0),))
    host = Host(live=[LiveCosts(LIVE), by_now], again=[scaled(10)])
    assert await host.admit(scaled(12)) == scaled(10)


def test_of_two_measurements_the_least_time_of_each_batch_counts() -> None:
    before, again = ((1, 16, 2.0), (8, 16, 4.0)), ((8, 16, 3.0), (32, 16, 1.0))
    assert least(before, again) == ((1, 16, 2.0), (8, 16, 3.0))
    assert least(before, ()) == before


def loaded(cache_dir: Path) -> tuple[RuntimeSettings, SyntheticRuntime]:
    model = ModelSettings(runtime="synthetic", options={"base_ms": 0.1})
    settings = runtime_settings("m", model, cache_dir, lambda *_: None)
    runtime = SyntheticRuntime(settings)
    runtime.load()
    return settings, runtime


@pytest.mark.parametrize("folder", ["not/made/yet", "file/cannot/be"])
def test_a_further_measurement_needs_no_folder(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    points = measured_again(*loaded(tmp_path), 0.01, tmp_path / folder)
    assert points[0][:2] == (1, 16)


def test_a_further_measurement_waits_for_another_replica_s(tmp_path: Path) -> None:
    settings, runtime = loaded(tmp_path)
    found: list[Profile] = []
    asking = threading.Thread(
        target=lambda: found.append(measured_again(settings, runtime, 0.02, tmp_path))
    )
    with staging.exclusive(tmp_path / "costs"):
        asking.start()
        asking.join(0.02)
        assert not found
    asking.join(10)
    (points,) = found
    assert points[0][:2] == (1, 16)
