"""How much may a tenant use: its own rates, and its share of what is bounded for all?

Each of a tenant's rates is a token bucket, of which this gateway has a share. How large the share
is, routers' `admission.rates` computes from what the other gateways report of the same tenant
each second. Requests are counted by their headers, tokens once lengths are known. What is refused
later, or answered from a cache, is counted all the same. A key may have rates of its own, which are
checked first. Tenants that are read again keep their levels. `SharedBound` bounds what is held at a
time: bytes, bodies that arrive, requests under way, places to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from deployments.contract import errors
from deployments.contract.registry import RateReport
from deployments.gateway.tenancy.tenants import Tenant
from deployments.settings.key import RateSettings
from routers.policies.admission.rates import SILENT_S, Rate, RateShare, RateUse

QuotaKey = tuple[str, float]
"""A tenant's name and weight."""

NOBODY: QuotaKey = ("", 1.0)
MAX_USED = 2  # times the bound, of all tenants together


@dataclass(slots=True)
class _Held:
    """What one tenant holds."""

    weight: float
    amount: int = 0


class SharedBound:
    """One resource. Whoever adds an amount gives it back. For one thread at a time.

    One tenant alone may have all of it. Once it is used up, a tenant with less than its share (by
    weight, among the tenants that hold any) still gets more, and one that has its share is refused.
    The share is one of the bound, or of what the others leave of twice the bound where that is
    less: shares of the bound itself add up without end when tenants come one after another and each
    fills its own. So at most twice the bound is ever used. Nothing is taken back from anybody."""

    def __init__(self, limit: int) -> None:
        self.used = 0  # by all tenants
        self._limit = limit
        self._held: dict[str, _Held] = {}  # by tenant; only those that hold any
        self._weight = 0.0  # of those tenants together

    def fits(self, quota_key: QuotaKey, amount: int) -> bool:
        """Whether the tenant may have `amount` more."""
        if self.used + amount <= self._limit:
            return True
        name, weight = quota_key
        held = self._held.get(name)
        own, share = 0, weight / (self._weight + weight)
        if held is not None:
            own, share = held.amount, held.weight / self._weight
        left = MAX_USED * self._limit - (self.used - own)
        return own + amount <= share * min(self._limit, left)

    def add(self, quota_key: QuotaKey, amount: int) -> None:
        """The tenant holds `amount` more; not checked against the bound."""
        held = self._held.get(quota_key[0])
        if held is None:
            held = self._held[quota_key[0]] = _Held(quota_key[1])
            self._weight += held.weight
        held.amount += amount
        self.used += amount

    def give(self, quota_key: QuotaKey, amount: int) -> None:
        """The tenant gives `amount` back."""
        held = self._held[quota_key[0]]
        held.amount -= amount
        self.used -= amount
        if not held.amount:
            del self._held[quota_key[0]]
            self._weight = self._weight - held.weight if self._held else 0.0


_MIN_ASKED_PER_S = 1e-3  # a decaying rate below this is not reported


