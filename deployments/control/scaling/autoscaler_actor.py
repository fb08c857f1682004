"""The autoscaler as a named Ray actor: one a cluster, created and watched by the registry.

It decides once a second, and at once when a gateway reports urgent demand. Serve's controller
fetches the decisions (`target_reader`), gateways get them as the answer to their report, and pool
replicas while they wait for an order. Settings come from the cluster's store. The actor's own state
is saved there every 10 s, and when an operator pins a number of replicas. Blocking calls run in
threads. An actor that hangs is killed, and Ray restarts it for ever; while it is away, all targets
stay as they are. Messages come and go as bytes (`contract/codec.py`). The private API of Ray that
this uses is tested by tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray._private.state import state

from deployments.contract.codec import OtherVersion
from deployments.contract.scaling import document
from deployments.contract.scaling.messages import (
    GATEWAY_REPORT,
    OBSERVED,
    OUTLOOKS,
    POOL_ORDER,
    POOL_REPORT,
    START,
)
from deployments.control.scaling import store
from deployments.control.scaling.decider import Decider
from deployments.process import log_choice
from deployments.process.code_version import code_version
from deployments.process.loop_watch import watch_process

DECIDES_S = 1.0
_MIN_PAUSE_S = 0.1  # between two decisions
_SAVES_S = 10.0
_LOOKS_S = 2.0  # between two looks at Serve's details
_COUNTS_S = 5.0  # between two counts of the cluster's resources
clock = time.monotonic
logger = logging.getLogger("headrace.autoscaler")


class AutoscalerActor:
    """The shell around `Decider`: reads clocks, asks Serve and the store, wakes those that wait."""

    async def __init__(self) -> None:  # type: ignore[misc]
        log_choice.follow()
        self._loop_watch = watch_process()
        self._code = code_version()
        self._decider = Decider(clock(), int(time.time() * 1000))
        self._text = ""
        self._pressed = asyncio.Event()
        self._ordered = asyncio.Event()
        self._decided_at = clock()
        self._serve: Any = None
        self._saving = asyncio.Lock()
        await self._recall()
        loops = (
            (self._decide, 0.0), (self._reread, DECIDES_S), (self._look, _LOOKS_S),
            (self._count, _COUNTS_S), (self._save, _SAVES_S),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(_again(work, every_s)) for work, every_s in loops]

    # ---- what others call -------------------------------------------------------------------

    async def report(self, report: bytes) -> bytes:
        """Take in a gateway's demand (`GatewayReport`). Returns the outlook of each model."""
        if self._decider.report(GATEWAY_REPORT.decode(report), clock()):
            self._pressed.set()
        return OUTLOOKS.encode(self._decider.outlooks())

    async def exchange(self, observed: bytes) -> dict[str, int]:
        """Take in what Serve runs, by "application/deployment". Returns the targets, likewise."""
        return self._decider.exchange(OBSERVED.decode(observed), clock())

    async def started(self, start: bytes) -> None:
        """Take in a replica's start, timed from the beginning of its process."""
        self._decider.record_start(START.decode(start), clock())

    async def described(self, model: str, known: bool) -> None:
        """Take in whether a description of the model is known. Until one is, a replica has to
        run."""
        self._decider.set_described(model, known)
        self._pressed.set()

    async def pool(self, said: bytes, revision: int, timeout_s: float) -> bytes:
        """Take in what a pool replica holds (`PoolReport`). Returns its `PoolOrder` as soon as the
        order's revision differs from `revision`, or after `timeout_s`."""
        end, report = clock() + timeout_s, POOL_REPORT.decode(said)
        order = self._decider.pool_report(report, clock())
        while order.revision == revision and (left_s := end - clock()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._ordered.wait()
            order = self._decider.pool.order(report.replica)
        return POOL_ORDER.encode(order)

    async def pin(self, model: str, group: str, replicas: int | None) -> str:
        """Fix the group's number of replicas; None makes it automatic again. Returns what is wrong
        with the number, or ""."""
        complaint = self._decider.pin(model, group, replicas, clock())
        if not complaint:
            self._pressed.set()
            await self._save()
        return complaint

    async def status(self) -> dict[str, Any]:
        return self._decider.status() | {"decided_s_ago": clock() - self._decided_at}

    async def code(self) -> str:
        """Which code this process runs (`code_version`)."""
        return self._code

    async def ping(self) -> None:
        """Answers if the loop turns; for the registry, which watches this actor."""

    # ---- what it does by itself -------------------------------------------------------------

    async def _decide(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DECIDES_S):
                await self._pressed.wait()
        self._pressed.clear()
        for sentence in self._decider.step(clock()):
            logger.info(sentence)
        self._decided_at = clock()
        if self._decider.order_pool():
            self._ordered.set()
            self._ordered = asyncio.Event()
        await asyncio.sleep(_MIN_PAUSE_S)

    async def _reread(self) -> None:
        """Take up the published settings if they have changed."""
        text = await asyncio.to_thread(store.get, store.DOCUMENT)
        if text is None or text == self._text:
            return
        self._text = text
        try:
            self._decider.reconfigure(document.parse(text), clock())
        except OtherVersion as wrong:
            logger.error("the published settings are not used: %s", wrong)

    async def _look(self) -> None:
        """Ask for Serve's details while they say more than Serve's numbers of replicas do."""
        now = clock()
        if not (self._decider.seen.unsettled(now) or self._decider.gateways.silent(now)):
            return
        if self._serve is None:
            self._serve = await asyncio.to_thread(_serve_controller)
        self._decider.detail(await self._serve.applications(), clock())

    async def _count(self) -> None:
        most, available = await asyncio.to_thread(lambda: (max_resources(), available_resources()))
        self._decider.resources(most, available)

    async def _save(self) -> None:
        """Save the state, unless no settings could be read: then the stored state knows more."""
        async with self._saving:  # so that newer state is stored later
            if not self._decider.document.settings.models:
                return
            state = {"at": time.time(), "core": self._decider.save(clock())}
            await asyncio.to_thread(store.put, store.STATE, json.dumps(state))

    async def _recall(self) -> None:
        """Load what an earlier actor saved. Waits until the store answers: state that is not read
        now would be overwritten."""
        while True:
            try:
                await self._reread()
                text = await asyncio.to_thread(store.get, store.STATE)
                break
            except Exception:
                logger.exception("the cluster's store does not answer; trying again")
                await asyncio.sleep(DECIDES_S)
        if text is None:
            return
        try:
            state = json.loads(text)
            self._decider.load(state["core"], clock(), time.time() - state["at"])
        except Exception:
            logger.exception("what an earlier autoscaler knew is lost")


async def _again(work: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Repeat the work for ever. A failure is logged and tried again."""
    while True:
        try:
            await work()
            await asyncio.sleep(every_s)
        except Exception:
            logger.exception("the autoscaler could not %s", work.__name__.strip("_"))
            await asyncio.sleep(max(every_s, DECIDES_S))


def _serve_controller() -> Any:
    """Made late, because Serve's modules are slow to import."""
    from deployments.control.serve_controller import AsyncServeController

    return AsyncServeController()


def max_resources() -> dict[str, float]:
    """The most that the cluster has or may come to have, by Ray's name of the resource."""
    may_become = state.get_max_resources_from_cluster_config()
    found: Any = ray.cluster_resources
    has = found() if may_become is None else may_become
    return {name: float(amount) for name, amount in has.items()}


def available_resources() -> dict[str, float]:
    """What is free now, by Ray's name of the resource."""
    found: Any = ray.available_resources
    return {name: float(amount) for name, amount in found().items()}
