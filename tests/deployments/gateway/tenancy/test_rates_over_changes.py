"""A tenant's rate holds for all gateways together, whichever of them were killed, restarted, added
or taken away: within 5 % of the setting 15 s after the last change. On virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.contract.errors import OverOwnLimit
from deployments.contract.registry import GatewaySnapshot
from deployments.control.registry.registry import Registry
from deployments.gateway.tenancy.rates import Rates
from deployments.gateway.tenancy.tenants import Tenant
from deployments.settings.tenant import RateSettings

PER_S = 100
OFFERED_PER_S = 300
SETTLES_S = 15.0
TICK_S = 0.05
TENANT = Tenant("acme", rate=RateSettings.model_validate({"requests_per_s": PER_S, "burst_s": 1}))


@dataclass
class Service:
    """Gateways that take requests in turn and tell the registry of them once a second."""

    weights: tuple[int, ...] = (1,)  # how many requests in turn come to each gateway
    gateways: dict[str, Rates] = field(default_factory=dict)
    registry: Registry | None = None
    now: float = 0.0
    passed: int = 0
    _started: int = 0
    _told_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart_registry()

    def restart_registry(self) -> None:
        self.registry = Registry(born_s=self.now)

    def lose_registry(self) -> None:
        self.registry = None

    def start(self, together: int) -> None:
        """Start one gateway, which is told that there are so many."""
        name = f"gateway {self._started}"
        self.gateways[name] = Rates(together, lambda: self.now)
        self._told_at[name] = self.now - 0.37 * (self._started % 3)
        self._started += 1

    def kill(self, which: int) -> None:
        name = list(self.gateways)[which % len(self.gateways)]
        del self.gateways[name]

    def scale(self, to: int) -> None:
        while len(self.gateways) > to:
            self.kill(0)
        while len(self.gateways) < to:
            self.start(to)

    def run(self, seconds: float) -> float:
        """Requests that passed, a second."""
        before, turns = self.passed, cycle(self._turns())
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for _ in range(round(OFFERED_PER_S * TICK_S)):
                self._ask(next(turns))
            self._exchange()
        return (self.passed - before) / seconds

    def _turns(self) -> list[Rates]:
        weighed = zip(self.gateways.values(), cycle(self.weights), strict=False)
        return [each for each, weight in weighed for _ in range(weight)]

    def _ask(self, gateway: Rates) -> None:
        try:
            gateway.take_request(TENANT)
        except OverOwnLimit:
            return
        self.passed += 1

    def _exchange(self) -> None:
        if self.registry is None:
            return
        self.registry.sweep(self.now)
        for name, rates in self.gateways.items():
            if self.now - self._told_at[name] >= 1.0:
                self._told_at[name] = self.now
                said = GatewaySnapshot(rates=rates.report())
                rates.on_report(self.registry.push(name, said, self.now).rates)


Change = Callable[[Service], object]


def kill(which: int) -> Change:
    """One dies, unless it is the last; nobody takes its place."""
    return lambda service: len(service.gateways) > 1 and service.kill(which)


def replace(which: int) -> Change:
    def change(service: Service) -> None:
        together = len(service.gateways)
        service.kill(which)
        service.start(together)

    return change


def scale(to: int) -> Change:
    return lambda service: service.scale(to)


def wait(seconds: float) -> Change:
    return lambda service: service.run(seconds)


CHANGES = st.one_of(
    st.builds(kill, st.integers(0, 5)),
    st.builds(replace, st.integers(0, 5)),
    st.builds(scale, st.integers(1, 6)),
    st.builds(wait, st.sampled_from([0.3, 1.0, 4.0, 11.0])),
    st.sampled_from([Service.restart_registry, Service.lose_registry]),
)


def settled(service: Service, changes: Iterable[Change]) -> float:
    """Requests that pass a second once all changes are `SETTLES_S` ago."""
    for change in changes:
        change(service)
    if service.registry is None:
        service.restart_registry()
    service.run(SETTLES_S)
    return service.run(10.0)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(CHANGES, max_size=8),
    st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(lambda weights: weights[0] > 0),
)
def test_a_rate_is_as_it_is_set_after_any_changes(
    count: int, changes: list[Change], weights: list[int]
) -> None:
    service = Service(tuple(weights))
    service.scale(count)
    assert settled(service, changes) == pytest.approx(PER_S, rel=0.05)


@pytest.mark.parametrize("replacements", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_gateways_that_were_replaced_have_no_share(count: int, replacements: int) -> None:
    service = Service()
    service.scale(count)
    changes = [wait(4.0), *(each for _ in range(replacements) for each in (replace(0), wait(2.0)))]
    assert settled(service, changes) == pytest.approx(PER_S, rel=0.05)


def test_gateways_that_never_come_have_no_share() -> None:
    service = Service()
    service.start(together=4)
    assert settled(service, []) == pytest.approx(PER_S, rel=0.05)


def test_while_the_registry_is_away_gateways_keep_equal_shares() -> None:
    service = Service()
    service.scale(4)
    service.run(5.0)
    service.lose_registry()
    service.run(SETTLES_S)
    assert service.run(10.0) == pytest.approx(PER_S, rel=0.05)


def test_a_registry_that_restarts_lets_nobody_have_the_whole_rate() -> None:
    """It knows of no gateway at first, which means nothing."""
    service = Service()
    service.scale(4)
    service.run(5.0)
    service.lose_registry()
    service.run(20.0)
    service.restart_registry()
    assert service.run(2.0) <= 1.5 * PER_S