@dataclass(slots=True)
class _TenantLimit:
    """This gateway's share of a tenant's or a key's rates."""

    rate: RateSettings  # the whole rates
    requests: RateShare
    tokens: RateShare

    def use(self, now: float) -> list[float]:
        """What `RateReport` says of it."""
        uses = self.requests.use(now), self.tokens.use(now)
        return [figure for use in uses for figure in (use.asked_per_s, use.passed)]


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a rate counts: requests or tokens."""

    name: str
    reason: str  # of a refusal
    per_s: Callable[[RateSettings], float | None]
    share: Callable[[_TenantLimit], RateShare]


_REQUESTS = _Counted(
    "requests", "request_rate", attrgetter("requests_per_s"), attrgetter("requests")
)
_TOKENS = _Counted("tokens", "token_rate", attrgetter("tokens_per_s"), attrgetter("tokens"))


@dataclass(slots=True)
class _GatewayCount:
    """How many gateways there are. One that is heard of counts at once. One that is not counts for
    `SILENT_S` more: the registry may have restarted, and knows of nobody at first."""

    count: int  # as Serve says it to a gateway that starts
    _all_heard_at: float = inf  # when as many were last heard of; inf: nothing was heard yet
    _heard_at: float = -inf

    def on_report(self, others: int, now: float) -> int:
        """So many others are heard of now. Returns the count."""
        found, was_silent = 1 + others, now - self._heard_at > SILENT_S
        if found < self.count and not was_silent and now - self._all_heard_at <= SILENT_S:
            self._heard_at = now
            return self.count
        self.count = max(found, self.count) if was_silent else found
        self._all_heard_at = self._heard_at = now
        return self.count


class Rates:
    """All tenants' rates at one gateway. For the event loop's thread alone."""

    def __init__(self, gateways: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateways = _GatewayCount(gateways)
        self._clock = clock
        self._limits: dict[str, _TenantLimit] = {}  # by tenant, or key that has rates

    @property
    def gateways(self) -> int:
        """As many live, this one included."""
        return self._gateways.count

    def take_request(self, tenant: Tenant) -> None:
        """Count one request. Raises OverOwnLimit."""
        if tenant.key_rate is None and tenant.rate.requests_per_s is None:
            return  # most tenants have no rate; saves 0.2 us
        self._take_of(tenant, _REQUESTS, 1)

    def take_tokens(self, tenant: Tenant, tokens: int) -> None:
        """Count a request's tokens. Raises OverOwnLimit."""
        if tenant.key_rate is None and tenant.rate.tokens_per_s is None:
            return
        self._take_of(tenant, _TOKENS, tokens)

    def spend(self, tenant: Tenant, tokens: int) -> None:
        """Count tokens that were given already. Tokens over the rate are owed: later requests wait
        for them."""
        for name, rate, _ in _rates_of(tenant):
            if rate.tokens_per_s is not None and tokens > 0:
                limit, now = self._limit(name, rate).tokens, self._clock()
                limit.asks(tokens, now)
                limit.take(tokens, now)

    def reconcile(self, tenant: Tenant, tokens: int) -> None:
        """Correct a counted request, which has `tokens` more than counted; below 0: fewer."""
        if tokens >= 0:
            self.spend(tenant, tokens)
            return
        for name, rate, _ in _rates_of(tenant):
            if rate.tokens_per_s is not None:
                self._limit(name, rate).tokens.take(tokens, self._clock())

    def report(self) -> RateReport:
        """What the other gateways are to be told, as plain data."""
        now = self._clock()
        uses = {name: limit.use(now) for name, limit in self._limits.items()}
        return {n: use for n, use in uses.items() if max(use[0], use[2]) > _MIN_ASKED_PER_S}

    def on_report(self, others: Mapping[str, RateReport]) -> None:
        """Take in the last reports of all other gateways that live, by gateway."""
        now = self._clock()
        gateways = self._gateways.on_report(len(others), now)
        for name, limit in self._limits.items():
            uses = {gateway: report.get(name) for gateway, report in others.items()}
            limit.requests.on_report(_uses(uses, 0), gateways, now)
            limit.tokens.on_report(_uses(uses, 2), gateways, now)

    def _take_of(self, tenant: Tenant, what: _Counted, amount: float) -> None:
        """Count `amount` at each of the tenant's and its key's rates. Raises OverOwnLimit at the
        first one that is used up."""
        for name, rate, whose in _rates_of(tenant):
            per_s = what.per_s(rate)
            if per_s is None:
                continue
            wait_s = self._take(what.share(self._limit(name, rate)), amount)
            if wait_s > 0.0:
                raise errors.OverOwnLimit(
                    f"this {whose} has used its rate of {per_s:g} {what.name} a second "
                    f"(rate.{what.name}_per_s)",
                    retry_after_s=wait_s,
                    reason=what.reason,
                )

    def _take(self, share: RateShare, amount: float) -> float:
        """0.0: the amount was taken. Else nothing was, and it may be after so many seconds."""
        now = self._clock()
        share.asks(amount, now)
        wait_s = share.wait_s(amount, now)
        if wait_s == 0.0:
            share.take(amount, now)
        return wait_s

    def _limit(self, name: str, rate: RateSettings) -> _TenantLimit:
        """The limit of this name, adapted if its rate was changed."""
        kept = self._limits.get(name)
        if kept is None:
            count, now = self._gateways.count, self._clock()
            shares = [RateShare.equal(each, count, now) for each in _whole(rate)]
            kept = self._limits[name] = _TenantLimit(rate, *shares)
        elif kept.rate is not rate and kept.rate != rate:
            requests, tokens = _whole(rate)
            kept.rate = rate
            kept.requests.change(requests, self._clock())
            kept.tokens.change(tokens, self._clock())
        return kept


def _rates_of(tenant: Tenant) -> tuple[tuple[str, RateSettings, str], ...]:
    """(name to count by, rate, "key" or "tenant") of each; no tenant may be named `key/...`."""
    own = tenant.name, tenant.rate, "tenant"
    if tenant.key_rate is None:
        return (own,)
    return (f"key/{tenant.key}", tenant.key_rate, "key"), own


def _whole(rate: RateSettings) -> tuple[Rate, Rate]:
    return _rate(rate.requests_per_s, rate.burst_s), _rate(rate.tokens_per_s, rate.burst_s)


def _rate(per_s: float | None, burst_s: float) -> Rate:
    per_s = inf if per_s is None else per_s
    return Rate(per_s, per_s * burst_s)


def _uses(reports: Mapping[str, list[float] | None], at: int) -> dict[str, RateUse]:
    """Each gateway's use of one rate. A gateway that reports nothing of a tenant has no demand for
    it, and has passed no more than before."""
    return {
        gateway: RateUse(0.0, 0.0) if each is None else RateUse(each[at], each[at + 1])
        for gateway, each in reports.items()
    }
