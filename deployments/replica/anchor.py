"""The root of a model's Serve application: publishes the model while its replicas are hot.

Serve makes the root of an application an ingress, with an HTTP server of its own and no custom
router. So the root is this idle actor, with the model's deployments below it; no request passes it.
Its constructor begins a generation, waits for a replica that has this version's settings, of any
group, and announces that replica's description. So Serve stops the old anchor only when the new
version is hot. The application of an optional model runs at once, unless a version is being served
that would end with the old anchor. For a model that sleeps the anchor announces the description
that was stored when a replica last ran. Then it renews its lease and announces groups that come up
later. An anchor that hangs ends its process, and Serve replaces it: without renewals, a gateway
that starts would not find the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ray.exceptions import RayActorError

from deployments.contract.app_names import directory_key
from deployments.contract.description import DESCRIPTION
from deployments.contract.registry import ANSWER_S, LEASE_S, OUTLINE, ModelOutline
from deployments.process import actors, log_choice
from deployments.process.actors import registry
from deployments.process.loop_watch import watch_process
from deployments.process.loopback import keep_replica_calls_local
from deployments.process.replica_directory import directory_for
from deployments.replica.groups import DescribedGroups, GroupReplicas
from deployments.settings.model import ModelSettings

_SAYS_S, _ANSWER_S = 5.0, 2.0  # between two messages to the autoscaler; to wait for an answer
_REGISTRY_S = 4 * ANSWER_S  # the registry may ask Serve first, and receives a tokeniser
logger = logging.getLogger("headrace.anchor")


class ModelAnchor:
    """`args`: the application's, see `serve_config`; `replicas`: handles of the deployments below
    it, one a group."""

    async def __init__(self, args: dict[str, Any], *replicas: Any) -> None:  # type: ignore[misc]
        keep_replica_calls_local()
        log_choice.follow()
        self._loop_watch = watch_process()
        self._name: str = args["name"]
        names = [group["name"] for group in args.get("groups") or [{"name": ""}]]
        asked = [
            GroupReplicas(handle, directory_for(directory_key(self._name, group)))
            for group, handle in zip(names, replicas, strict=True)
        ]
        self._described = DescribedGroups(args, asked)
        self._registry = registry()
        loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        written = args["settings"]
        optional = written.get("optional", False)
        outline = ModelOutline(
            written.get("fallback") or "",
            written["runtime"],
            optional,
            tuple(written.get("aliases") or ()),
            written.get("task") or ModelSettings.model_fields["task"].default,
        )
        self._generation: int = await self._until_answered(
            lambda: self._registry.begin.remote(self._name, OUTLINE.encode(outline))
        )
        self._described.start()
        self._tasks.append(loop.create_task(self._tell_autoscaler()))
        if not optional or await self._until_answered(
            lambda: self._registry.serves.remote(self._name)
        ):
            await self._described.changed.wait()
            await self._until_answered(self._announce)
        self._tasks.append(loop.create_task(self._keep_announced()))

    async def _until_answered(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The registry's answer. Asks again when it hangs or is away: it may be replaced, or go
        on."""
        while True:
            try:
                return await asyncio.wait_for(ask(), _REGISTRY_S)
            except TimeoutError:
                logger.warning("the registry does not answer", extra={"model": self._name})
            except RayActorError as away:
                logger.warning("the registry is away: %s", away, extra={"model": self._name})
                await asyncio.sleep(LEASE_S / 10)

    async def _keep_announced(self) -> None:
        """Renew the lease for ever, and announce whenever a group changes or the lease is lost."""
        if not self._described.known:
            await self._described.changed.wait()
        while True:
            try:
                if await self._must_announce():
                    await asyncio.wait_for(self._announce(), _REGISTRY_S)
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("announcing failed; trying again", extra={"model": self._name})
                await asyncio.sleep(LEASE_S / 10)

    async def _must_announce(self) -> bool:
        """Whether a group is described anew within a quarter of the lease, or else the lease cannot
        be renewed."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._described.changed.wait(), LEASE_S / 4)
        renewal = self._registry.renew.remote(self._name, self._generation)
        return not await asyncio.wait_for(renewal, ANSWER_S)

    async def _announce(self) -> None:
        self._described.changed.clear()
        description, tokenizer = self._described.current()
        description = replace(description, generation=self._generation)
        await self._registry.announce.remote(DESCRIPTION.encode(description), tokenizer)

    async def _tell_autoscaler(self) -> None:
        """Tell the autoscaler whether a description is known, again and again: it may restart."""
        await self._described.recalled.wait()  # an early "not known" would start a replica
        while True:
            known = self._described.known
            try:
                async with asyncio.timeout(_ANSWER_S):
                    actor = await asyncio.to_thread(actors.running_autoscaler)
                    await actor.described.remote(self._name, known)
            except Exception as fault:
                logger.debug("the autoscaler does not answer: %r", fault)
            await (asyncio.sleep(_SAYS_S) if known else self._described.wait_known(_SAYS_S))

    async def __del__(self) -> None:
        self._loop_watch.close()
        for task in self._tasks:
            task.cancel()
        self._described.stop()
        gone = self._registry.withdraw.remote(self._name, self._generation)
        with contextlib.suppress(TimeoutError, RayActorError):  # then the lease runs out
            await asyncio.wait_for(gone, _ANSWER_S)
