"""When Serve's controller counts as hung, and what is done then: on virtual time, with one that is
scripted."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from deployments.control.registry import controller_watch
from deployments.control.registry.controller_watch import (
    HANGS_S,
    MAX_PAUSE_S,
    PAUSE_S,
    SET_BACK_S,
    STARTS_S,
    ControllerWatch,
    ControllerWatchdog,
    ProbeResult,
)
from deployments.process import audit

ANSWERED, SILENT, AWAY = ProbeResult.ANSWERED, ProbeResult.SILENT, ProbeResult.AWAY


class Looks:
    """A watch that looks once a second, from 0 on."""

    def __init__(self) -> None:
        self.watch, self.now = ControllerWatch(), 0.0
        self.clock_is_ahead_s = 1e9

    def see(self, sight: ProbeResult, seconds: float = 1.0) -> bool:
        """Whether any look of so many seconds ends it; it is ended then."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            if self.watch.look(sight, self.now, self.now + self.clock_is_ahead_s):
                self.watch.ended(self.now)
                return True
        return False


@pytest.fixture
def looks() -> Looks:
    looks = Looks()
    looks.see(ANSWERED)
    return looks


def test_one_that_says_nothing_is_ended_after_its_limit_and_not_before(looks: Looks) -> None:
    assert not looks.see(SILENT, HANGS_S - 1)
    assert looks.see(SILENT)


def test_an_answer_begins_anew(looks: Looks) -> None:
    for _ in range(5):
        assert not looks.see(SILENT, HANGS_S - 1)
        assert not looks.see(ANSWERED)


def test_one_that_took_long_to_answer_lately_is_given_longer(looks: Looks) -> None:
    looks.see(SILENT, 8)
    looks.see(ANSWERED)
    assert not looks.see(SILENT, 3 * 8 - 1)
    assert looks.see(SILENT)


def test_how_long_it_took_is_forgotten_in_time(looks: Looks) -> None:
    looks.see(SILENT, HANGS_S - 1)
    looks.see(ANSWERED, 1000)
    assert not looks.see(SILENT, HANGS_S)
    assert looks.see(SILENT)


def test_however_long_it_took_it_is_given_no_longer_than_one_that_starts(looks: Looks) -> None:
    for busy_s in (HANGS_S - 1, 3 * (HANGS_S - 1) - 1):
        assert not looks.see(SILENT, busy_s)
        looks.see(ANSWERED)
    assert not looks.see(SILENT, STARTS_S - 1)
    assert looks.see(SILENT)


def test_one_that_starts_has_its_time_which_begins_once_it_runs() -> None:
    looks = Looks()
    assert not looks.see(AWAY, 500)
    assert not looks.see(SILENT, STARTS_S - 1)
    assert looks.see(SILENT)


def test_one_that_ray_starts_anew_is_not_hung(looks: Looks) -> None:
    assert not looks.see(SILENT, HANGS_S - 1)
    assert not looks.see(AWAY, 30)
    assert not looks.see(SILENT, STARTS_S - 1)
    assert not looks.see(ANSWERED)
    assert not looks.see(SILENT, HANGS_S - 1)


def test_what_ending_does_not_mend_is_ended_ever_more_seldom(looks: Looks) -> None:
    ends: list[float] = []
    while len(ends) < 8:
        if looks.see(SILENT):
            ends.append(looks.now)
    gaps = [b - a for a, b in pairwise(ends)]
    assert gaps == [STARTS_S, 60, 120, 240, 480, MAX_PAUSE_S, MAX_PAUSE_S]


def test_one_that_answered_for_long_enough_is_ended_as_soon_as_the_first_time(
    looks: Looks,
) -> None:
    for _ in range(3):
        while not looks.see(SILENT):
            pass
    looks.see(ANSWERED, 3 * MAX_PAUSE_S)
    assert looks.see(SILENT, HANGS_S)
    looks.see(ANSWERED)
    assert not looks.see(SILENT, PAUSE_S - 2)
    assert looks.see(SILENT, 2)


