"""Rates are a tenant's own, shared by gateways as they are asked for, and survive a change of the
tenants' file."""

from __future__ import annotations

from contextlib import suppress

import pytest

from deployments.contract.errors import OverOwnLimit
from deployments.contract.registry import GatewaySnapshot
from deployments.control.registry.registry import Registry
from deployments.gateway.tenancy.rates import Rates
from deployments.gateway.tenancy.tenants import Tenant
from deployments.settings.tenant import RateSettings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tenant(name: str = "acme", **rate: float) -> Tenant:
    return Tenant(name, rate=RateSettings.model_validate(rate))


def requests_until_refused(rates: Rates, of: Tenant) -> int:
    for taken in range(100):
        try:
            rates.take_request(of)
        except OverOwnLimit:
            return taken
    return 100


@pytest.mark.parametrize(("gateways", "then"), [(1, 10), (2, 5), (10, 1)])
def test_a_gateway_passes_the_whole_burst_and_then_its_share(gateways: int, then: int) -> None:
    clock = Clock()
    rates, of = Rates(gateways, clock), tenant(requests_per_s=5, burst_s=2)
    assert requests_until_refused(rates, of) == 10
    clock.now += 2.001
    assert requests_until_refused(rates, of) == then


def test_at_least_one_request_passes() -> None:
    assert requests_until_refused(Rates(1, Clock()), tenant(requests_per_s=0.5, burst_s=1)) == 1


def test_what_is_told_is_when_it_works_again() -> None:
    clock = Clock()
    rates, of = Rates(1, clock), tenant(requests_per_s=2)
    assert requests_until_refused(rates, of) == 2
    with pytest.raises(OverOwnLimit) as refused:
        rates.take_request(of)
    clock.now += refused.value.retry_after_s
    rates.take_request(of)
    with pytest.raises(OverOwnLimit):
        rates.take_request(of)


def test_tokens_and_requests_are_counted_apart() -> None:
    rates, of = Rates(1, Clock()), tenant(requests_per_s=2, tokens_per_s=100)
    rates.take_tokens(of, 60)
    with pytest.raises(OverOwnLimit) as refused:
        rates.take_tokens(of, 60)
    assert refused.value.reason == "token_rate"
    assert refused.value.retry_after_s == pytest.approx(0.2, abs=0.001)
    assert requests_until_refused(rates, of) == 2


def test_without_a_rate_everything_passes() -> None:
    rates = Rates(1, Clock())
    assert requests_until_refused(rates, tenant()) == 100
    assert requests_until_refused(rates, tenant(tokens_per_s=1)) == 100
    rates.take_tokens(tenant(requests_per_s=1), 10**9)


def test_one_tenants_rate_is_not_anothers() -> None:
    rates = Rates(1, Clock())
    assert requests_until_refused(rates, tenant("a", requests_per_s=3)) == 3
    assert requests_until_refused(rates, tenant("b", requests_per_s=3)) == 3


def test_tenants_that_are_read_again_keep_what_they_used_up() -> None:
    clock = Clock()
    rates = Rates(1, clock)
    assert requests_until_refused(rates, tenant(requests_per_s=10)) == 10
    assert requests_until_refused(rates, tenant(requests_per_s=10)) == 0
    assert requests_until_refused(rates, tenant(requests_per_s=40)) == 0
    clock.now += 0.5
    assert requests_until_refused(rates, tenant(requests_per_s=40)) == 20


def test_a_rate_that_shrinks_holds_at_once() -> None:
    rates = Rates(1, Clock())
    rates.take_request(tenant(requests_per_s=50))
    assert requests_until_refused(rates, tenant(requests_per_s=5)) == 5


# ---- several gateways, which tell each other through the registry


def exchange(registry: Registry, gateways: dict[str, Rates], now: float) -> None:
    for name, rates in gateways.items():
        rates.on_report(registry.push(name, GatewaySnapshot(rates=rates.report()), now).rates)


