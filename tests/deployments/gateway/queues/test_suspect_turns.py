"""Whose turn a suspected prompt waits for, and how long."""

from __future__ import annotations

import asyncio

from fake_engines import until

from deployments.gateway.queues.suspect_turns import SuspectTurns, Turn


async def waiting(turns: SuspectTurns, count: int) -> list[asyncio.Task[Turn]]:
    tasks = [asyncio.create_task(turns.take(60.0)) for _ in range(count)]
    await until(lambda: len(turns._waiting) == count)
    return tasks


async def test_the_first_goes_at_once_and_the_others_in_their_order() -> None:
    turns = SuspectTurns()
    first = await turns.take(60.0)
    second, third = await waiting(turns, 2)
    first.over()
    turn = await second
    assert not third.done()
    turn.over()
    (await third).over()
    assert turns._holder is None


async def test_a_turn_that_is_over_twice_ends_nobody_elses() -> None:
    turns = SuspectTurns()
    first = await turns.take(60.0)
    second, third = await waiting(turns, 2)
    first.over()
    first.over()
    await second
    assert not third.done()
    third.cancel()


async def test_who_has_waited_long_enough_goes_beside_the_one_before() -> None:
    turns = SuspectTurns()
    first = await turns.take(60.0)
    late = await turns.take(0.0)
    assert turns._holder is first
    late.over()
    assert turns._holder is first


async def test_who_leaves_is_passed_over() -> None:
    turns = SuspectTurns()
    first = await turns.take(60.0)
    second, third = await waiting(turns, 2)
    second.cancel()
    await until(second.done)
    first.over()
    (await third).over()
    assert not turns._waiting


async def test_who_leaves_just_when_its_turn_comes_passes_it_on() -> None:
    turns = SuspectTurns()
    first = await turns.take(60.0)
    second, third = await waiting(turns, 2)
    first.over()
    second.cancel()
    (await third).over()
    assert turns._holder is None
