"""A gateway beside a registry that hangs: who may come in is heard of by another way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fake_engines import until

from deployments.contract.registry import GatewaySnapshot
from deployments.gateway import application
from deployments.gateway.application import Gateway
from deployments.gateway.tenancy.rates import Rates


class Hanging:
    """The registry's handle: takes every question and answers none."""

    def __init__(self) -> None:
        self.push = self
        self.asked = 0

    async def remote(self, *_: Any) -> Any:
        self.asked += 1
        await asyncio.Event().wait()


class Tenants:
    """Whose store may fail."""

    frozen = True
    origin, digest = "the published tenants", "1a"

    def __init__(self) -> None:
        self.looks = 0
        self.fault: Exception | None = None

    def refresh(self) -> bool:
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        return False


class Models:
    draining = False

    def __init__(self) -> None:
        self.frozen = False

    def freeze(self, frozen: bool) -> None:
        self.frozen = frozen


class Telemetry:
    def snapshot(self) -> GatewaySnapshot:
        return GatewaySnapshot()


class NoRollouts:
    def report(self) -> list[Any]:
        return []


class NoCrashes:
    def report(self) -> dict[str, Any]:
        return {}

    async def news(self, within_s: float) -> None: ...


class App:
    rates = Rates(1)
    rollouts = NoRollouts()


class Standing(Gateway):
    """Whose end nobody waits for."""

    def __del__(self) -> None: ...  # type: ignore[override]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in (
        ("_TENANTS_S", 0.0),
        ("_REFRESH_S", 0.0),
        ("_PUSH_ANSWER_S", 0.001),
        ("_PUSHES_APART_S", 0.0),
    ):
        monkeypatch.setattr(application, name, value)
    made: Any = Standing.__new__(Standing)
    made._tenants, made._models, made._registry = Tenants(), Models(), Hanging()
    made._telemetry, made._app, made._uid = Telemetry(), App(), "g"
    made._crashes = NoCrashes()
    return made


async def meanwhile(loop: Any, condition: Callable[[], bool]) -> None:
    task = asyncio.create_task(loop)
    try:
        await until(condition)
        assert not task.done()
    finally:
        task.cancel()


async def test_tenants_are_looked_at_whatever_the_registry_does(gateway: Any) -> None:
    await meanwhile(gateway._follow_tenants(), lambda: gateway._tenants.looks >= 3)
    assert gateway._models.frozen
    assert gateway._registry.asked == 0


async def test_tenants_are_looked_at_again_after_a_fault(gateway: Any) -> None:
    gateway._tenants.fault = ConnectionError("gone")
    await meanwhile(gateway._follow_tenants(), lambda: gateway._tenants.looks >= 3)


async def test_the_registry_is_told_again_where_it_does_not_answer(gateway: Any) -> None:
    await meanwhile(gateway._tell_registry(), lambda: gateway._registry.asked >= 3)