def test_one_that_answers_for_a_moment_between_two_hangs_has_its_pause_all_the_same(
    looks: Looks,
) -> None:
    assert looks.see(SILENT, HANGS_S)
    looks.see(ANSWERED)
    assert not looks.see(SILENT, PAUSE_S - 2)
    assert looks.see(SILENT, 2)


def test_in_a_long_pause_one_that_has_answered_gets_as_long_as_one_that_starts(
    looks: Looks,
) -> None:
    for _ in range(4):
        looks.see(ANSWERED)
        while not looks.see(SILENT):
            pass
    assert not looks.see(AWAY, 10)  # its pause: 240 s
    looks.see(ANSWERED)
    assert not looks.see(SILENT, STARTS_S - 1)
    looks.see(ANSWERED)
    assert not looks.see(SILENT, STARTS_S - 1)
    assert looks.see(SILENT)
    assert not looks.see(SILENT, 8 * PAUSE_S)  # and none that never answered


def test_seconds_in_which_nobody_looked_say_nothing(looks: Looks) -> None:
    """Whoever looks was stopped, or got no processor."""
    looks.see(SILENT)
    for _ in range(10):
        looks.now += 60.0
        assert not looks.see(SILENT)
    assert looks.watch.silent_s == 1.0


def test_one_whose_clock_was_set_back_is_ended_once(looks: Looks) -> None:
    looks.clock_is_ahead_s -= 3600.0
    assert looks.see(ANSWERED)
    assert not looks.see(ANSWERED, 10 * PAUSE_S)


def test_a_clock_that_is_set_forward_or_back_a_little_or_to_and_fro_ends_nobody(
    looks: Looks,
) -> None:
    for step_s in (3600.0, 1.0 - SET_BACK_S, SET_BACK_S, 1.0 - SET_BACK_S):
        looks.clock_is_ahead_s += step_s
        assert not looks.see(ANSWERED, 5)
    looks.clock_is_ahead_s -= 1.0
    assert looks.see(ANSWERED)


def test_one_that_began_after_the_clock_was_set_back_is_left_alone(looks: Looks) -> None:
    looks.clock_is_ahead_s -= 3600.0
    looks.see(AWAY)
    assert not looks.see(ANSWERED, 60)


def test_clocks_that_are_set_back_again_and_again_end_it_as_seldom_as_hangs(looks: Looks) -> None:
    ends = 0
    for _ in range(int(3 * PAUSE_S) - 1):
        looks.clock_is_ahead_s -= 60.0
        ends += looks.see(ANSWERED)
    assert ends == 2


# ---- the keeper


class Scripted:
    """Answers, hangs, or refuses; one that is ended answers again."""

    def __init__(self) -> None:
        self.does, self.alive = "answers", True
        self.ends, self.fails_to_end = 0, 0
        self.unanswered: list[asyncio.Future[int]] = []

    def ask(self) -> asyncio.Future[int]:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.does == "answers":
            answer.set_result(4711)
        elif self.does == "refuses":
            answer.set_exception(RuntimeError("the worker already exited"))
        else:
            self.unanswered.append(answer)
        return answer

    def answers(self) -> None:
        """From now on, and what it was asked before."""
        self.does = "answers"
        for each in self.unanswered:
            each.set_result(4711)
        self.unanswered.clear()

    def runs(self) -> bool:
        return self.alive

    def end(self) -> None:
        if self.fails_to_end:
            self.fails_to_end -= 1
            raise OSError("no control store")
        self.ends += 1
        self.answers()


class Kept:
    """Looked at once a second."""

    def __init__(self) -> None:
        self.controller, self.there = Scripted(), True
        self.told = 0
        self.keeper = ControllerWatchdog(self.on_report, self.find)
        self.now, self.finds = 0.0, 0
        self.clock_is_ahead_s = 1e9

    def on_report(self) -> None:
        """Of an end."""
        self.told += 1

    def find(self) -> Scripted:
        self.finds += 1
        if not self.there:
            raise ValueError("no such actor")
        return self.controller

    async def looks(self, times: float = 1) -> None:
        for _ in range(int(times)):
            self.now += 1.0
            await self.keeper.look(lambda: self.now, lambda: self.now + self.clock_is_ahead_s)


