"""What a pool replica hears from the autoscaler, and what it tells the registry.

Two loops beside the work. The autoscaler hears each second what is held and says what should be,
at once when that changes; while it is away, or has decided nothing yet (an order of number 0), what
is held stays. The registry hears what serves each
second and whenever that changes: it is a lease, so gateways forget a pool replica that says nothing
any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from deployments.contract.registry import LEASE_S
from deployments.contract.scaling.messages import PoolOrder
from deployments.replica.pool.residents import Residents

REPORT_S = 1.0
ANSWER_S = 5.0
logger = logging.getLogger("headrace.pool")


class PoolOrders:
    """`autoscaler()` gives the actor, or raises while there is none."""

    def __init__(self, residents: Residents, autoscaler: Callable[[], Any]) -> None:
        self._residents = residents
        self._autoscaler = autoscaler
        self._revision = 0
        self._away = False

    async def follow(self) -> None:
        """Until cancelled."""
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
        asked = self._autoscaler().pool.remote(self._residents.report(), self._revision, REPORT_S)
        order: PoolOrder = await asyncio.wait_for(asked, REPORT_S + ANSWER_S)
        if order.revision and order.revision != self._revision:
            self._residents.hold(order.models)
        self._revision = order.revision


class Announcements:
    """`changed` is to be set whenever other models serve than before."""

    def __init__(self, replica: str, residents: Residents, registry: Any) -> None:
        self._replica = replica
        self._residents = residents
        self._registry = registry
        self.changed = asyncio.Event()

    async def keep(self) -> None:
        """Until cancelled."""
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
        held = self._registry.hold.remote(self._replica, self._residents.members)
        await asyncio.wait_for(held, ANSWER_S)

    async def withdraw(self) -> None:
        gone = self._registry.hold.remote(self._replica, ())
        with contextlib.suppress(TimeoutError):  # then its lease runs out
            await asyncio.wait_for(gone, ANSWER_S)
