"""Who holds the one permit of suspected prompts, and how long others wait for it."""

from __future__ import annotations

import asyncio

from fake_engines import until

from deployments.gateway.queues.suspect_permits import Permit, SuspectPermits


async def waiting(permits: SuspectPermits, count: int) -> list[asyncio.Task[Permit]]:
    tasks = [asyncio.create_task(permits.acquire(60.0)) for _ in range(count)]
    await until(lambda: len(permits._waiting) == count)
    return tasks


async def test_the_first_goes_at_once_and_the_others_in_their_order() -> None:
    permits = SuspectPermits()
    first = await permits.acquire(60.0)
    second, third = await waiting(permits, 2)
    first.release()
    permit = await second
    assert not third.done()
    permit.release()
    (await third).release()
    assert permits._holder is None


async def test_a_permit_that_is_released_twice_releases_nobody_elses() -> None:
    permits = SuspectPermits()
    first = await permits.acquire(60.0)
    second, third = await waiting(permits, 2)
    first.release()
    first.release()
    await second
    assert not third.done()
    third.cancel()


async def test_who_has_waited_long_enough_goes_beside_the_one_before() -> None:
    permits = SuspectPermits()
    first = await permits.acquire(60.0)
    late = await permits.acquire(0.0)
    assert permits._holder is first
    late.release()
    assert permits._holder is first


async def test_who_leaves_is_passed_over() -> None:
    permits = SuspectPermits()
    first = await permits.acquire(60.0)
    second, third = await waiting(permits, 2)
    second.cancel()
    await until(second.done)
    first.release()
    (await third).release()
    assert not permits._waiting


async def test_who_leaves_just_when_the_permit_comes_passes_it_on() -> None:
    permits = SuspectPermits()
    first = await permits.acquire(60.0)
    second, third = await waiting(permits, 2)
    first.release()
    second.cancel()
    (await third).release()
    assert permits._holder is None
