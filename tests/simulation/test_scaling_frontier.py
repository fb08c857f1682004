"""The fast model of a scaled service loses nothing, rivals do what they do, ours is no worse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from loadtests.benches.runner import BenchRun, Runs
from tests.simulation.benches.scaling_frontier.agreement import WITHIN, really
from tests.simulation.benches.scaling_frontier.cells import OURS as OWN
from tests.simulation.benches.scaling_frontier.cells import Cell, Kept
from tests.simulation.benches.scaling_frontier.frontier import (
    Point,
    better_on_both,
    frontier,
    gains,
    misses_at,
)
from tests.simulation.benches.scaling_frontier.load import Burst, Load, bursty, flat, recorded
from tests.simulation.benches.scaling_frontier.ours import Headrace
from tests.simulation.benches.scaling_frontier.pool import play_shared
from tests.simulation.benches.scaling_frontier.report import pictures, points, tables, thresholds
from tests.simulation.benches.scaling_frontier.rivals import Clairvoyant, Hpa, Informed, Kpa, Static
from tests.simulation.benches.scaling_frontier.world import (
    DRAIN_S,
    Observation,
    Starts,
    moves,
    play,
)

EXACT = Starts(35.0, sigma=0.0)
BURSTS = tuple(
    Burst(at, 60.0, times) for at, times in ((1500.0, 3.0), (3300.0, 2.5), (4500.0, 4.0))
)
IDLE = Observation(0.0, 0.0, 0, 0.0, 0, 0, 0, 0.0, 0.0, 4, 0, 0, 4)


@cache
def bursts() -> Load:
    return bursty("bursts", 6.0, 5400.0, BURSTS, seed=1)


def requests(*came, cost=1.0, wait=0.5, seconds=60.0) -> Load:
    """Some that all cost as much."""
    times = np.array(came, dtype=float)
    return Load("few", seconds, cost + wait, times, 0 * times + cost, 0 * times + wait)


@dataclass
class Script:
    """Orders at given seconds; keeps what it saw."""

    orders: dict[int, int]

    def __post_init__(self):
        self.seen = {}

    def wants(self, seen, now):
        self.seen[now] = seen
        return self.orders.get(int(now), seen.target)


# ---- the world -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [Static(6), Kpa(0.7), Hpa(0.7), Script({1500: 20, 1510: 3, 1520: 9})]
)
def test_every_request_is_in_time_or_missed(policy):
    played = play(bursts(), policy, Starts(), hot=6)
    assert played.offered == len(bursts().times)
    assert played.in_time + played.missed == played.offered
    assert played.missed == played.missed_at.sum()


def test_who_cannot_be_started_in_time_is_missed_and_takes_no_room():
    played = play(requests(1.0, 1.1, 1.4, 1.6, 1.7), Static(1), EXACT)
    assert (played.in_time, played.missed) == (2, 3)  # 1.0 and, as it ends, 1.6


def test_two_replicas_take_two_at_once():
    assert play(requests(1.0, 1.1, 1.4, 1.6), Static(2), EXACT, hot=2).missed == 1


def test_replicas_are_paid_from_the_order_to_the_exit():
    played = play(requests(1.0, seconds=600.0), Static(3), EXACT, hot=3)
    assert played.replica_h == pytest.approx(0.5)
    played = play(requests(seconds=600.0), Script({100: 3, 400: 1}), EXACT)
    assert played.replica_h == pytest.approx((600 + 2 * (300 + DRAIN_S)) / 3600)


def test_a_replica_serves_when_it_has_started_and_not_before():
    script = Script({10: 2})
    load = requests(44.0, 44.1, 46.0, 46.1)
    played = play(load, script, EXACT)
    assert played.missed == 1  # before 45 s there is one
    assert script.seen[44.0].starting == 1
    assert script.seen[46.0].hot == 2


def test_what_still_starts_goes_before_what_runs():
    script = Script({10: 4, 20: 2, 30: 1})
    play(requests(seconds=60.0), script, EXACT)
    assert (script.seen[21.0].hot, script.seen[21.0].starting) == (1, 1)
    assert (script.seen[31.0].hot, script.seen[31.0].starting, script.seen[31.0].draining) == (
        1, 0, 0,
    )  # fmt: skip


def test_one_that_drains_finishes_what_it_holds():
    load = requests(9.9, 9.95, cost=5.0)
    played = play(load, Script({10: 1}), EXACT, hot=2)
    assert played.missed == 0
    assert played.replica_h == pytest.approx((60.0 + 14.9 + DRAIN_S) / 3600, rel=0.01)


def test_what_is_seen_says_what_waits_and_what_works():
    script = Script({})
    play(requests(1.5, 1.6, 1.7, wait=5.0), script, EXACT)
    seen = script.seen[2.0]
    assert (seen.requests, seen.running, seen.queued) == (3, 1, 2)
    assert seen.offered_s == pytest.approx(3.0)
    assert seen.backlog_s == pytest.approx(1.0 + 1.0)
    assert seen.oldest_wait_s == pytest.approx(0.4)
    assert sum(each.busy_s for each in script.seen.values()) == pytest.approx(3.0)


def test_what_is_learnt_first_is_not_counted():
    whole = play(bursts(), Static(8), EXACT, hot=8)
    part = play(replace(bursts(), learn_s=1800.0), Static(8), EXACT, hot=8)
    assert part.replica_h == pytest.approx(8 * 1.0)
    assert part.offered < whole.offered
    assert part.missed == whole.missed_at[1800:].sum()


def test_the_dispatcher_simulated_says_the_same():
    load = flat(8 * 0.9, 60.0, seed=1)
    assert abs(play(load, Static(8), EXACT, hot=8).misses - really(load, 8)) < WITHIN


def test_moves_are_counted_and_those_that_turn_back():
    targets = np.array([2, 2, 4, 4, 3] + [3] * 700 + [5])
    assert moves(targets) == (3, 1)


def test_a_recorded_trace_costs_by_its_tokens(tmp_path):
    path = tmp_path / "trace.csv"
    rows = "\n".join(f"2023-11-16 18:15:{s:02d}.0000000,1000,100" for s in range(10))
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    load = recorded(path, seed=1)
    assert len(load.times) == 10
    assert (np.diff(load.times) >= 0.0).all()
    assert load.costs == pytest.approx(1000 * 0.00025 + 100 * 0.004)


# ---- rivals --------------------------------------------------------------------------------------


def asked(policy, seen, seconds, **changes):
    """What the policy says last when it sees the same for so long, its orders carried out."""
    for second in range(1, seconds + 1):
        seen = seen._replace(target=policy.wants(seen, float(second)), **changes)
    return seen.target


def test_ray_serves_default_waits_30_s_up_and_10_min_down():
    ray_policy = pytest.importorskip("tests.simulation.benches.scaling_frontier.ray_policy")
    real_time = ray_policy.autoscaling_policy.time
    busy = IDLE._replace(running=4, queued=12)
    assert asked(ray_policy.default(2.0), busy, 35) == 4
    assert asked(ray_policy.default(2.0), busy, 45) == 8
    assert asked(ray_policy.default(2.0), IDLE, 590) == 4
    assert asked(ray_policy.default(2.0), IDLE, 615) == 1
    assert ray_policy.autoscaling_policy.time is real_time


def test_ray_serve_tuned_follows_at_once():
    ray_policy = pytest.importorskip("tests.simulation.benches.scaling_frontier.ray_policy")
    assert asked(ray_policy.tuned(1.0), IDLE._replace(running=4, queued=4), 3) == 8


def test_hpa_doubles_at_most_ignores_a_tenth_and_goes_down_after_5_min():
    assert asked(Hpa(0.5), IDLE._replace(busy_s=4.0), 15) == 8
    assert asked(Hpa(0.2), IDLE._replace(busy_s=4.0), 15) == 8
    assert asked(Hpa(0.5), IDLE._replace(busy_s=2.15), 15) == 4
    policy, seen = Hpa(0.5), IDLE._replace(busy_s=2.0)
    asked(policy, seen, 15)
    down = IDLE._replace(busy_s=0.5)
    later = [policy.wants(down, now) for now in range(30, 400, 15)]
    assert later[:18] == [4] * 18
    assert later[-1] == 1


def test_hpa_counts_what_starts_as_idle_on_the_way_up():
    seen = IDLE._replace(busy_s=4.0, hot=4, starting=4, target=8)
    assert asked(Hpa(0.5), seen, 15) == 8


def test_kpa_panics_at_twice_what_is_ready_and_does_not_go_down_then():
    policy, quiet = Kpa(1.0), IDLE._replace(running=4)
    asked(policy, quiet, 60)
    loud = IDLE._replace(running=4, queued=20)
    up = [policy.wants(loud, now) for now in range(61, 69)][-1]
    assert up == 24
    assert all(policy.wants(quiet, now) == up for now in range(70, 110, 2))
    assert policy.wants(quiet, 140) < up


# ---- frontiers -----------------------------------------------------------------------------------

OURS = (Point("a", 100.0, 0.01), Point("b", 200.0, 0.001), Point("c", 210.0, 0.002))


def test_a_frontier_has_what_no_other_beats():
    assert [point.name for point in frontier(OURS)] == ["a", "b"]


def test_between_two_settings_misses_are_their_geometric_mean():
    assert misses_at(OURS, 150.0) == pytest.approx(0.01 / 10**0.5)
    assert misses_at(OURS, 99.0) == float("inf")
    assert misses_at(OURS, 500.0) == 0.001


def test_a_rival_is_better_on_both_axes_or_it_is_not():
    better, dearer = Point("x", 150.0, 0.0009), Point("y", 150.0, 0.005)
    cheaper, surer = Point("cheap", 50.0, 0.02), Point("sure", 300.0, 0.0)
    assert better_on_both([better, dearer, cheaper, surer], OURS) == [better]
    assert gains(OURS, [Point("z", 90.0, 0.02)]) == [(100.0, 2.0), (200.0, 20.0)]


# ---- ours ----------------------------------------------------------------------------------------


@cache
def ours():
    return play(bursts(), Headrace(bursts(), EXACT), EXACT, hot=9)


RIVALS = {
    "static": [Static(n) for n in (9, 10, 11, 12)],
    "HPA": [Hpa(target) for target in (0.9, 0.8, 0.7, 0.6)],
    "KPA": [Kpa(target) for target in (1.0, 0.9, 0.8, 0.7)],
}


@pytest.mark.parametrize("rival", RIVALS)
def test_no_rival_misses_less_at_the_same_hours(rival):
    points = []
    for policy in RIVALS[rival]:
        played = play(bursts(), policy, EXACT, hot=9)
        points.append(Point(rival, played.replica_h, played.misses))
    assert ours().misses < misses_at(points, ours().replica_h)


def test_ray_serve_by_default_misses_far_more_at_the_same_hours():
    ray_policy = pytest.importorskip("tests.simulation.benches.scaling_frontier.ray_policy")
    points = []
    for target in (2.0, 1.5, 1.2):
        played = play(bursts(), ray_policy.default(target), EXACT, hot=9)
        points.append(Point("Ray Serve", played.replica_h, played.misses))
    assert ours().misses < 0.7 * misses_at(points, ours().replica_h)


def test_who_is_told_the_true_rate_misses_less_than_who_must_measure_and_more_than_who_foresees():
    points = []
    for target in (0.75, 0.65, 0.55):
        played = play(bursts(), Informed(bursts(), target), EXACT, hot=9)
        points.append(Point("informed", played.replica_h, played.misses))
    foreseen = play(bursts(), Clairvoyant(bursts(), 35.0), EXACT, hot=9).misses
    assert foreseen < misses_at(points, ours().replica_h) < ours().misses


def test_who_knows_the_future_is_better_on_both_axes():
    played = play(bursts(), Clairvoyant(bursts(), 35.0), EXACT, hot=9)
    assert played.misses < ours().misses
    assert played.replica_h < ours().replica_h


# ---- a pool --------------------------------------------------------------------------------------


def lent(size, orders, seconds=120.0):
    """One model that orders by the script, beside a pool; what it saw, and hours."""
    script = Script(orders)
    few = requests(1.0, seconds=seconds)
    played, hours = play_shared([few], [script], size, Starts(3.0, sigma=0.0), EXACT)
    return script.seen, played[0], hours


def test_a_pool_stands_in_until_the_replicas_that_were_ordered_are_hot():
    burst = requests(*(14.5 + 0.01 * n for n in range(4)), 47.0, 47.01)
    script = Script({10: 5})
    played, _ = play_shared([burst], [script], 3, Starts(3.0, sigma=0.0), EXACT)
    assert played[0].missed == 0  # its own one and three of the pool at 14.5 s, its own at 47 s
    alone, _ = play_shared([burst], [Script({10: 5})], 0, Starts(3.0, sigma=0.0), EXACT)
    assert alone[0].missed == 3
    assert script.seen[20.0].hot == 1  # what it is lent is none of its own


def test_a_pool_is_paid_whether_it_is_lent_or_not():
    assert lent(3, {})[2] == pytest.approx((1 + 3) * 120 / 3600)
    assert lent(3, {10: 2})[2] == pytest.approx((120 + 110 + 3 * 120) / 3600)


def test_what_is_given_back_can_be_lent_again():
    first = requests(14.5, 14.51, seconds=200.0)
    second = requests(114.5, 114.51, seconds=200.0)
    scripts = [Script({10: 2}), Script({110: 2})]
    played, _ = play_shared([first, second], scripts, 1, Starts(3.0, sigma=0.0), EXACT)
    assert [each.missed for each in played] == [0, 0]


# ---- the report ----------------------------------------------------------------------------------


def cells(side, *points, seeds=(1, 2), start_s=35.0):
    """(value, hours, missed of a thousand), alike for each seed."""
    return [
        BenchRun(side, Cell("day", start_s, side, value, seed, 1000, missed, hours, 3, 1),
                 ("day", start_s))
        for value, hours, missed in points
        for seed in seeds
    ]  # fmt: skip


RUNS = Runs(
    [
        *cells(OWN, (0.85, 100.0, 2), (0.7, 150.0, 1)),
        *cells("Ray Serve", (2.0, 100.0, 40), (1.0, 150.0, 8)),
        *cells("HPA", (0.7, 90.0, 10), (0.5, 160.0, 4), seeds=(1, 2, 3)),
    ]
)


def promised(runs):
    return {verdict.claim.split(": ")[1]: verdict for verdict in thresholds(runs, None)}


def test_gains_are_told_at_equal_hours():
    found = promised(RUNS)
    assert found["rivals' points better on both axes"].held
    assert found["times fewer misses than Ray Serve's delays at equal hours"].held
    assert found["times fewer misses than the best rival at equal hours"].held


def test_a_rival_that_is_better_on_both_axes_breaks_the_promise():
    found = promised(Runs([*RUNS, *cells("KPA", (0.5, 140.0, 1))]))
    assert not found["rivals' points better on both axes"].held


def test_only_seeds_that_all_have_are_compared():
    odd = Cell("day", 35.0, "HPA", 0.7, 3, 1000, 900, 90.0)
    runs = Runs([*RUNS, BenchRun("HPA", odd, ("day", 35.0))])
    assert points(runs, ("day", 35.0))["HPA"][0].misses == pytest.approx(0.01)


def test_each_case_has_its_tables_and_its_picture():
    assert len(list(tables(RUNS, None))) == 2
    (drawn,) = pictures(RUNS)
    assert drawn.name == "scaling-day-35s"
    assert drawn.svg.count("<polyline") == 3


def test_what_was_measured_is_kept(tmp_path):
    path = tmp_path / "kept" / "cells.jsonl"
    cell = RUNS[0].result
    Kept(path).add(cell)
    Kept(path).add(replace(cell, missed=7))
    assert Kept(path).cells[cell.key].missed == 7
