"""What a pool replica does while those that it listens to come, go and change their minds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engines import until

from deployments.contract.registry import MEMBERS, PoolMember
from deployments.contract.scaling.messages import POOL_ORDER, PoolModel, PoolOrder, PoolReport
from deployments.replica.pool import pool_replica
from deployments.replica.pool.pool_replica import OrderFollower, PoolAnnouncer

A, B = PoolModel("a", "k", {}), PoolModel("b", "k", {})


class Told:
    """`Residents` that only remember."""

    def __init__(self) -> None:
        self.held: list[tuple[PoolModel, ...]] = []
        self.members: tuple[PoolMember, ...] = ()

    def report(self) -> PoolReport:
        return PoolReport("p")

    def hold(self, models: tuple[PoolModel, ...]) -> None:
        self.held.append(models)


class Actor:
    """Answers as the test says, one call after another. `asked`: with which revisions."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.asked: list[Any] = []
        self.pool = self.hold = SimpleNamespace(remote=self._remote)

    async def _remote(self, *arguments: Any) -> Any:
        self.asked.append(arguments)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer if answer is None else POOL_ORDER.encode(answer)


Running = Callable[[Awaitable[None]], None]


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(pool_replica, "REPORT_S", 0.01)
    tasks: list[Any] = []
    yield lambda work: tasks.append(asyncio.ensure_future(work))
    for task in tasks:
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_an_order_is_taken_once_and_again_when_it_changes(running: Running) -> None:
    told, actor = Told(), Actor()
    running(OrderFollower(told, lambda: actor).follow())  # type: ignore[arg-type]
    for order in (PoolOrder(1, (A,)), PoolOrder(1, (A,)), PoolOrder(2, (A, B)), PoolOrder(3)):
        actor.answers.put_nowait(order)
    await until(lambda: len(actor.asked) == 5)
    assert told.held == [(A,), (A, B), ()]
    assert [revision for _, revision, _ in actor.asked] == [0, 1, 1, 2, 3]


async def test_an_autoscaler_that_has_decided_nothing_yet_changes_nothing(
    running: Running,
) -> None:
    told, actor = Told(), Actor()
    running(OrderFollower(told, lambda: actor).follow())  # type: ignore[arg-type]
    for order in (PoolOrder(5, (A,)), PoolOrder(0), PoolOrder(0), PoolOrder(9, (B,))):
        actor.answers.put_nowait(order)
    await until(lambda: len(actor.asked) == 5)
    assert told.held == [(A,), (B,)]
    assert [revision for _, revision, _ in actor.asked] == [0, 5, 0, 0, 9]


async def test_what_is_held_stays_while_the_autoscaler_is_away(running: Running) -> None:
    told, actor, there = Told(), Actor(), True

    def autoscaler() -> Actor:
        if not there:
            raise ValueError("no such actor")
        return actor

    running(OrderFollower(told, autoscaler).follow())  # type: ignore[arg-type]
    actor.answers.put_nowait(PoolOrder(1, (A,)))
    await until(lambda: told.held == [(A,)])
    there = False
    actor.answers.put_nowait(RuntimeError("it died"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert told.held == [(A,)]
    there = True
    actor.answers.put_nowait(PoolOrder(7, (B,)))
    await until(lambda: told.held == [(A,), (B,)])


async def test_the_registry_hears_a_change_at_once_and_again_after_it_was_away(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_replica, "LEASE_S", 0.1)
    told, actor = Told(), Actor()
    announcements = PoolAnnouncer("p", told, actor)  # type: ignore[arg-type]
    running(announcements.keep())
    actor.answers.put_nowait(None)
    await until(lambda: actor.asked == [("p", MEMBERS.encode(()))])
    told.members = (PoolMember("a", "p.0", "p", "d", "1", "h:1", 2, 0.02),)
    announcements.changed.set()
    actor.answers.put_nowait(RuntimeError("it restarts"))
    await until(lambda: len(actor.asked) >= 3)
    assert actor.asked[1:3] == [("p", MEMBERS.encode(told.members))] * 2
