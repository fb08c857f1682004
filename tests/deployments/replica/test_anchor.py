"""When an anchor's constructor returns, which is when Serve says that the application runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from deployments.contract.description import DESCRIPTION, ModelDescription
from deployments.contract.registry import OUTLINE, ModelOutline
from deployments.replica import anchor
from deployments.replica.anchor import ModelAnchor


class Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    async def remote(self, *args: Any) -> Any:
        return self._call(*args)


class FakeRegistry:
    """`serving`: whether a version of the model serves already."""

    def __init__(self, serving: bool) -> None:
        self.outlines: list[ModelOutline] = []
        self.announced: list[int] = []
        self.begin = Method(lambda name, said: self.outlines.append(OUTLINE.decode(said)) or 7)
        self.serves = Method(lambda name: serving)
        self.announce = Method(
            lambda said, tokenizer: self.announced.append(DESCRIPTION.decode(said).generation)
        )
        self.renew = Method(lambda name, generation: True)
        self.withdraw = Method(lambda name, generation: True)


class FakeGroups:
    """Described once `changed` is set."""

    def __init__(self, description: ModelDescription) -> None:
        self._description = description
        self.changed, self.recalled = asyncio.Event(), asyncio.Event()

    @property
    def known(self) -> bool:
        return self.changed.is_set()

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def current(self) -> tuple[ModelDescription, bytes]:
        return self._description, b""


class FakeWatch:
    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class Anchor(ModelAnchor):
    """Whose end only a test calls."""

    def __del__(self) -> None: ...


class Starting:
    def __init__(self, monkeypatch: Any, description: ModelDescription, serving: bool) -> None:
        self.registry, self.groups = FakeRegistry(serving), FakeGroups(description)
        monkeypatch.setattr(anchor, "registry", lambda: self.registry)
        monkeypatch.setattr(anchor, "DescribedGroups", lambda *_: self.groups)
        self.watch = FakeWatch()
        monkeypatch.setattr(anchor, "watch_process", lambda: self.watch)
        monkeypatch.setattr(anchor, "keep_replica_calls_local", lambda: None)
        monkeypatch.setattr(anchor.log_choice, "follow", lambda: None)
        self.anchor: Any = Anchor.__new__(Anchor)

    async def begin(self, **settings: Any) -> asyncio.Task[None]:
        args = {"name": "device", "settings": {"runtime": "synthetic", **settings}}
        task = asyncio.create_task(self.anchor.__init__(args, None))
        await self.turns()
        return task

    async def turns(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def starting(monkeypatch, description) -> Callable[[bool], Starting]:
    monkeypatch.setattr(anchor, "GroupReplicas", lambda *_: None)
    return lambda serving: Starting(monkeypatch, description(), serving)


@pytest.mark.parametrize(
    ("settings", "serving", "returns"),
    [
        ({}, False, False),
        ({"optional": True}, False, True),
        ({"optional": True}, True, False),  # else the old version would go before the new is hot
    ],
)
async def test_it_waits_for_its_model_unless_nobody_does(starting, settings, serving, returns):
    run = starting(serving)
    task = await run.begin(**settings)
    assert task.done() is returns
    assert run.registry.announced == []
    run.groups.changed.set()
    await run.turns()
    assert task.done()
    assert run.registry.announced == [7]
    await ModelAnchor.__del__(run.anchor)


async def test_it_is_watched_while_it_waits_and_until_it_goes(starting):
    run = starting(False)
    task = await run.begin()
    assert not task.done()
    assert run.anchor._loop_watch is run.watch
    run.groups.changed.set()
    await run.turns()
    assert run.watch.is_open
    await ModelAnchor.__del__(run.anchor)
    assert not run.watch.is_open


async def test_it_tells_the_registry_whether_its_model_is_optional(starting):
    run = starting(False)
    await run.begin(optional=True, fallback="small", aliases=["org/small"])
    said = ModelOutline("small", "synthetic", True, ("org/small",), "tensors")
    assert run.registry.outlines == [said]
    await ModelAnchor.__del__(run.anchor)


async def hang() -> None:
    await asyncio.Event().wait()


async def gone() -> None:
    raise ActorDiedError


@pytest.mark.parametrize("fails", [hang, gone])
async def test_it_asks_a_registry_that_hangs_or_is_replaced_again(starting, monkeypatch, fails):
    monkeypatch.setattr(anchor, "_REGISTRY_S", 0.001)
    monkeypatch.setattr(anchor, "LEASE_S", 0.01)
    run = starting(False)
    run.groups.changed.set()
    asked = {"begin": 0, "announce": 0}

    def fails_once(name: str) -> Method:
        answers = getattr(run.registry, name)

        class Failing:
            async def remote(self, *args: Any) -> Any:
                asked[name] += 1
                if asked[name] == 1:
                    await fails()
                return await answers.remote(*args)

        return Failing()  # type: ignore[return-value]

    for name in asked:
        setattr(run.registry, name, fails_once(name))
    await asyncio.wait_for(await run.begin(), 5)
    assert asked == {"begin": 2, "announce": 2}
    assert run.registry.announced == [7]
    await ModelAnchor.__del__(run.anchor)
