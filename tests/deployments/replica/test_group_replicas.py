"""Replicas are asked by name once they are listed; where none is, nobody is asked anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.contract.description import DESCRIPTION, ModelDescription
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica
from deployments.replica.anchor import GroupReplicas


@dataclass(frozen=True)
class Handle:
    """Answers with what was asked of whom, and keeps it in `asked`."""

    asked: list[Any] = field(default_factory=list)
    method_name: str = ""
    session_id: str = ""

    def options(self, **changes: str) -> Handle:
        return replace(self, **changes)

    async def remote(self, *args: Any) -> Any:
        self.asked.append((self.method_name, self.session_id, *args))
        return self.asked[-1]


def a_replica(name: str, digest: str) -> RunningReplica:
    return RunningReplica(name, (("digest", digest),))


@dataclass(frozen=True)
class Describing(Handle):
    """Answers with a description in which it says what was asked of whom."""

    make: Callable[..., ModelDescription] = ModelDescription

    async def remote(self, *args: Any) -> Any:
        method, replica = await super().remote(*args)
        return DESCRIPTION.encode(self.make(name=method, digest=replica)), b"tokens"


async def test_nobody_is_asked_before_one_of_these_settings_is_listed(
    description: Callable[..., ModelDescription],
) -> None:
    handle, directory = Describing(make=description), ReplicaDirectory()
    group = GroupReplicas(handle, directory)
    asking = asyncio.create_task(group.describe("d"))
    directory.update([a_replica("old", "the one before")])
    for _ in range(10):
        await asyncio.sleep(0)
    assert handle.asked == []
    directory.update([a_replica("old", "the one before"), a_replica("new", "d")])
    assert await asking == (description(name="describe", digest="new"), b"tokens")
    group.stop()


async def test_a_listing_that_another_thread_brings_is_heard_of() -> None:
    handle, directory = Handle(), ReplicaDirectory()
    group = GroupReplicas(handle, directory)
    asking = asyncio.create_task(group.version("d", [{"runtime": "x"}]))
    await asyncio.sleep(0)
    await asyncio.to_thread(directory.update, [a_replica("r", "d")])
    async with asyncio.timeout(5.0):
        assert await asking == ("version", "r", [{"runtime": "x"}])
    group.stop()
