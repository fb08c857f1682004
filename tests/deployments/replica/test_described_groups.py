"""Groups describe themselves as they come up; the model is described as soon as one is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deployments.contract.description import ModelDescription
from deployments.process import description_store
from deployments.process.description_store import StoredDescription
from deployments.replica import groups as group_module
from deployments.replica.groups import DescribedGroups
from deployments.settings.plain import settings_digest
from runtimes.types import TensorSpec

Describe = Callable[..., ModelDescription]
SETTINGS: dict[str, Any] = {"runtime": "synthetic"}


class Replicas:
    """Each `describe` is answered with the next of `answers`, once there is one. `asked`: for which
    settings' version."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.asked: list[Any] = []
        self.digests: list[str] = []

    async def describe(self, digest: str) -> Any:
        self.digests.append(digest)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def version(self, digest: str, views: Any) -> str:
        self.asked.append(views)
        return "v-of-all"

    def stop(self) -> None:
        pass


class Store:
    """As `description_store`, with what it encodes."""

    away = False

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def put(self, model: str, group: str, stored: StoredDescription) -> None:
        self.kept[model, group] = description_store.STORED.encode(stored)

    def get(self, model: str, group: str, settings: str) -> StoredDescription | None:
        if self.away:
            raise RuntimeError("the store is away")
        found = self.kept.get((model, group))
        return None if found is None else description_store.decode(found, settings)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """What `DescribedGroups` find in place of `description_store`; they try again at once."""
    made = Store()
    monkeypatch.setattr(group_module, "description_store", made)
    monkeypatch.setattr(group_module, "_PAUSE_S", 0.0)
    return made


def group(name: str, after_s: float = 0.0) -> dict[str, Any]:
    return {"name": name, "settings": SETTINGS | {"options": {"name": name}}, "after_s": after_s}


GPU, CPU = group("gpu"), group("cpu", 0.5)
ARGS = {"name": "m", "settings": SETTINGS, "channel": {}, "groups": [GPU, CPU]}


def said(description: Describe, of: dict[str, Any], **more: Any) -> tuple[ModelDescription, bytes]:
    return description(digest=settings_digest(of["settings"]), **more), b""


async def until(held: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not held():  # noqa: ASYNC110 - a thread of the store's
            await asyncio.sleep(0.001)


ALONE = {"name": "m", "settings": SETTINGS, "channel": {}}


async def test_a_model_without_groups_is_what_its_replica_says(description: Describe) -> None:
    asked = Replicas()
    groups = DescribedGroups(ALONE, [asked])
    groups.start()
    assert not groups.known
    own = description(digest=settings_digest(SETTINGS)), b"words"
    asked.answers.put_nowait(own)
    await groups.changed.wait()
    assert groups.current() == own
    assert groups.known
    assert (asked.asked, asked.digests) == ([], [settings_digest(SETTINGS)])


async def test_what_was_said_once_is_known_without_a_replica(
    store: Store, description: Describe
) -> None:
    first = Replicas()
    groups = DescribedGroups(ALONE, [first])
    groups.start()
    own = description(digest=settings_digest(SETTINGS)), b"words"
    first.answers.put_nowait(own)
    await until(lambda: bool(store.kept))
    asleep = Replicas()
    later = DescribedGroups(ALONE, [asleep])
    later.start()
    async with asyncio.timeout(5.0):
        await later.wait_known(5.0)
    assert later.current() == own
    assert asleep.answers.empty()


async def test_what_a_replica_says_later_takes_the_place_of_what_was_stored(
    store: Store, description: Describe
) -> None:
    digest, asked = settings_digest(SETTINGS), Replicas()
    groups = DescribedGroups(ALONE, [asked])
    before = StoredDescription(groups._all_settings(), description(digest=digest), b"words")
    store.put("m", "", before)
    groups.start()
    await until(lambda: groups.known)
    groups.changed.clear()
    await until(lambda: bool(asked.digests))
    asked.answers.put_nowait((description(digest=digest, version="2"), b"words"))
    await groups.changed.wait()
    assert groups.current()[0].version == "2"
    await until(lambda: store.get("m", "", before.settings) != before)


async def test_other_settings_are_another_model(store: Store, description: Describe) -> None:
    store.put("m", "", StoredDescription("of others", description(), b""))
    groups = DescribedGroups(ALONE, [Replicas()])
    groups.start()
    await groups.recalled.wait()
    assert not groups.known


async def test_a_store_that_is_away_holds_up_nothing(store: Store, description: Describe) -> None:
    asked, store.away = Replicas(), True
    groups = DescribedGroups(ALONE, [asked])
    groups.start()
    asked.answers.put_nowait((description(digest=settings_digest(SETTINGS)), b""))
    await groups.changed.wait()
    assert groups.known
    assert not groups.recalled.is_set()  # that nothing was stored is not known
    store.away = False
    async with asyncio.timeout(5.0):
        await groups.recalled.wait()
    groups.stop()


async def test_sleeping_groups_are_known_with_the_version_of_all(
    store: Store, description: Describe
) -> None:
    asked = [Replicas(), Replicas()]
    groups = DescribedGroups(ARGS, asked)
    groups.start()
    asked[0].answers.put_nowait(said(description, GPU))
    asked[1].answers.put_nowait(said(description, CPU))
    await until(lambda: len(store.kept) == 2)
    later = DescribedGroups(ARGS, [Replicas(), Replicas()])
    later.start()
    await until(lambda: len(later._parts) == 2)
    assert later.current() == groups.current()
    changed = ARGS | {"groups": [GPU, group("cpu", 0.7) | {"settings": {"runtime": "other"}}]}
    other = DescribedGroups(changed, [Replicas(), Replicas()])
    other.start()
    await other.recalled.wait()
    assert not other.known


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
    assert cpu.asked == [[GPU["settings"], CPU["settings"]]]


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
        group_module.logger, "error", lambda text, *of, extra: told.append(text % of)
    )
    handles = [Replicas(), Replicas()]
    groups = DescribedGroups(ARGS, handles)
    groups.start()
    handles[0].answers.put_nowait(said(description, GPU))
    await groups.changed.wait()
    other = (TensorSpec("other", "FP32", (-1,)),)
    handles[1].answers.put_nowait(said(description, CPU, outputs=other))
    await until(lambda: len(groups._parts) == 2)
    for _ in range(2):
        assert [each.name for each in groups.current()[0].groups] == ["gpu"]
    assert told == ["group cpu gets no requests: its outputs differ from the other groups'"]
