"""The registry as a small named Ray actor that gateways long-poll.

One for a cluster, created by whoever comes first, restarted by Ray when it dies: anchors announce
again on their next renewal, so what is lost is at most one renewal's time. Leases run on the
monotonic clock; generations and revisions come from the wall clock, because they must grow across
restarts of the actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import ray

from deployments.contract.description import ModelDescription
from deployments.contract.registry import LEASE_S, Registry, ReplicaProgress, View

NAME = "headrace-registry"
NAMESPACE = "headrace"
clock = time.monotonic


class RegistryActor:
    def __init__(self) -> None:
        self._registry = Registry(born_s=clock(), revision=int(time.time() * 1000))
        self._changed = asyncio.Event()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 10)
            if self._registry.sweep(clock()):
                self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, revision: int, timeout_s: float) -> View:
        """The view, as soon as its revision differs from `revision`, or after `timeout_s`."""
        if self._registry.revision == revision:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout_s)
        return self._registry.view()

    async def declare(self, names: list[str]) -> None:
        self._registry.declare(names)
        self._wake()

    async def begin(self, name: str, fallback: str) -> int:
        generation = self._registry.begin(name, time.time(), fallback)
        self._wake()
        return generation

    async def announce(self, description: ModelDescription, tokenizer: bytes) -> None:
        self._registry.announce(description, tokenizer, clock())
        self._wake()

    async def renew(self, name: str, generation: int) -> bool:
        return self._registry.renew(name, generation, clock())

    async def withdraw(self, name: str, generation: int) -> bool:
        gone = self._registry.withdraw(name, generation)
        self._wake()
        return gone

    async def drain(self, draining: bool) -> None:
        self._registry.drain(draining)
        self._wake()

    async def blob(self, digest: str) -> bytes:
        return self._registry.blobs.get(digest, b"")

    async def report(self, progress: ReplicaProgress) -> None:
        self._registry.report(progress)

    async def progress(self) -> list[ReplicaProgress]:
        return list(self._registry.progress.values())

    async def push(self, gateway: str, snapshot: dict[str, object]) -> None:
        self._registry.push(gateway, snapshot, clock())

    async def status(self) -> dict[str, Any]:
        """View, progress and the gateways' latest snapshots, for `headrace status`."""
        return {
            "view": self._registry.view(),
            "progress": list(self._registry.progress.values()),
            "gateways": {g: s for g, (_, s) in self._registry.gateways.items()},
        }


def registry() -> Any:
    """The cluster's registry actor, created when there is none."""
    return (
        ray.remote(RegistryActor)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=1000,
        )
        .remote()
    )