@pytest.fixture
async def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kept:
    monkeypatch.setattr(controller_watch, "LOOKS_S", 0.0)
    monkeypatch.setenv(audit.AUDIT_FILE, str(tmp_path / "audit"))
    made = Kept()
    await made.looks(2)
    return made


def audited(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "audit").read_text().splitlines()]


@pytest.mark.parametrize("how", ["hangs", "refuses"])
async def test_one_that_hangs_or_refuses_all_calls_is_ended_once_and_that_is_written_down(
    kept: Kept, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.controller.does = how
    await kept.looks(HANGS_S - 1)
    assert kept.controller.ends == 0
    await kept.looks()
    assert kept.controller.ends == 1
    await kept.looks(5 * HANGS_S)
    assert (kept.controller.ends, kept.told) == (1, 1)
    (line,) = audited(tmp_path)
    assert line["actor"] == "the registry"
    assert (line["verb"], line["object"]) == ("end", "Serve's controller")
    assert (line["source"], line["detail"]) == ("process 4711", "it has not answered for 15 s")
    assert "process 4711, is ended: it has not answered for 15 s" in caplog.text


async def test_one_whose_clock_was_set_back_is_ended_for_that(kept: Kept, tmp_path: Path) -> None:
    kept.clock_is_ahead_s -= 3600.0
    await kept.looks(60)
    assert kept.controller.ends == 1
    (line,) = audited(tmp_path)
    assert "set back by 3600 s" in line["detail"]


async def test_an_operator_is_told_of_one_that_says_nothing_while_it_does(kept: Kept) -> None:
    kept.controller.does = "hangs"
    await kept.looks(4)
    assert kept.keeper.problem() is None
    await kept.looks()
    assert str(kept.keeper.problem()).startswith("Serve's controller has not answered for 5 s: ")
    kept.controller.answers()
    await kept.looks()
    assert kept.keeper.problem() is None


async def test_an_answer_that_takes_many_looks_is_one(kept: Kept) -> None:
    for _ in range(3):
        kept.controller.does = "hangs"
        await kept.looks(HANGS_S - 1)
        assert len(kept.controller.unanswered) == 1
        kept.controller.answers()
        await kept.looks()
    assert (kept.keeper.watch.silent_s, kept.controller.ends) == (0.0, 0)


async def test_one_that_is_away_or_starting_is_left_alone(kept: Kept) -> None:
    kept.controller.alive, kept.controller.does, kept.there = False, "refuses", False
    finds = kept.finds
    await kept.looks(5 * HANGS_S)
    assert kept.finds > finds
    kept.there, kept.controller.does = True, "hangs"
    await kept.looks(5 * HANGS_S)
    kept.controller.alive = True
    kept.controller.answers()
    await kept.looks()
    assert kept.controller.ends == 0


async def test_what_cannot_be_ended_is_tried_again(kept: Kept) -> None:
    kept.controller.fails_to_end = 2
    kept.controller.does = "hangs"
    await kept.looks(HANGS_S - 1)
    for _ in range(2):
        with pytest.raises(OSError, match="no control store"):
            await kept.looks()
    assert kept.told == 0
    await kept.looks()
    assert (kept.controller.ends, kept.told) == (1, 1)


async def test_it_is_looked_at_for_ever_whatever_goes_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_watch, "LOOKS_S", 0.0)
    found = asyncio.Event()

    def find() -> Scripted:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("the control store does not answer")
        loop.call_soon_threadsafe(found.set)
        return Scripted()

    tries: list[int] = []
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(ControllerWatchdog(lambda: None, find).run())
    async with asyncio.timeout(5.0):
        await found.wait()
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
