"""Engines that stall or are slow cost first tokens little, and helping them costs little."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from routers.api.settings import HedgeParameters, OutlierParameters
from routers.simulation.devices import Drag, SimDevice, Slow
from tests.simulation.generation_load import Kind, Ran, engines, play

pytestmark = pytest.mark.slow

CHAT = Kind("chat", 40, (30, 300), (20, 100), slo_s=5.0)  # about a quarter of what three can do
NEVER = OutlierParameters(eject_ratio=float("inf"))
STALLS = 40.0  # times a step's 8 ms and more
SECONDS = 40.0


def dragged(drags: dict[int, Drag]) -> tuple[SimDevice, ...]:
    return tuple(replace(each, drag=drags.get(n)) for n, each in enumerate(engines(3)))


@cache
def stalling(mode: str) -> Ran:
    """Two steps in a thousand of every engine take 40 times as long."""
    devices = dragged({n: Drag(Random(n), 0.05, 0.002, STALLS) for n in range(3)})
    hedge = HedgeParameters(mode)
    return play([CHAT], until=SECONDS, devices=devices, hedge=hedge, outliers=NEVER)


@cache
def slow(factor: float, until: float = float("inf")) -> Ran:
    """One engine is so many times slower until then."""
    devices = dragged({0: Drag(Random(1), slow=[Slow(factor, 0.0, until)])})
    return play([CHAT], until=SECONDS, devices=devices, hedge=HedgeParameters("off"))


def test_copies_halve_the_tail_of_first_tokens_for_a_twentieth_more_work() -> None:
    without, hedged = stalling("off"), stalling("hedge")
    (core,) = hedged.cores
    seen = core.snapshot(SECONDS)
    assert seen.hedges > seen.hedges_won > 10
    assert hedged.first_token_s(0.99, "chat") <= 0.5 * without.first_token_s(0.99, "chat")
    assert seen.hedges <= 0.1 * len(hedged.outcomes)
    assert all(each.answered_at is not None for each in hedged.outcomes)


def test_a_slow_engine_is_left_out_and_does_not_show_in_first_tokens() -> None:
    healthy, ran = slow(1.0), slow(5.0)
    seen = ran.cores[0].snapshot(SECONDS)
    assert [each.replica_id for each in seen.replicas if each.ejected] == ["r0"]
    assert seen.probes > 0
    assert ran.first_token_s(0.99, "chat") <= 1.3 * healthy.first_token_s(0.99, "chat")
    assert ran.token_s(0.9, "chat") <= 1.3 * healthy.token_s(0.9, "chat")


def test_an_engine_that_is_quick_again_is_taken_back() -> None:
    (core,) = slow(5.0, until=15.0).cores
    seen = core.snapshot(SECONDS)
    assert seen.probes > 0
    assert not [each for each in seen.replicas if each.ejected]


@pytest.mark.parametrize("mode", ["off", "hedge"])
def test_replicas_that_stall_now_and_then_are_not_ejected(mode: str) -> None:
    devices = dragged({n: Drag(Random(n), 0.05, 0.002, STALLS) for n in range(3)})
    ran = play([CHAT], until=SECONDS, devices=devices, hedge=HedgeParameters(mode))
    assert ran.cores[0].snapshot(SECONDS).probes == 0
