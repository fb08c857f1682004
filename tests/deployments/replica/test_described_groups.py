"""Groups describe themselves as they come up; the model is described as soon as one is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deployments.contract.description import ModelDescription
from deployments.replica import described_groups
from deployments.replica.described_groups import DescribedGroups
from deployments.settings.load import settings_digest
from runtimes.types import TensorSpec

Describe = Callable[..., ModelDescription]
SETTINGS: dict[str, Any] = {"runtime": "synthetic"}


class Replicas:
    """A handle: each `describe` is answered with the next of `answers`, once there is one."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.asked: list[Any] = []
        self.describe, self.version = self, Version(self.asked)

    async def remote(self) -> Any:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Version:
    def __init__(self, asked: list[Any]) -> None:
        self._asked = asked

    async def remote(self, views: Any) -> str:
        self._asked.append(views)
        return "v-of-all"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_groups, "_AGAIN_S", 0.0)
    monkeypatch.setattr(described_groups, "_PAUSE_S", 0.0)


def group(name: str, after_s: float = 0.0) -> dict[str, Any]:
    return {"name": name, "settings": SETTINGS | {"options": {"name": name}}, "after_s": after_s}


GPU, CPU = group("gpu"), group("cpu", 0.5)
ARGS = {"name": "m", "settings": SETTINGS, "channel": {}, "groups": [GPU, CPU]}


def said(description: Describe, of: dict[str, Any], **more: Any) -> tuple[ModelDescription, bytes]:
    return description(digest=settings_digest(of["settings"]), **more), b""


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_model_without_groups_is_what_its_replica_says(description: Describe) -> None:
    handle = Replicas()
    args = {"name": "m", "settings": SETTINGS, "channel": {}}
    groups = DescribedGroups(args, [handle])
    groups.start()
    handle.answers.put_nowait((description(digest="the one before"), b""))
    await turns()
    assert not groups.changed.is_set()
    own = description(digest=settings_digest(SETTINGS)), b"words"
    handle.answers.put_nowait(own)
    await groups.changed.wait()
    assert groups.current() == own
    assert handle.asked == []


async def test_a_group_that_comes_up_later_joins_the_others(description: Describe) -> None:
    gpu, cpu = Replicas(), Replicas()
    groups = DescribedGroups(ARGS, [gpu, cpu])
    groups.start()
    cpu.answers.put_nowait(said(description, CPU))
    await groups.changed.wait()
    groups.changed.clear()
    first, _ = groups.current()
    gpu.answers.put_nowait(said(description, GPU))
    await groups.changed.wait()
    both, _ = groups.current()
    assert [each.name for each in first.groups] == ["cpu"]
    assert [(each.name, each.after_s) for each in both.groups] == [("gpu", 0.0), ("cpu", 0.5)]
    assert (first.version, first.digest) == (both.version, both.digest)
    assert first.version == "v-of-all"
    assert cpu.asked + gpu.asked == [[GPU["settings"], CPU["settings"]]]


async def test_a_replica_that_cannot_be_asked_is_asked_again(description: Describe) -> None:
    gpu = Replicas()
    groups = DescribedGroups(ARGS | {"groups": [GPU]}, [gpu])
    groups.start()
    gpu.answers.put_nowait(RuntimeError("it went"))
    gpu.answers.put_nowait(said(description, GPU))
    await groups.changed.wait()
    assert [each.name for each in groups.current()[0].groups] == ["gpu"]


async def test_a_group_that_does_not_fit_is_left_out_and_the_log_says_so_once(
    description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        described_groups.logger, "error", lambda text, *of, extra: told.append(text % of)
    )
    handles = [Replicas(), Replicas()]
    groups = DescribedGroups(ARGS, handles)
    groups.start()
    handles[0].answers.put_nowait(said(description, GPU))
    await groups.changed.wait()
    other = (TensorSpec("other", "FP32", (-1,)),)
    handles[1].answers.put_nowait(said(description, CPU, outputs=other))
    await turns()
    for _ in range(2):
        assert [each.name for each in groups.current()[0].groups] == ["gpu"]
    assert told == ["group cpu gets no requests: its outputs differ from the other groups'"]
