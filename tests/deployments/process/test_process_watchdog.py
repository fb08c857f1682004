"""A process that stands still is ended from outside, and one that got no processor is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.process import process_watchdog
from deployments.process.process_watchdog import SilenceTimer, Thread

EVERY_S = 0.5


@pytest.fixture
def silence() -> SilenceTimer:
    made = SilenceTimer(EVERY_S)
    made.beat(0.0)
    return made


def threads(*each: tuple[str, float]) -> dict[int, Thread]:
    return {number: Thread(state, cpu_s) for number, (state, cpu_s) in enumerate(each)}


WAITS = threads(("S", 1.0), ("S", 2.0))


def test_silence_of_one_whose_threads_all_wait_is_counted(silence: SilenceTimer) -> None:
    assert [silence.missed(WAITS, at) for at in (0.5, 1.0, 1.5)] == [0.5, 1.0, 1.5]


def test_a_heartbeat_begins_anew(silence: SilenceTimer) -> None:
    silence.missed(WAITS, 0.5)
    silence.beat(1.0)
    assert silence.missed(WAITS, 1.5) == 0.5


def test_one_that_was_stopped_is_counted_however_much_it_wanted(silence: SilenceTimer) -> None:
    stopped = threads(("T", 1.0), ("T", 2.0))
    assert [silence.missed(stopped, at) for at in (0.5, 1.0)] == [0.5, 1.0]


def test_time_in_which_nobody_looked_says_nothing(silence: SilenceTimer) -> None:
    silence.missed(WAITS, 0.5)
    assert silence.missed(WAITS, 60.0) == 0.5
    assert silence.missed(WAITS, 60.5) == 1.0
    assert silence.missed(WAITS, 61.5) == 2.0  # on time to the last: twice the interval
    assert silence.missed(WAITS, 62.51) == 2.0


def test_one_that_wants_a_processor_and_gets_little_of_it_is_slow_and_does_not_hang(
    silence: SilenceTimer,
) -> None:
    for look in range(1, 20):
        starved = threads(("S", 1.0), ("R", 0.2 * look))
        assert silence.missed(starved, 0.5 * look) == 0.0


def test_one_that_keeps_the_lock_and_its_processor_is_counted_from_the_second_look_on(
    silence: SilenceTimer,
) -> None:
    busy = [silence.missed(threads(("R", 0.3 * look)), 0.5 * look) for look in range(1, 4)]
    assert busy == [0.0, 0.5, 1.0]


STANDS = """
import ctypes, os, signal, sys, time
sys.path.insert(0, {root!r})
from deployments.process.process_watchdog import ProcessWatchdog

watchdog = ProcessWatchdog({limit_s}, 0.02)
watchdog.beat()
{then}
"""
THEN = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "a call keeps the interpreter's lock": "ctypes.PyDLL(None).sleep(60)",
}


def run(then: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    root = str(Path(process_watchdog.__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", STANDS.format(root=root, then=then, limit_s=limit_s)],
        capture_output=True, text=True, timeout=60, check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_LOG")},
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="there is no proc(5)")
@pytest.mark.parametrize("why", THEN)
def test_a_process_that_stands_still_is_killed_and_the_reason_is_told(why: str) -> None:
    ended = run(THEN[why], 0.05)
    assert ended.returncode == -signal.SIGKILL
    assert f"is ended: {'it is ' * (why == 'stopped')}{why}" in ended.stderr
    assert '"logger":"headrace.process"' in ended.stderr


EXPECTED = """
watchdog.beat(stalled=True)
ctypes.PyDLL(None).usleep(400_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no proc(5)")
def test_a_stall_that_was_announced_is_not_counted_until_the_next_heartbeat() -> None:
    assert run(EXPECTED, 0.05).returncode == 0
    ended = run(f"{EXPECTED}watchdog.beat()\n{THEN['stopped']}", 0.05)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="there is no proc(5)")
@pytest.mark.parametrize("then", ["time.sleep(0.01)", "watchdog.close(); watchdog.beat()"])
def test_the_watchdog_ends_with_what_it_watches_and_says_nothing(then: str) -> None:
    """Its standard error, which this waits for, is closed."""
    ended = run(then, 30.0)
    assert (ended.returncode, ended.stderr) == (0, "")
