"""The shell around the decider: what it reads and keeps, also while the store is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from autoscaling.settings import GroupTerms, ModelTerms, PoolTerms, ScalingSettings
from autoscaling.types import DemandReading
from deployments.contract.scaling.document import ScalingDocument
from deployments.contract.scaling.messages import (
    GATEWAY_REPORT,
    OBSERVED,
    GatewayReport,
    ModelLoad,
    Observed,
)
from deployments.control.scaling import autoscaler_actor, store
from deployments.control.scaling.autoscaler_actor import AutoscalerActor

KEY = "model-a/model"
TERMS = ModelTerms("a", 0.5, (GroupTerms("", 1, 9),))
DOCUMENT = ScalingDocument(
    ScalingSettings({"a": TERMS}, pool=PoolTerms(min=1, max=1, auto=False))
).text()


class Store:
    """In memory. `broken`: so many further reads raise; `blocks`: reads wait while it is clear."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {store.DOCUMENT: DOCUMENT}
        self.broken = 0
        self.watchers = 0  # of a process
        self.open = threading.Event()
        self.open.set()

    def get(self, name: str) -> str | None:
        self.open.wait(10.0)
        if self.broken:
            self.broken -= 1
            raise RuntimeError("the control store does not answer")
        return self.kept.get(name)

    def put(self, name: str, text: str) -> None:
        self.kept[name] = text

    def watched(self) -> None:
        self.watchers += 1

    @property
    def pins(self) -> dict[str, int]:
        pins: dict[str, int] = json.loads(self.kept[store.STATE])["core"]["models"]["a"]["pins"]
        return pins


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Store:
    fake = Store()
    monkeypatch.setattr(store, "get", fake.get)
    monkeypatch.setattr(store, "put", fake.put)
    for name, seconds in (("DECIDES_S", 0.005), ("_MIN_PAUSE_S", 0.001), ("_SAVES_S", 0.005)):
        monkeypatch.setattr(autoscaler_actor, name, seconds)
    monkeypatch.setattr(autoscaler_actor, "max_resources", dict)
    monkeypatch.setattr(autoscaler_actor, "available_resources", dict)
    monkeypatch.setattr(autoscaler_actor, "_serve_controller", NoServe)
    monkeypatch.setattr(autoscaler_actor, "watch_process", fake.watched)  # it would end this one
    return fake


class NoServe:
    async def applications(self) -> dict[str, object]:
        return {}


@asynccontextmanager
async def running() -> AsyncIterator[AutoscalerActor]:
    actor = object.__new__(AutoscalerActor)  # Ray awaits the constructor
    await actor.__init__()  # type: ignore[misc]
    try:
        yield actor
    finally:
        for task in actor._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(actor: AutoscalerActor, replicas: int) -> None:
    for _ in range(2000):
        if (await actor.exchange(OBSERVED.encode({KEY: Observed(3, 3)}))).get(KEY) == replicas:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"no decision for {replicas} replicas came")


async def pinned_at_5(kept: Store) -> None:
    async with running() as actor:
        await until(actor, 3)
        assert await actor.pin("a", "", 5) == ""
        await until(actor, 5)


async def test_a_store_that_fails_at_the_start_costs_no_number_that_was_set_by_hand(kept: Store):
    await pinned_at_5(kept)
    kept.broken = 3
    async with running() as actor:
        await until(actor, 5)
    assert kept.pins == {"": 5}


async def test_state_is_kept_while_the_published_settings_cannot_be_read(kept: Store):
    await pinned_at_5(kept)
    kept.kept[store.DOCUMENT] = '{"settings": "of another version"}'
    async with running():
        await asyncio.sleep(0.05)
    kept.kept[store.DOCUMENT] = DOCUMENT
    async with running() as actor:
        await until(actor, 5)


async def test_state_that_is_none_is_begun_anew(kept: Store):
    kept.kept[store.STATE] = "{"
    async with running() as actor:
        await until(actor, 3)
        assert await actor.pin("a", "", 4) == ""
        await until(actor, 4)


async def test_a_store_that_does_not_answer_holds_up_no_decision(kept: Store):
    async with running() as actor:
        await until(actor, 3)
        kept.open.clear()
        await asyncio.sleep(0.02)  # a read of the settings has begun
        waits = GatewayReport("g", {"a": ModelLoad(DemandReading(9.0, 1.0, 9, backlog_s=99.0))})
        await actor.report(GATEWAY_REPORT.encode(waits))
        await until(actor, 4)
        kept.open.set()


async def test_a_number_by_hand_is_kept_at_once_and_told_to_serve_with_the_pools(kept: Store):
    async with running() as actor:
        await until(actor, 3)
        assert await actor.pin("a", "", 5) == ""
        assert kept.pins == {"": 5}
        await until(actor, 5)
        targets = await actor.exchange(OBSERVED.encode({KEY: Observed(3, 3)}))
        assert targets == {KEY: 5, "headrace-pool/pool": 1}
        status = await actor.status()
        assert (status["models"]["a"]["pinned"], status["models"]["a"]["reason"]) == (
            {"": 5}, "manual",
        )  # fmt: skip
        assert "not within 1 to 9" in await actor.pin("a", "", 10)


async def test_it_is_watched_while_the_store_does_not_answer(kept: Store):
    kept.broken = 1_000_000
    begins = asyncio.create_task(object.__new__(AutoscalerActor).__init__())  # type: ignore[misc]
    await asyncio.sleep(0)
    assert (kept.watchers, begins.done()) == (1, False)
    begins.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await begins
