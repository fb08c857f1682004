"""The shell around the decider: what it reads and keeps, without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from autoscaling.settings import GroupTerms, ModelTerms, PoolTerms, ScalingSettings
from deployments.contract.scaling.document import ScalingDocument
from deployments.contract.scaling.messages import OBSERVED, Observed
from deployments.control.scaling import autoscaler_actor, store
from deployments.control.scaling.autoscaler_actor import AutoscalerActor

KEY = "model-a/model"
TERMS = ModelTerms("a", 0.5, (GroupTerms("", 1, 4),))
DOCUMENT = ScalingDocument(ScalingSettings({"a": TERMS}, pool=PoolTerms(min=1, max=1, auto=False)))


class Store(dict[str, str]):
    """The cluster's; away for so many questions."""

    away = 0
    watchers = 0  # of a process

    def fetch(self, name: str) -> str | None:
        if self.away:
            self.away -= 1
            raise ConnectionError("the store is away")
        return self.get(name)

    def watched(self) -> None:
        self.watchers += 1


class NoServe:
    async def applications(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Store:
    found = Store({store.DOCUMENT: DOCUMENT.text()})
    monkeypatch.setattr(store, "get", found.fetch)
    monkeypatch.setattr(store, "put", found.__setitem__)
    monkeypatch.setattr(autoscaler_actor, "max_resources", dict)
    monkeypatch.setattr(autoscaler_actor, "available_resources", dict)
    monkeypatch.setattr(autoscaler_actor, "_serve_list", NoServe)
    monkeypatch.setattr(autoscaler_actor, "_MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(autoscaler_actor, "watch_process", found.watched)
    return found


async def begun() -> AutoscalerActor:
    actor = AutoscalerActor.__new__(AutoscalerActor)
    await actor.__init__()  # type: ignore[misc]
    return actor


@pytest.fixture
async def actor(kept: Store) -> AsyncIterator[AutoscalerActor]:
    made = await begun()
    yield made
    end(made)


def end(actor: AutoscalerActor) -> None:
    for task in actor._tasks:
        task.cancel()


async def decided(actor: AutoscalerActor) -> dict[str, Any]:
    actor._pressed.set()
    at = actor._decided_at
    async with asyncio.timeout(10):
        while actor._decided_at == at:  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(0.001)
    return await actor.status()


async def test_a_number_by_hand_is_kept_at_once_and_known_to_a_successor(actor, kept) -> None:
    await actor.exchange(OBSERVED.encode({KEY: Observed(1, 1)}))
    assert await actor.pin("a", "", 3) == ""
    assert json.loads(kept[store.STATE])["core"]["models"]["a"]["pins"] == {"": 3}
    await decided(actor)
    assert await actor.exchange(OBSERVED.encode({KEY: Observed(1, 1)})) == {
        KEY: 3,
        "headrace-pool/pool": 1,
    }
    assert "not within 1 to 4" in await actor.pin("a", "", 9)

    successor = await begun()
    await successor.exchange(OBSERVED.encode({KEY: Observed(3, 3)}))
    status = await decided(successor)
    end(successor)
    assert status["models"]["a"]["pinned"] == {"": 3}
    assert status["models"]["a"]["reason"] == "manual"


async def test_it_is_watched_while_the_store_does_not_answer(kept: Store) -> None:
    kept.away = 1_000_000
    begins = asyncio.create_task(begun())
    await asyncio.sleep(0)
    assert (kept.watchers, begins.done()) == (1, False)
    begins.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await begins


async def test_nothing_is_overwritten_that_could_not_be_read(actor, kept, monkeypatch) -> None:
    monkeypatch.setattr(autoscaler_actor, "DECIDES_S", 0.001)
    await actor.pin("a", "", 3)
    kept.away = 1
    successor = await begun()
    await successor._save()
    end(successor)
    assert json.loads(kept[store.STATE])["core"]["models"]["a"]["pins"] == {"": 3}
