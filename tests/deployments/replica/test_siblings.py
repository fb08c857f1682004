"""A replica of a new version waits for those that load beside it, and for nobody else."""

from __future__ import annotations

import asyncio

import pytest

from deployments.replica import model_replica
from deployments.replica.model_replica import together


class Registry:
    """Says how many load, one answer after another; the last one for ever. None: nothing."""

    def __init__(self, *answers: int | None) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.loading_beside = self

    def remote(self, model: str, digest: str) -> asyncio.Future[int]:
        self.asked.append((model, digest))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        told = asyncio.get_running_loop().create_future()
        if answer is not None:
            told.set_result(answer)
        return told


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch):
    """Makes the registry that replicas find."""
    monkeypatch.setattr(model_replica, "_LOOKS_S", 0.0)

    def make(*answers: int | None) -> Registry:
        made = Registry(*answers)
        monkeypatch.setattr(model_replica, "registry", lambda: made)
        return made

    return make


async def test_it_is_ready_when_no_other_loads(of):
    registry = of(2, 1, 0)
    await together("m", "d", 60.0)
    assert registry.asked == [("m", "d")] * 3


async def test_it_waits_no_longer_than_it_took_itself(of):
    of(1)
    async with asyncio.timeout(10):
        await together("m", "d", 0.01)


async def test_it_does_not_wait_for_a_registry_that_hangs(of, monkeypatch):
    monkeypatch.setattr(model_replica, "_ANSWER_S", 0.01)
    registry = of(None)
    async with asyncio.timeout(10):
        await together("m", "d", 60.0)
    assert len(registry.asked) == 1


async def test_without_a_registry_it_is_ready(monkeypatch):
    def nobody() -> None:
        raise ValueError("no actor of that name")

    monkeypatch.setattr(model_replica, "registry", nobody)
    await together("m", "d", 60.0)
