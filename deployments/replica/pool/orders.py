"""What does a pool replica hear from the autoscaler, and what does it report the registry?

Two loops run beside the work. One reports each second to the autoscaler what the replica holds, and
gets its order, at once when the order changes. While the autoscaler is away, or has decided nothing
yet (an order of revision 0), the replica goes on with what it holds. The other tells the registry
which models are served, each second and whenever that changes. That is a lease: gateways forget a
pool replica that has stopped telling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from deployments.contract.pool import MEMBERS
from deployments.contract.registry import LEASE_S
from deployments.contract.scaling.messages import POOL_ORDER, POOL_REPORT
from deployments.replica.pool.residents import Residents

REPORT_S = 1.0
ANSWER_S = 5.0
logger = logging.getLogger("headrace.pool")


class PoolOrders:
    """Follows the autoscaler's orders. `autoscaler()` returns the actor, or raises if there is
    none."""

    def __init__(self, residents: Residents, autoscaler: Callable[[], Any]) -> None:
        self._residents = residents
        self._autoscaler = autoscaler
        self._revision = 0
        self._away = False

    async def follow(self) -> None:
        """Report and follow orders until cancelled."""
        while True:
            try:
                await self._ask()
                self._away = False
            except Exception as fault:
                if not self._away:
                    logger.warning("the autoscaler is away; what is held stays: %s", fault)
                self._away = True
                await asyncio.sleep(REPORT_S)

    async def _ask(self) -> None:
        report = POOL_REPORT.encode(self._residents.report())
        asked = self._autoscaler().pool.remote(report, self._revision, REPORT_S)
        order = POOL_ORDER.decode(await asyncio.wait_for(asked, REPORT_S + ANSWER_S))
        if order.revision and order.revision != self._revision:
            self._residents.hold(order.models)
        self._revision = order.revision


class Announcements:
    """Tells the registry what is served. Set `changed` whenever that changes."""

    def __init__(self, replica: str, residents: Residents, registry: Any) -> None:
        self._replica = replica
        self._residents = residents
        self._registry = registry
        self.changed = asyncio.Event()

    async def keep(self) -> None:
        """Tell the registry until cancelled."""
        while True:
            self.changed.clear()
            try:
                await self._tell()
            except Exception:
                logger.exception("the registry does not hear what the pool serves; trying again")
                await asyncio.sleep(LEASE_S / 10)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), LEASE_S / 5)

    async def _tell(self) -> None:
        held = self._registry.hold.remote(self._replica, MEMBERS.encode(self._residents.members))
        await asyncio.wait_for(held, ANSWER_S)

    async def withdraw(self) -> None:
        gone = self._registry.hold.remote(self._replica, MEMBERS.encode(()))
        with contextlib.suppress(TimeoutError):  # then the lease runs out
            await asyncio.wait_for(gone, ANSWER_S)
