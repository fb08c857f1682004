"""Who holds the one permit of suspected prompts, and how long others wait for it."""

from __future__ import annotations

import asyncio

from fake_engines import until

from deployments.gateway.queues.suspect_permits import Permit, SuspectPermits


async def waiting(permits: SuspectPermits, *tenants: str) -> list[asyncio.Task[Permit]]:
    tasks = [asyncio.create_task(permits.acquire(tenant, 60.0)) for tenant in tenants]
    await until(lambda: sum(map(len, permits._waiting.values())) == len(tenants))
    return tasks


async def test_the_first_goes_at_once_and_the_others_in_their_order() -> None:
    permits = SuspectPermits()
    first = await permits.acquire("one", 60.0)
    second, third = await waiting(permits, "one", "one")
    first.release()
    permit = await second
    assert not third.done()
    permit.release()
    (await third).release()
    assert permits._holder is None


async def test_tenants_that_wait_have_it_in_turn() -> None:
    permits = SuspectPermits()
    holder = await permits.acquire("one", 60.0)
    tasks = await waiting(permits, "one", "one", "two", "one", "two", "three")
    order: list[str] = []
    while permits._waiting:
        holder.release()
        await until(lambda: permits._holder is not None and permits._holder.granted.is_set())
        assert permits._holder is not None
        holder = permits._holder
        order.append(holder.tenant)
    assert order == ["one", "two", "three", "one", "two", "one"]
    holder.release()
    assert {(await task).tenant for task in tasks} == {"one", "two", "three"}


async def test_a_permit_that_is_released_twice_releases_nobody_elses() -> None:
    permits = SuspectPermits()
    first = await permits.acquire("one", 60.0)
    second, third = await waiting(permits, "one", "one")
    first.release()
    first.release()
    await second
    assert not third.done()
    third.cancel()


async def test_who_has_waited_long_enough_goes_beside_the_one_before() -> None:
    permits = SuspectPermits()
    first = await permits.acquire("one", 60.0)
    late = await permits.acquire("one", 0.0)
    assert permits._holder is first
    late.release()
    assert permits._holder is first


async def test_who_leaves_is_passed_over() -> None:
    permits = SuspectPermits()
    first = await permits.acquire("one", 60.0)
    second, third = await waiting(permits, "one", "one")
    second.cancel()
    await until(second.done)
    first.release()
    (await third).release()
    assert not permits._waiting


async def test_who_leaves_just_when_the_permit_comes_passes_it_on() -> None:
    permits = SuspectPermits()
    first = await permits.acquire("one", 60.0)
    second, third = await waiting(permits, "one", "one")
    first.release()
    second.cancel()
    (await third).release()
    assert permits._holder is None
