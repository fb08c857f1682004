"""Gateways that tell each other through the registry which inputs end replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_runtimes import Moody
from held_calls import INFER, SYNTHETIC, body_of
from in_process import Answer, Stand, ask, standing

from deployments.contract.registry import CrashedInput, CrashReport, GatewaySnapshot
from deployments.control.registry.registry import Registry
from deployments.gateway.models import crash_exchange
from deployments.gateway.models.crash_exchange import CrashExchange
from deployments.gateway.queues import lost_replicas
from runtimes.errors import Unhealthy

MODELS = {"device": {**SYNTHETIC, "crashes": {"hold_s": 0, "tenant_budget": 8}}}


class Gateways:
    """Two, each with two replicas of its own that are lost with each row of 4 and more."""

    def __init__(self, *stands: Stand) -> None:
        self.registry = Registry(0.0)
        self.stands = stands
        self.exchanges = [
            CrashExchange(stand.models, stand.app.suspected.records) for stand in stands
        ]

    def push(self, number: int) -> None:
        said = GatewaySnapshot(crashes=self.exchanges[number].report())
        self.exchanges[number].on_report(self.registry.push(f"gateway-{number}", said, 0.0).crashes)

    def push_all(self) -> None:
        for number in (0, 1, 0):
            self.push(number)

    async def ask(self, number: int, *values: int, **more: Any) -> Answer:
        body = body_of(list(values), "x")
        return await ask(self.stands[number].app, "POST", INFER, body=body, **more)

    def replace_replicas(self, number: int, name: str) -> None:
        """By new ones, as after a loss."""
        rename_replicas(self.stands[number], name)

    def sent(self, number: int) -> int:
        return len(self.stands[number].channels["device"].calls)


def moody() -> dict[str, Moody]:
    return {"device": Moody(lambda value: Unhealthy("broken") if value >= 4 else None)}


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    async with (
        standing(MODELS, tmp_path / "0", replicas=2, runtimes=moody()) as one,
        standing(MODELS, tmp_path / "1", replicas=2, runtimes=moody()) as other,
    ):
        rename_replicas(other)
        yield Gateways(one, other)


def rename_replicas(stand: Stand, other: str = "other") -> None:
    """They are other processes than those of another stand."""
    stand.run_replicas("device", [])
    cores = stand.channels["device"].cores
    for name in list(cores):
        cores[f"{other}-{name}"] = cores.pop(name)
        stand._group_of[f"{other}-{name}"] = ""
    stand.run_replicas("device", list(cores))


async def test_what_one_gateway_has_quarantined_costs_no_replica_of_another(
    gateways: Gateways,
) -> None:
    assert (await gateways.ask(0, 4)).status == 422
    gateways.push_all()
    assert (await gateways.ask(1, 4)).status == 422
    assert (gateways.sent(0), gateways.sent(1)) == (2, 0)
    assert (await gateways.ask(1, 3)).status == 200


async def test_the_second_loss_quarantines_wherever_the_first_one_was(gateways: Gateways) -> None:
    once = [(b"x-idempotent", b"false")]
    assert (await gateways.ask(0, 4, headers=once)).status == 503
    gateways.push_all()
    assert (await gateways.ask(1, 4, headers=once)).status == 422
    gateways.push_all()
    assert (await gateways.ask(0, 4)).status == 422
    assert (gateways.sent(0), gateways.sent(1)) == (1, 1)


async def test_what_was_answered_alone_is_no_suspect_of_this_gateway_any_more(
    gateways: Gateways,
) -> None:
    channel = gateways.stands[0].channels["device"]
    channel.script = ["gone"]
    assert (await gateways.ask(0, 3, headers=[(b"x-idempotent", b"false")])).status == 503
    gateways.push_all()
    crashes = gateways.stands[1].models.queued["device"].queue.crashes
    assert crashes
    assert (await gateways.ask(1, 3)).status == 200
    gateways.push_all()
    assert not crashes.elsewhere._suspicions


async def test_who_never_lets_rows_run_again_spends_its_budget_of_replicas_all_the_same(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_replicas, "_AT_ONCE_S", 0.0)
    once = [(b"x-idempotent", b"false")]
    channel = gateways.stands[0].channels["device"]
    for value in range(20, 28):
        gateways.replace_replicas(0, str(value))
        assert (await gateways.ask(0, value, headers=once)).status == 503
    assert len(channel.calls) == 8
    refused = await gateways.ask(0, 3, headers=once)
    assert (refused.status, b"8 replicas of the model" in refused.body) == (429, True)
    gateways.push_all()
    assert (await gateways.ask(1, 3)).status == 429


async def test_rows_that_wait_here_are_refused_with_those_that_another_quarantines(
    gateways: Gateways,
) -> None:
    """Of those that have been sent to a replica, and may run once more."""
    stand = gateways.stands[1]
    channel = stand.channels["device"]
    channel.hold()
    waits = asyncio.create_task(gateways.ask(1, 4, 3))
    other = asyncio.create_task(gateways.ask(1, 2))
    await channel.sent(1)
    assert (await gateways.ask(0, 4)).status == 422
    gateways.push_all()
    assert (await waits).status == 422
    channel.let_go()
    assert (await other).status == 200


async def test_a_registry_that_has_restarted_knows_all_of_it_a_push_later(
    gateways: Gateways,
) -> None:
    assert (await gateways.ask(0, 4)).status == 422
    gateways.push_all()
    gateways.registry = Registry(0.0)
    stand = gateways.stands[1]
    gateways.exchanges[1] = CrashExchange(stand.models, stand.app.suspected.records)
    gateways.push_all()
    assert (await gateways.ask(1, 4)).status == 422
    assert gateways.sent(1) == 0


async def test_who_tells_the_registry_is_woken_by_a_loss_and_by_nothing_else(
    gateways: Gateways,
) -> None:
    exchange = gateways.exchanges[0]
    gateways.push_all()
    await exchange.news(0.0)
    told = asyncio.create_task(exchange.news(60.0))
    assert (await gateways.ask(0, 3)).status == 200
    assert not told.done()
    assert (await gateways.ask(0, 4)).status == 422
    await asyncio.wait_for(told, 5.0)


async def test_nothing_is_said_where_nothing_is_known(gateways: Gateways) -> None:
    assert [exchange.report() for exchange in gateways.exchanges] == [{}, {}]


async def test_what_is_said_and_heard_is_bounded(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_exchange, "MAX_INPUTS", 3)
    said = [CrashedInput(b"%d" % n, ("a",), 60.0, convicted=True) for n in range(5)]
    gateways.exchanges[0].on_report(
        {"g": {"device": CrashReport(tuple(said)), "gone": CrashReport()}}
    )
    crashes = gateways.stands[0].models.queued["device"].queue.crashes
    assert [crashes.is_quarantined(each.key) for each in said] == [True] * 3 + [False] * 2
    for each in said:
        crashes.note(each.key, "t", "b", 0.0)
    monkeypatch.setattr(crash_exchange, "monotonic", lambda: 0.0)
    assert len(gateways.exchanges[0].report()["device"].inputs) == 3
