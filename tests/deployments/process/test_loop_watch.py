"""A loop that does not turn is found, and a process that got no processor is not taken for one."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from deployments.process import loop_watch
from deployments.process.loop_watch import HUNG_EXIT_CODE, Heartbeat, LoopWatch
from deployments.process.process_watchdog import ProcessWatchdog


def test_a_loop_that_stands_still_while_it_is_looked_at_is_counted() -> None:
    heartbeat = Heartbeat(0.5)
    assert [heartbeat.look(7, at) for at in (0.0, 0.5, 1.0, 1.5)] == [0.0, 0.5, 1.0, 1.5]


def test_a_loop_that_turns_now_and_then_does_not_hang() -> None:
    heartbeat = Heartbeat(0.5)
    for turns, at in ((1, 0.0), (1, 0.5), (2, 1.0)):
        heartbeat.look(turns, at)
    assert heartbeat.look(2, 1.5) == 0.5


def test_time_in_which_nobody_looked_says_nothing_of_the_loop() -> None:
    heartbeat = Heartbeat(0.5)
    heartbeat.look(1, 0.0)
    assert heartbeat.look(1, 60.0) == 0.0  # stopped, or starved
    assert heartbeat.look(1, 60.5) == 0.5


async def test_the_watch_tells_once_that_the_loop_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "_EVERY_S", 0.005)
    told, hung = [], threading.Event()

    def on_hang() -> None:
        told.append(True)
        hung.set()

    watch = LoopWatch(0.03, on_hang)
    assert hung.wait(5.0)  # which holds the loop
    watch.close()
    assert told == [True]


async def test_heartbeats_say_that_a_stall_is_expected_while_it_is() -> None:
    said: list[bool] = []

    class Listener(ProcessWatchdog):
        def __init__(self) -> None:
            """Nobody is started."""

        def beat(self, *, stalled: bool = False) -> None:
            said.append(stalled)

        def close(self) -> None:
            pass

    watch = LoopWatch(watchdog=Listener())
    with watch.may_stall(), watch.may_stall():
        assert said == [True, True]
    assert said[-1] is False
    watch.close()


def test_the_process_ends_and_says_what_it_was_doing() -> None:
    code = """
import asyncio
from deployments.process import loop_watch
loop_watch._EVERY_S, loop_watch.LIMIT_S = 0.01, 0.05

def stuck():
    while True:
        pass

async def main():
    loop_watch.LoopWatch(0.05)
    await asyncio.sleep(0.02)
    stuck()

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == HUNG_EXIT_CODE
    assert "in stuck" in ended.stderr
