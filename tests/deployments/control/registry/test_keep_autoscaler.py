"""The registry creates the autoscaler, and creates it again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest

from deployments.control.registry import registry_actor


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
