"""From when on a spike's callers are answered in time, and how many were not."""

from __future__ import annotations

import math

import pytest

from loadtests.benches.scaling_spike import (
    BIN_S,
    CALM_S,
    KINDS,
    POOL,
    SPARE,
    SPIKE_S,
    Spike,
    by_bin,
    pieces,
    scenario_of,
    settings_of,
)
from loadtests.benches.scenario_load import BenchScenario
from loadtests.client.player import PlayedRequest
from loadtests.traffic.plan import Planned, TrafficPlan

BINS = round(SPIKE_S / BIN_S)


def plan_of(of: BenchScenario) -> list[Planned]:
    return list(TrafficPlan(of.scenario, of.path.parent).requests())


def spike(kept: list[int]) -> Spike:
    return Spike("device", "cold", tuple(kept), (10,) * len(kept), {})


@pytest.mark.parametrize(
    ("bad_bins", "enough_s"), [(0, 0.0), (1, BIN_S), (8, 8 * BIN_S), (BINS - 10, SPIKE_S - 5.0)]
)
def test_there_is_enough_from_the_first_bin_after_the_last_bad_one(
    bad_bins: int, enough_s: float
) -> None:
    found = spike([0] * bad_bins + [10] * (BINS - bad_bins))
    assert found.enough_s == enough_s
    assert found.missed == 10 * bad_bins


def test_a_few_misses_later_are_allowed_and_more_are_not() -> None:
    few, many = [10] * BINS, [10] * BINS
    few[20] -= 5
    many[20] -= 6
    assert spike(few).enough_s == 0.0
    assert spike(many).enough_s == 21 * BIN_S


def test_where_the_last_seconds_are_bad_there_never_was_enough() -> None:
    assert math.isnan(spike([10] * (BINS - 1) + [0]).enough_s)


def test_a_request_counts_where_it_was_meant_to_be_sent_and_late_or_refused_is_missed() -> None:
    piece = pieces(0.0)["device"]
    of = scenario_of(piece, settings_of("device", piece, SPARE))
    planned = [each for each in plan_of(of) if each.at_s >= CALM_S]
    first = planned[0]
    ends = [
        PlayedRequest(first, first.at_s, first.at_s + piece.slo_s, 200),
        PlayedRequest(first, first.at_s, first.at_s + piece.slo_s + 0.01, 200),
        PlayedRequest(first, first.at_s, first.at_s, 503),
    ]
    found = by_bin(ends, piece)
    assert (found.offered[0], found.kept[0], sum(found.offered)) == (3, 1, 3)


def test_each_case_differs_from_a_plain_start_in_one_thing() -> None:
    piece = pieces(10.0)["device"]
    made = {kind: settings_of("device", piece, kind) for kind in KINDS}
    assert [kind for kind in KINDS if "scaling" in made[kind]] == [POOL]
    replicas = {kind: made[kind]["models"]["device"]["replicas"] for kind in KINDS}
    assert [kind for kind in KINDS if "spare" in replicas[kind]] == [SPARE]


def test_the_spike_begins_when_the_calm_is_over_and_lasts() -> None:
    piece = pieces(0.0)["device"]
    of = scenario_of(piece, settings_of("device", piece, SPARE))
    times = [each.at_s for each in plan_of(of)]
    calm = sum(at < CALM_S for at in times) / CALM_S
    spiked = sum(at >= CALM_S for at in times) / SPIKE_S
    assert calm == pytest.approx(0.33 * piece.capacity, rel=0.3)
    assert spiked == pytest.approx(1.6 * piece.capacity, rel=0.1)