def second(gateways: dict[str, Rates], of: Tenant, clock: Clock, asked: dict[str, int]) -> int:
    """Requests that pass in a second in which so many come to each."""
    passed = 0
    for _ in range(100):
        clock.now += 0.01
        for name, count in asked.items():
            for _ in range(count // 100):
                try:
                    gateways[name].take_request(of)
                    passed += 1
                except OverOwnLimit:
                    pass
    return passed


@pytest.mark.parametrize("asked", [{"a": 100, "b": 0}, {"a": 100, "b": 100}, {"a": 300, "b": 100}])
def test_two_gateways_pass_the_whole_rate_wherever_it_is_asked_for(asked: dict[str, int]) -> None:
    clock, registry = Clock(), Registry(born_s=0.0)
    gateways = {name: Rates(2, clock) for name in ("a", "b")}
    of = tenant(requests_per_s=50, burst_s=1)
    passed = []
    for _ in range(30):
        passed.append(second(gateways, of, clock, asked))
        exchange(registry, gateways, clock.now)
    assert sum(passed[10:]) / 20 == pytest.approx(50, rel=0.04)


def test_tokens_that_are_owed_are_owed_to_all_gateways() -> None:
    clock, registry = Clock(), Registry(born_s=0.0)
    gateways = {name: Rates(2, clock) for name in ("a", "b")}
    of = tenant(tokens_per_s=10)
    for name in ("a", "b"):
        gateways[name].take_tokens(of, 1)
    for _ in range(2):
        clock.now += 1.0
        exchange(registry, gateways, clock.now)
    gateways["a"].spend(of, 1000)
    for _ in range(2):
        clock.now += 1.0
        exchange(registry, gateways, clock.now)
    with pytest.raises(OverOwnLimit):
        gateways["b"].take_tokens(of, 1)


def test_a_tenant_that_nobody_asks_for_is_not_spoken_of() -> None:
    clock = Clock()
    rates = Rates(2, clock)
    rates.take_request(tenant(requests_per_s=5))
    assert list(rates.report()) == ["acme"]
    clock.now += 60.0
    assert rates.report() == {}


def test_gateways_that_are_added_while_it_runs_share_the_rate() -> None:
    """Each was told that it is alone."""
    clock, of = Clock(), tenant(requests_per_s=10, burst_s=1)
    gateways = {name: Rates(1, clock) for name in "abc"}
    passed = 0
    for tick in range(2000):
        clock.now = tick / 100
        for rates in gateways.values():
            with suppress(OverOwnLimit):
                rates.take_request(of)
                passed += 1
        if tick % 100 == 0:
            reports = {name: rates.report() for name, rates in gateways.items()}
            for name, rates in gateways.items():
                rates.on_report({other: said for other, said in reports.items() if other != name})
    # A burst each, the whole rate, and what had passed before it was heard of.
    assert 200 <= passed <= 3 * 10 + 200 + 3 * 2 * 10


def tokens_left(rates: Rates, of: Tenant) -> int:
    """That may be taken at once; takes them."""
    for taken in range(1000):
        try:
            rates.take_tokens(of, 1)
        except OverOwnLimit:
            return taken
    return 1000


@pytest.mark.parametrize(("more", "left"), [(-30, 100), (-20, 90), (0, 70), (20, 50), (100, 0)])
def test_a_request_that_was_counted_is_trued_up(more: int, left: int) -> None:
    rates, of = Rates(1, Clock()), tenant(tokens_per_s=100, burst_s=1)
    rates.take_tokens(of, 30)
    rates.reconcile(of, more)
    assert tokens_left(rates, of) == left


def test_what_is_given_back_makes_no_burst_larger() -> None:
    clock = Clock()
    rates, of = Rates(1, clock), tenant(tokens_per_s=100, burst_s=1)
    rates.take_tokens(of, 30)
    clock.now += 1.0
    rates.reconcile(of, -30)
    assert tokens_left(rates, of) == 100
    clock.now += 1.0
    assert tokens_left(rates, of) == 100


def test_a_tenant_without_a_rate_of_tokens_is_given_nothing_back() -> None:
    rates, of = Rates(1, Clock()), tenant(requests_per_s=5)
    rates.reconcile(of, -30)
    assert rates.report() == {}
