"""The replicas of one group, as the model's anchor asks them.

Only one that Serve lists is asked, by name: a question to nobody in particular would wait at Serve,
which starts a replica for whatever waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from deployments.contract.description import ModelDescription
from deployments.contract.replica_directory import ReplicaDirectory, RunningReplica


class GroupReplicas:
    """`handle`: of the group's Serve deployment; `directory`: which the handle's router keeps,
    perhaps from another thread."""

    def __init__(self, handle: Any, directory: ReplicaDirectory) -> None:
        self._handle = handle.options(method_name="describe")  # starts the router
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stop_listening = directory.listen(self._heard)

    async def describe(self, digest: str) -> tuple[ModelDescription, bytes]:
        """What one says that was started with these settings, once there is one, and the bytes of
        its tokeniser. Raises what Serve raises where it has gone meanwhile."""
        found: tuple[ModelDescription, bytes] = await (await self._one(digest)).remote()
        return found

    async def version(self, digest: str, views: list[dict[str, Any]]) -> str:
        """Of the model, by the settings of all its groups."""
        pinned = (await self._one(digest)).options(method_name="version")
        found: str = await pinned.remote(views)
        return found

    def stop(self) -> None:
        self._stop_listening()

    def _heard(self, replicas: tuple[RunningReplica, ...]) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _one(self, digest: str) -> Any:
        while True:
            self._changed.clear()
            for replica in self._directory.replicas:
                if replica.digest() == digest:
                    return self._handle.options(session_id=replica.replica_id)
            await self._changed.wait()
