"""Which prompt may run next, of those that were on a replica when that was lost and come again?

There is one permit. A prompt holds it until its first token, because an input that ends a replica
mostly does so while it is read: so the next loss has one cause. Tenants that wait have it in turn,
each tenant's prompts in the order in which they came: many suspected prompts of one tenant delay
another tenant's by one prompt at a time. Nobody waits longer than it says. For the event loop's
thread alone. As many wait as the gateway has requests under way, which are bounded by tenant.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SuspectPermits:
    """`_waiting`: by tenant, in the order of their turns; no tenant's deque is empty."""

    def __init__(self) -> None:
        self._holder: Permit | None = None
        self._waiting: dict[str, deque[Permit]] = {}

    async def acquire(self, tenant: str, limit_s: float) -> Permit:
        """Returns once the one before has released it; after `limit_s` all the same."""
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

    def end(self, permit: Permit) -> None:
        """Idempotent, and without effect on anybody else's."""
        self._leave(permit)
        if self._holder is permit:
            self._holder = self._next()

    def _next(self) -> Permit | None:
        """Takes the next one from those that wait; its tenant's next turn is behind all others'."""
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
        permits = self._waiting.get(permit.tenant, deque())
        if permit not in permits:
            return
        permits.remove(permit)
        if not permits:
            del self._waiting[permit.tenant]


class Permit:
    """Of one suspect: released by its first token, or by whatever ends it."""

    def __init__(self, permits: SuspectPermits, tenant: str) -> None:
        self._permits = permits
        self.tenant = tenant
        self.granted = asyncio.Event()

    def release(self) -> None:
        self._permits.end(self)
