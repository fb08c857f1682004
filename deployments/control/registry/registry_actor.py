"""The registry as a small named Ray actor that gateways long-poll.

There is one a cluster. Whoever needs it first creates it, and Ray restarts it when it dies. Anchors
announce again with their next renewal, so a restart loses at most one renewal period. The actor
asks Serve which models ought to exist once a second, and when an anchor comes that it does not
expect. Leases run on the monotonic clock. Generations and revisions start from the wall clock,
because they must grow across restarts of the actor. An actor that hangs is killed from outside and
restarted likewise. Messages come and go as bytes (`contract/codec.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from deployments.contract.description import DESCRIPTION
from deployments.contract.registry import (
    ALL_PROGRESS,
    EXCHANGE,
    LEASE_S,
    MEMBERS,
    OUTLINE,
    PROGRESS,
    SNAPSHOT,
    STATUS,
    VIEW,
    RegistryStatus,
)
from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.observations import LIVE_COSTS
from deployments.contract.rollout.terms import TERMS
from deployments.control.registry.registry import Registry
from deployments.control.registry.server_status import replica_targets, server_status
from deployments.process import actors, log_choice
from deployments.process.code_version import code_version
from deployments.process.loop_watch import watch_process

_ASKS_SERVE_S = 1.0
_ASKS_AUTOSCALER_S, _ANSWER_S = 1.0, 5.0
_ACCOUNT_S = 2.0  # to wait for the autoscaler's status
clock = time.monotonic
logger = logging.getLogger("headrace.registry")


class RegistryActor:
    """The shell around `Registry`: reads clocks, asks Serve, and wakes gateways that long-poll."""

    def __init__(self) -> None:
        self._registry = Registry(clock(), int(time.time() * 1000), self._wake)
        self._changed = asyncio.Event()
        self._code = code_version()
        log_choice.follow()
        # Serve's modules are slow to import: only the actor needs them, not who creates it.
        from deployments.control.registry.controller_watch import ControllerWatchdog
        from deployments.control.serve_controller import AsyncServeController

        self._serve = AsyncServeController()
        self._controller = ControllerWatchdog(self._registry.controller_ended)
        loop = asyncio.get_running_loop()
        work = (self._sweep(), self._follow_serve(), keep_autoscaler(), self._controller.run())
        self._tasks = [loop.create_task(each) for each in work]
        self._loop_watch = watch_process()  # last: the imports above block the loop

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 10)
            self._registry.sweep(clock())
            self._registry.look_at_rollouts(clock())

    async def _follow_serve(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(_ASKS_SERVE_S)

    async def refresh(self) -> None:
        """Ask Serve now. If it does not answer, nothing changes."""
        try:
            models = await self._serve.models()
        except Exception as fault:
            logger.debug("Serve does not list its applications: %s", fault)
            return
        self._registry.declare(models, clock())

    def _wake(self) -> None:
        """Answer every gateway that waits in `watch`."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def code(self) -> str:
        """Which code this process runs (`code_version`)."""
        return self._code

    async def watch(self, revision: int, timeout_s: float) -> bytes:
        """The `View`, as soon as its revision differs from `revision`; b"" if it is still the same
        after `timeout_s`."""
        if self._registry.revision == revision:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout_s)
        if self._registry.revision == revision:
            return b""
        return VIEW.encode(self._registry.view())

    async def forget_failures(self, names: list[str]) -> None:
        self._registry.forget_failures(names)

    async def begin(self, name: str, outline: bytes) -> int:
        if name not in self._registry.declared:
            await self.refresh()
        return self._registry.begin(name, time.time(), OUTLINE.decode(outline))

    async def serves(self, name: str) -> bool:
        return self._registry.serves(name)

    async def announce(self, description: bytes, tokenizer: bytes) -> None:
        self._registry.announce(DESCRIPTION.decode(description), tokenizer, clock())

    async def renew(self, name: str, generation: int) -> bool:
        return self._registry.renew(name, generation, clock())

    async def withdraw(self, name: str, generation: int) -> bool:
        return self._registry.withdraw(name, generation)

    async def hold(self, replica: str, members: bytes) -> None:
        """As `Registry.hold`: all that this replica of the shared pool serves now."""
        self._registry.hold(replica, MEMBERS.decode(members), clock())

    async def drain(self, draining: bool) -> None:
        self._registry.drain(draining)

    async def blob(self, digest: str) -> bytes:
        return self._registry.blobs.get(digest, b"")

    async def profile(self, name: str, digest: str) -> tuple[tuple[int, int, float], ...]:
        """As `Registry.profile`, for a replica that starts beside others."""
        return self._registry.profile(name, digest)

    async def live_costs(self, name: str, group: str, digest: str) -> bytes:
        """As `Registry.live_costs`, for a replica that has measured its costs."""
        return LIVE_COSTS.encode(self._registry.live_costs(name, group, digest))

    async def loading_beside(self, name: str, digest: str) -> int:
        """As `Registry.loading_beside`, for a replica that is ready before others of its
        version."""
        return self._registry.loading_beside(name, digest)

    async def report(self, progress: bytes) -> None:
        self._registry.report(PROGRESS.decode(progress))

    async def progress(self) -> bytes:
        """The latest `ReplicaProgress` of each replica."""
        return ALL_PROGRESS.encode(list(self._registry.progress.values()))

    async def push(self, gateway: str, snapshot: bytes) -> bytes:
        """As `Registry.push`."""
        return EXCHANGE.encode(self._registry.push(gateway, SNAPSHOT.decode(snapshot), clock()))

    async def begin_rollout(self, model: str, terms: bytes) -> int:
        return self._registry.begin_rollout(model, TERMS.decode(terms), time.time(), clock())

    async def promote(self, model: str) -> bool:
        return self._registry.promote(model, clock())

    async def finish_rollout(self, model: str) -> bool:
        return self._registry.finish_rollout(model)

    async def abort_rollout(self, model: str, why: str) -> bool:
        return self._registry.abort_rollout(model, why)

    async def rollouts(self) -> list[RolloutAccount]:
        return self._registry.rollout_accounts(clock())

    async def status(self) -> bytes:
        return STATUS.encode(self._status())

    def _status(self) -> RegistryStatus:
        return RegistryStatus(
            self._registry.view(),
            dict(self._registry.outlines),
            list(self._registry.progress.values()),
            {g: s for g, (_, s) in self._registry.gateways.items()},
        )

    async def server_status(self) -> dict[str, Any]:
        """The models and gateways of a `StatusSnapshot`, its rollouts and its scaling."""
        try:
            targets = replica_targets(await self._serve.applications())
        except Exception as fault:
            logger.warning("Serve does not say how many replicas are to run: %s", fault)
            targets = {}
        found = server_status(self._status(), targets)
        found["silent"] = self._registry.silent_gateways(clock())
        found["problem"] = found["problem"] or self._controller.problem()
        return found | {"rollouts": await self.rollouts(), "scaling": await _scaling()}


async def keep_autoscaler() -> None:
    """Create the autoscaler where there is none, for ever. Ray restarts one that ended, and its own
    watchdogs end one that hangs."""
    actor: Any = None
    while True:
        try:
            if actor is None:
                actor = await asyncio.to_thread(actors.made, actors.AUTOSCALER)
            async with asyncio.timeout(_ANSWER_S):
                await actor.ping.remote()
        except TimeoutError:
            logger.debug("the autoscaler does not answer yet")
        except Exception as fault:  # it may be gone for good: find or create the next
            logger.debug("the autoscaler is away: %r", fault)
            actor = None
        await asyncio.sleep(_ASKS_AUTOSCALER_S)


async def _scaling() -> dict[str, Any] | None:
    """The autoscaler's status; None if it does not answer."""
    try:
        asked = actors.running_autoscaler().status.remote()
        account: dict[str, Any] = await asyncio.wait_for(asked, _ACCOUNT_S)
    except Exception as fault:
        logger.warning("the autoscaler does not answer: %s", fault)
        return None
    return account
