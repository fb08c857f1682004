"""Is a tenant within its own rates, at this gateway?

One pair of token buckets a tenant that has rates, each filled with this gateway's share of what the
settings say for all of them. Requests are counted by their headers, tokens once lengths are known;
what is refused later, or answered from a cache, is counted all the same. Tenants that are read
again keep their levels. What other gateways leave unused is not passed on: traffic that reaches one
of two gateways alone gets half of the rate there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from deployments.contract import errors
from deployments.gateway.tenancy.tenants import Tenant
from deployments.settings.tenant import RateSettings
from routers.admission.rate_limit import Rate, RateLimit


@dataclass(slots=True)
class _TenantLimit:
    rate: RateSettings
    limit: RateLimit


class Rates:
    """`gateways`: how many there are. For one thread, the event loop's."""

    def __init__(self, gateways: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateways = gateways
        self._clock = clock
        self._kept: dict[str, _TenantLimit] = {}

    def take_request(self, tenant: Tenant) -> None:
        """Counts one request. Raises OverOwnLimit."""
        if tenant.rate.requests_per_s is None:
            return
        now = self._clock()
        wait_s = self._limit(tenant, now).take(1, 0, now)
        if wait_s > 0.0:
            raise errors.OverOwnLimit(
                f"this tenant has used its rate of {tenant.rate.requests_per_s:g} requests a "
                "second (rate.requests_per_s)",
                retry_after_s=wait_s,
                reason="request_rate",
            )

    def take_tokens(self, tenant: Tenant, tokens: int) -> None:
        """Counts a request's tokens. Raises OverOwnLimit."""
        if tenant.rate.tokens_per_s is None:
            return
        now = self._clock()
        wait_s = self._limit(tenant, now).take(0, tokens, now)
        if wait_s > 0.0:
            raise errors.OverOwnLimit(
                f"this tenant has used its rate of {tenant.rate.tokens_per_s:g} tokens a second "
                "(rate.tokens_per_s)",
                retry_after_s=wait_s,
                reason="token_rate",
            )

    def spend(self, tenant: Tenant, tokens: int) -> None:
        """Counts tokens that were given already: what is over the rate is owed."""
        if tenant.rate.tokens_per_s is not None and tokens > 0:
            now = self._clock()
            self._limit(tenant, now).tokens.take(tokens, now)

    def _limit(self, tenant: Tenant, now: float) -> RateLimit:
        kept = self._kept.get(tenant.name)
        if kept is None:
            limit = RateLimit(*self._shares(tenant.rate), now)
            kept = self._kept[tenant.name] = _TenantLimit(tenant.rate, limit)
        elif kept.rate is not tenant.rate and kept.rate != tenant.rate:
            kept.rate = tenant.rate
            kept.limit.change(*self._shares(tenant.rate), now)
        return kept.limit

    def _shares(self, rate: RateSettings) -> tuple[Rate, Rate]:
        return (
            self._share(rate.requests_per_s, rate.burst_s),
            self._share(rate.tokens_per_s, rate.burst_s),
        )

    def _share(self, per_s: float | None, burst_s: float) -> Rate:
        per_s = inf if per_s is None else per_s
        return Rate(per_s, per_s * burst_s).share(self._gateways)
