"""The registry's actor: wakes who waits for news, and creates the autoscaler, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace

import pytest

from deployments.contract.description import DESCRIPTION, ModelDescription
from deployments.contract.registry import OUTLINE, PROGRESS, VIEW, ModelOutline, ReplicaProgress
from deployments.control import serve_controller
from deployments.control.registry import controller_watch, registry_actor
from deployments.control.registry.registry_actor import RegistryActor


class Serve:
    """Serve's controller, which lists one model."""

    async def models(self) -> set[str]:
        return {"device"}


async def for_ever(*_: object) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def actor(monkeypatch: pytest.MonkeyPatch) -> RegistryActor:
    """One that has heard Serve's list."""
    monkeypatch.setattr(serve_controller, "AsyncServeController", Serve)
    monkeypatch.setattr(controller_watch.ControllerWatchdog, "run", for_ever)
    monkeypatch.setattr(registry_actor, "keep_autoscaler", for_ever)
    monkeypatch.setattr(registry_actor, "watch_process", lambda: None)
    made = RegistryActor()
    await made.refresh()
    return made


async def news(actor: RegistryActor, tell: Callable[[], Awaitable[object]]) -> bool:
    """Whether a gateway that waits for news is woken by it."""
    known = VIEW.decode(await actor.watch(0, 1.0)).revision
    waiting = asyncio.create_task(actor.watch(known, 60.0))
    await asyncio.sleep(0)
    await tell()
    done, _ = await asyncio.wait({waiting}, timeout=0.01)
    waiting.cancel()
    return bool(done) and VIEW.decode(waiting.result()).revision > known


async def test_who_waits_is_woken_by_what_gateways_must_hear_of_alone(
    actor: RegistryActor, description: Callable[..., ModelDescription]
) -> None:
    staging = PROGRESS.encode(ReplicaProgress("device", "r", "staging", 0.1))
    failed = PROGRESS.encode(ReplicaProgress("device", "r", "failed", 0.0, "no memory"))
    outline = OUTLINE.encode(ModelOutline())
    announced = DESCRIPTION.encode(description())
    assert not await news(actor, lambda: actor.report(staging))
    assert await news(actor, lambda: actor.report(failed))
    assert await news(actor, lambda: actor.forget_failures(["device"]))
    assert not await news(actor, actor.refresh)
    assert await news(actor, lambda: actor.begin("device", outline))
    assert await news(actor, lambda: actor.announce(announced, b""))
    assert not await news(actor, lambda: actor.renew("device", 1))
    assert await news(actor, lambda: actor.drain(True))
    assert await news(actor, lambda: actor.withdraw("device", 1))
    assert not await news(actor, lambda: actor.promote("device"))


async def test_it_is_made_as_soon_as_it_can_be_and_asked_whatever_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[str] = []
    asked = asyncio.Queue[int]()

    async def ping() -> None:
        asked.put_nowait(len(tries))
        if len(tries) == 3:
            raise RuntimeError("it is gone for good")

    def made(name: str) -> SimpleNamespace:
        tries.append(name)
        if len(tries) < 3:
            raise RuntimeError("the control store does not answer")
        return SimpleNamespace(ping=SimpleNamespace(remote=ping))

    monkeypatch.setattr(registry_actor.actors, "made", made)
    monkeypatch.setattr(registry_actor, "_ASKS_AUTOSCALER_S", 0.001)
    task = asyncio.create_task(registry_actor.keep_autoscaler())
    async with asyncio.timeout(10.0):
        assert [await asked.get() for _ in range(3)] == [3, 4, 4]
    assert tries == ["headrace-autoscaler"] * 4
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
