"""When the autoscaler counts as hung, and what is done then."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from deployments.control.scaling import watch
from deployments.control.scaling.watch import STARTS_S, Watch


def test_one_late_answer_is_no_hang_and_two_are():
    seen = Watch(0.0)
    seen.heard(1.0)
    assert not seen.silent(4.0)
    seen.heard(5.0)
    assert not seen.silent(8.0)
    assert seen.silent(11.0)


def test_one_that_starts_has_its_time():
    seen = Watch(0.0)
    assert not any(seen.silent(now) for now in (3.0, 6.0, STARTS_S - 1))
    assert seen.silent(STARTS_S + 1)


def test_one_that_was_ended_has_its_time_again():
    seen = Watch(0.0)
    seen.heard(1.0)
    seen.silent(4.0)
    assert seen.silent(7.0)
    assert not seen.silent(10.0)
    assert not seen.silent(13.0)


def test_one_that_died_and_starts_anew_is_not_hung():
    seen = Watch(0.0)
    seen.heard(1.0)
    seen.away(2.0)
    assert not any(seen.silent(now) for now in (5.0, 8.0, 11.0))
    assert seen.silent(2.0 + STARTS_S)


def test_being_away_for_long_does_not_give_ever_more_time():
    seen = Watch(0.0)
    seen.heard(1.0)
    for now in range(2, int(STARTS_S)):
        seen.away(float(now))
    assert seen.silent(3.0 + STARTS_S)


class Ping:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def remote(self) -> asyncio.Future[None]:
        return self._actor.answer()


class Actor:
    """Answers while it lives; hangs when told to; one that was ended lives again."""

    def __init__(self) -> None:
        self.hangs = False
        self.asked = asyncio.Event()
        self.ping = Ping(self)

    def answer(self) -> asyncio.Future[None]:
        self.asked.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.hangs:
            future.set_result(None)
        return future

    async def until_asked(self, times: int) -> None:
        for _ in range(times):
            self.asked.clear()
            await self.asked.wait()


async def test_one_that_hangs_is_ended_and_started_anew(monkeypatch: pytest.MonkeyPatch):
    import ray

    actor, ended, over = Actor(), [], asyncio.Event()

    def kill(which: Actor, *, no_restart: bool) -> None:
        ended.append((which, no_restart))
        actor.hangs = False
        over.set()

    monkeypatch.setattr(ray, "kill", kill)
    monkeypatch.setattr(watch, "ASKS_S", 0.001)
    monkeypatch.setattr(watch, "ANSWER_S", 0.001)
    task = asyncio.create_task(watch.keep_alive(lambda: actor))
    await actor.until_asked(3)
    assert ended == []
    actor.hangs = True
    await over.wait()
    await actor.until_asked(3)
    assert ended == [(actor, False)]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_one_that_somebody_else_ended_amid_a_question_is_not_ended_in_its_next_life(
    monkeypatch: pytest.MonkeyPatch,
):
    """Ray has not yet said that the process which two questions went to is gone."""
    import ray

    actor, ended = Actor(), []
    monkeypatch.setattr(ray, "kill", lambda *_, **__: ended.append(1))
    monkeypatch.setattr(watch, "ANSWER_S", 0.001)
    seen, now = Watch(0.0), iter(range(1, 100))
    assert await watch._answers(actor, seen, lambda: float(next(now)))
    actor.hangs = True
    assert await watch._answers(actor, seen, lambda: float(next(now)))
    actor.asked.clear()
    second = asyncio.create_task(watch._answers(actor, seen, lambda: float(next(now))))
    await actor.asked.wait()
    actor.hangs = False  # another process by now
    assert await second
    assert (ended, seen.answered, seen.missed) == ([], True, 0)


async def test_it_goes_on_where_the_actor_cannot_be_made_or_ended(monkeypatch: pytest.MonkeyPatch):
    import ray

    actor, tries, ends = Actor(), [], []

    def make() -> Actor:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("the control store does not answer")
        return actor

    def kill(which: Actor, *, no_restart: bool) -> None:
        ends.append(1)
        if len(ends) == 1:
            raise ValueError("no such actor")
        actor.hangs = False

    monkeypatch.setattr(ray, "kill", kill)
    monkeypatch.setattr(watch, "ASKS_S", 0.001)
    monkeypatch.setattr(watch, "ANSWER_S", 0.001)
    monkeypatch.setattr(watch, "STARTS_S", 0.01)
    task = asyncio.create_task(watch.keep_alive(make))
    async with asyncio.timeout(5.0):
        await actor.until_asked(3)
        actor.hangs = True
        while len(ends) < 2:
            await actor.until_asked(1)
        await actor.until_asked(2)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
