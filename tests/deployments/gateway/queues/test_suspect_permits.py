"""Who holds the one permit of suspected prompts, and how long others wait for it."""

from __future__ import annotations

import asyncio

from deployments.gateway.queues.suspect_permits import Permit, SuspectPermits


async def waiting(permits: SuspectPermits, *tenants: str) -> list[asyncio.Task[Permit]]:
    tasks = [asyncio.create_task(permits.acquire(tenant, 60.0)) for tenant in tenants]
    await turns()
    return tasks


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def is_free(permits: SuspectPermits) -> bool:
    """Whether the permit is given at once."""
    (next_one,) = await waiting(permits, "another")
    next_one.cancel()
    return next_one.done() and not next_one.cancelled()


async def test_the_first_goes_at_once_and_the_others_in_their_order() -> None:
    permits = SuspectPermits()
    first = await permits.acquire("one", 60.0)
    second, third = await waiting(permits, "one", "one")
    first.release()
    permit = await second
    assert not third.done()
    permit.release()
    (await third).release()
    assert await is_free(permits)


async def test_tenants_that_wait_have_it_in_turn() -> None:
    permits = SuspectPermits()
    holder = await permits.acquire("one", 60.0)
    tasks = await waiting(permits, "one", "one", "two", "one", "two", "three")
    order, left = [], set(tasks)
    while left:
        holder.release()
        (given,), left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        holder = given.result()
        order.append(holder.tenant)
    assert order == ["one", "two", "three", "one", "two", "one"]


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
    late.release()
    (third,) = await waiting(permits, "one")
    assert not third.done()
    first.release()
    await third


async def test_who_leaves_is_passed_over() -> None:
    permits = SuspectPermits()
    first = await permits.acquire("one", 60.0)
    second, third = await waiting(permits, "one", "one")
    second.cancel()
    first.release()
    (await third).release()
    assert await is_free(permits)


async def test_who_leaves_just_when_the_permit_comes_passes_it_on() -> None:
    permits = SuspectPermits()
    first = await permits.acquire("one", 60.0)
    second, third = await waiting(permits, "one", "one")
    first.release()
    second.cancel()
    (await third).release()
    assert await is_free(permits)
