"""A catalogue that follows a registry which says what a test has it say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fake_engines import Engines

from deployments.contract.app_names import directory_key
from deployments.contract.description import (
    GatewayIdentity,
    ModelDescription,
)
from deployments.contract.registry import VIEW, View
from deployments.gateway.models.catalogue import Catalogue
from deployments.process.replica_directory import RunningReplica, directory_for

Describe = Callable[..., ModelDescription]


class FakeRegistry:
    """`tell(view)` ends a watch with it; an exception is raised there."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[View | bytes | Exception] = asyncio.Queue()
        self.heard = 0
        self.watch = self.blob = self
        self._revision = 0

    async def remote(self, revision: int, timeout_s: float) -> bytes:
        told = await self._told.get()
        self.heard += 1
        if isinstance(told, Exception):
            raise told
        return told if isinstance(told, bytes) else VIEW.encode(told)

    async def tell(self, *descriptions: ModelDescription, declared: str = "", **more: Any) -> None:
        self._revision += 1
        names = frozenset(declared.split()) | {description.name for description in descriptions}
        models = {description.name: description for description in descriptions}
        view = View(self._revision, models, names, more.pop("draining", False), **more)
        await self.tell_raw(view)

    async def tell_raw(self, told: View | bytes | Exception) -> None:
        self._told.put_nowait(told)
        for _ in range(10):
            await asyncio.sleep(0)


class HeldUp(Engines):
    """A channel whose `seed` waits for `ready`, as if no replica ran before."""

    def __init__(self, ready: asyncio.Event) -> None:
        super().__init__()
        self._ready = ready
        self.seeded: list[str] = []

    async def seed(self, groups: Sequence[str]) -> None:
        self.seeded += groups
        await self._ready.wait()


class Following:
    """A catalogue that follows a fake registry; `seeds[application]` holds a model up. `channels`:
    what was asked for: application, gateway and whether its replicas speak. `followed_pool`: how
    often the pool's replicas were asked for."""

    def __init__(self) -> None:
        self.registry = FakeRegistry()
        self.seeds: dict[str, asyncio.Event] = {}
        self.channels: list[tuple[str, str, bool]] = []
        self.followed_pool = 0
        self.catalogue = Catalogue(
            self.registry,
            GatewayIdentity("g"),
            1 << 16,
            lambda *_: None,
            self._connect,
            self._follow_pool,
        )

    def _connect(self, app: str, gateway: str, *, sends_heartbeats: bool) -> Engines:
        self.channels.append((app, gateway, sends_heartbeats))
        open_at_once = asyncio.Event()
        open_at_once.set()
        return HeldUp(self.seeds.get(app, open_at_once))

    def _follow_pool(self) -> None:
        self.followed_pool += 1

    def run(self, description: ModelDescription) -> None:
        metadata = (("digest", description.digest),)
        directory_for(directory_key(description.name)).update(
            [RunningReplica(f"{description.name}-0", metadata)]
        )
