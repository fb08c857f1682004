"""A version that is too slow is measured again before it is refused; one that is not, serves."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from deployments.contract.rollout.costs import CostBounds, LiveCosts
from deployments.replica import known_costs
from deployments.replica.describe import runtime_settings
from deployments.replica.known_costs import (
    MEASURES,
    TooCostly,
    least,
    measured_again,
)
from deployments.settings.model import ModelSettings
from runtimes import staging
from runtimes.profiling import Profile
from runtimes.synthetic.runtime import SyntheticRuntime
from runtimes.types import RuntimeSettings

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
        return await known_costs.admit(
            points, BOUNDS, self.live_costs, self.measure_again, self.pause
        )


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
