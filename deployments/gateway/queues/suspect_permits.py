"""Which suspected prompt may run next? (A suspect was on a replica when that was lost.)

There is one permit, and a prompt holds it until its first token. An input that ends a replica
mostly does so while it is read, so the next loss then has one cause. Tenants take turns, and a
tenant's prompts run in the order in which they came: many suspects of one tenant delay another
tenant's by one prompt at a time. No prompt waits for longer than its own `limit_s`. As many may
wait as the gateway has requests under way, which are bounded by tenant. For the event loop's thread
alone.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SuspectPermits:
    """The permit of one model's queue, and who waits for it."""

    def __init__(self) -> None:
        self._holder: Permit | None = None
        # By tenant, in the order of their turns; no tenant's deque is empty.
        self._waiting: dict[str, deque[Permit]] = {}

    async def acquire(self, tenant: str, limit_s: float) -> Permit:
        """Wait for the tenant's turn. After `limit_s` the prompt may run without it."""
        permit = Permit(self, tenant)
        if self._holder is None:
            self._holder = permit
            return permit
        self._waiting.setdefault(tenant, deque()).append(permit)
        try:
            async with asyncio.timeout(limit_s):
                await permit.granted.wait()
        except TimeoutError:
            self._leave(permit)
        except asyncio.CancelledError:
            permit.release()
            raise
        return permit

    def holds(self, permit: Permit) -> bool:
        """Whether it has been granted and not released."""
        return self._holder is permit

    def end(self, permit: Permit) -> None:
        """The prompt needs its permit no more, whether it has it or waits for it. Idempotent."""
        self._leave(permit)
        if self._holder is permit:
            self._holder = self._grant_next()

    def _grant_next(self) -> Permit | None:
        """Grant the next turn. The tenant that has it goes behind all other tenants."""
        if not self._waiting:
            return None
        tenant, permits = next(iter(self._waiting.items()))
        del self._waiting[tenant]
        following = permits.popleft()
        if permits:
            self._waiting[tenant] = permits
        following.granted.set()
        return following

    def _leave(self, permit: Permit) -> None:
        """Take a prompt out of those that wait, if it does."""
        permits = self._waiting.get(permit.tenant, deque())
        if permit not in permits:
            return
        permits.remove(permit)
        if not permits:
            del self._waiting[permit.tenant]


class Permit:
    """One suspect's permission to run: released by its first token, or by whatever ends it."""

    def __init__(self, permits: SuspectPermits, tenant: str) -> None:
        self._permits = permits
        self.tenant = tenant
        self.granted = asyncio.Event()

    def release(self) -> None:
        self._permits.end(self)
