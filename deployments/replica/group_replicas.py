"""The replicas of one group, as the model's anchor asks them.

Only a replica that Serve lists is asked, by its id. A call to no particular replica would wait at
Serve, and Serve starts a replica for any call that waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from deployments.contract.description import DESCRIPTION, ModelDescription
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica


class GroupReplicas:
    """`handle`: of the group's Serve deployment; `directory`: kept by the handle's router, perhaps
    on another thread."""

    def __init__(self, handle: Any, directory: ReplicaDirectory) -> None:
        self._handle = handle.options(method_name="describe")  # starts the router
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stop_listening = directory.listen(self._wake)

    async def describe(self, digest: str) -> tuple[ModelDescription, bytes]:
        """The description and tokeniser from a replica with these settings, once there is one.
        Raises what Serve raises if the replica has gone meanwhile."""
        found: tuple[bytes, bytes] = await (await self._pinned(digest)).remote()
        return DESCRIPTION.decode(found[0]), found[1]

    async def version(self, digest: str, views: list[dict[str, Any]]) -> str:
        """The model's version over the settings of all its groups (`views`)."""
        pinned = (await self._pinned(digest)).options(method_name="version")
        found: str = await pinned.remote(views)
        return found

    def stop(self) -> None:
        self._stop_listening()

    def _wake(self, replicas: tuple[RunningReplica, ...]) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _pinned(self, digest: str) -> Any:
        """A handle that is pinned to a replica with these settings; waits for one."""
        while True:
            self._changed.clear()
            for replica in self._directory.replicas:
                if replica.digest() == digest:
                    return self._handle.options(session_id=replica.replica_id)
            await self._changed.wait()
