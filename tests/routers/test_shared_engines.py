"""How many requests a gateway sends an engine, and what it says that their tokens are worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routers.api.requests import Report
from routers.api.settings import DispatcherSettings, GenerationParameters
from routers.api.snapshot import Snapshot
from routers.stream.scheduler import StreamScheduler
from routers.stream.staging import SharedEngines, TokenPrices

SHARED_S, PRICED_EVERY_S = 10.0, 1.0
LEARNS = GenerationParameters(input_weight=1.0, output_weight=3.0, tokens_per_s=100.0)


def test_a_gateway_alone_sends_what_the_engine_runs_at_once() -> None:
    engines = SharedEngines()
    assert not engines.learn(Report(inflight=3, held=3), 0.0)
    assert engines.max_leases(4) == 4


def test_beside_others_it_sends_twice_that_until_none_was_seen_for_a_while() -> None:
    engines = SharedEngines()
    assert engines.learn(Report(inflight=3, held=2), 1.0)
    assert engines.max_leases(4) == 8
    assert not engines.learn(Report(inflight=3, held=2), 2.0)
    assert not engines.learn(Report(inflight=2, held=2), 2.0 + SHARED_S)
    assert engines.learn(Report(inflight=2, held=2), 2.1 + SHARED_S)
    assert engines.max_leases(4) == 4


class Core:
    """`looks`: how often somebody looked at it."""

    def __init__(self, settings: GenerationParameters) -> None:
        self.settings = settings
        self.looks = 0

    def look(self) -> Snapshot:
        self.looks += 1
        core = StreamScheduler(DispatcherSettings((64,), generation=self.settings))
        return core.snapshot(0.0)


def test_a_token_is_worth_its_weight_in_seconds_of_the_engine() -> None:
    assert TokenPrices().at(LEARNS, Core(LEARNS).look, 0.0) == pytest.approx((0.01, 0.03))


def test_what_a_token_is_worth_is_read_now_and_then() -> None:
    prices, core = TokenPrices(), Core(LEARNS)
    for now in (0.0, 0.5, PRICED_EVERY_S - 0.01):
        prices.at(LEARNS, core.look, now)
    assert core.looks == 1
    core.settings = replace(LEARNS, tokens_per_s=200.0)
    assert prices.at(LEARNS, core.look, PRICED_EVERY_S)[0] == pytest.approx(0.005)


def test_who_learns_nothing_of_tokens_has_no_price_for_them() -> None:
    core = Core(LEARNS)
    assert TokenPrices().at(None, core.look, 0.0) == (0.0, 0.0)
    assert not core.looks
