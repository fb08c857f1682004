"""Kills a process that stands still: it got SIGSTOP, or a call holds the interpreter's lock.

A small process of its own watches it, like Erlang's `heart`. The watched process sends a heartbeat
twice a second. After `LIMIT_S` without one it gets SIGKILL, and whoever started it starts another.
A second of silence counts only if
- the watchdog was on time: otherwise the machine was suspended, the container frozen, or no process
  got a processor;
- every thread that wanted a processor got at least half of one: otherwise the machine is busy;
- the last heartbeat did not say `stalled`: a library may hold the lock while it loads a model.
`loop_watch` finds an event loop that hangs while the process does not. Linux only. The watchdog
runs this very file with only the standard library until it writes its log line, and takes 7 MiB.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

EVERY_S = 0.5
LIMIT_S = 4.0
_ON_TIME = 2.0  # a look is on time if it comes within so many intervals
_STOPPED, _RUNNABLE = "T", "R"  # states in proc(5)
_NOWHERE = -1  # no open file has that number
_BEAT, _STALLED = b".", b"-"
_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")  # seconds of a clock tick


# ---- what the watchdog decides ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of the watched process."""

    state: str  # as in proc(5)
    cpu_s: float  # that it has used so far


@dataclass(slots=True)
class SilenceTimer:
    """For how long a process has been silent although it could have sent a heartbeat."""

    every_s: float  # between two looks
    seconds: float = 0.0  # of silence that count
    _looked_at: float | None = None
    _threads: dict[int, Thread] = field(default_factory=dict)  # at the last look

    def beat(self, now: float) -> None:
        """A heartbeat has come."""
        self.seconds, self._looked_at, self._threads = 0.0, now, {}

    def missed(self, threads: dict[int, Thread], now: float) -> float:
        """No heartbeat has come since the last look. Returns the seconds of silence that count.
        `threads`: by thread id."""
        before, self._looked_at = self._looked_at, now
        gap_s = 0.0 if before is None else now - before
        if gap_s <= _ON_TIME * self.every_s and not self._starved(threads, gap_s):
            self.seconds += gap_s
        self._threads = threads
        return self.seconds

    def _starved(self, threads: dict[int, Thread], gap_s: float) -> bool:
        """Whether some thread wanted a processor and got less than half of one. A thread that is
        seen for the first time counts as having used nothing."""
        return any(
            each.state == _RUNNABLE
            and each.cpu_s - self._threads.get(number, each).cpu_s < gap_s / 2
            for number, each in threads.items()
        )


# ---- in the watched process ---------------------------------------------------------------------


class ProcessWatchdog:
    """Starts a watchdog of this process. `beat` never blocks."""

    def __init__(self, limit_s: float = LIMIT_S, every_s: float = EVERY_S) -> None:
        arguments = (os.getpid(), limit_s, every_s)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._beats = self._process.stdin.fileno()
        os.set_blocking(self._beats, False)

    def beat(self, *, stalled: bool = False) -> None:
        """Send a heartbeat. `stalled`: the next one may be late, and until it comes silence does
        not count. If the watchdog is gone, nothing happens: other checks still watch this
        process."""
        with suppress(OSError):
            os.write(self._beats, _STALLED if stalled else _BEAT)

    def close(self) -> None:
        """The process ends in order: end the watchdog."""
        assert self._process.stdin is not None
        self._beats = _NOWHERE
        self._process.stdin.close()
        self._process.wait()


def process_watchdog() -> ProcessWatchdog | None:
    """A watchdog of this process; None on systems without proc(5)."""
    return ProcessWatchdog() if sys.platform == "linux" else None


# ---- the watchdog's process ---------------------------------------------------------------------


def _watch(pid: int, limit_s: float, every_s: float) -> None:
    silence, beats = SilenceTimer(every_s), sys.stdin.fileno()
    silence.beat(time.monotonic())
    said = _BEAT
    while True:
        time.sleep(every_s)
        if select.select([beats], [], [], 0)[0]:
            said = os.read(beats, 4096)
            if not said:
                return  # the watched process has ended
            silence.beat(time.monotonic())
        elif said.endswith(_STALLED):
            silence.beat(time.monotonic())
        elif silence.missed(dict(_threads(pid)), time.monotonic()) >= limit_s:
            if os.getppid() == pid:
                _end(pid, silence.seconds)
            return


def _threads(pid: int) -> Iterator[tuple[int, Thread]]:
    """The process's threads by id; those that end meanwhile are left out."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{number}/stat", encoding="utf-8") as f:
                # State is the third field, utime and stime the fourteenth and fifteenth.
                words = f.read().rpartition(")")[2].split()
                yield int(number), Thread(words[0], (int(words[11]) + int(words[12])) * _TICKS_S)


def _end(pid: int, silent_s: float) -> None:
    stopped = all(each.state == _STOPPED for _, each in _threads(pid))
    why = "it is stopped" if stopped else "a call keeps the interpreter's lock"
    try:  # before the kill: when the process is gone, its node may end this one too
        _log_error(f"process {pid} has stood still for {silent_s:.1f} s and is ended: {why}")
    finally:
        os.kill(pid, signal.SIGKILL)


def _log_error(words: str) -> None:
    """Write an error to where the ended process's own log lines went."""
    import site
    from pathlib import Path

    site.main()
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from deployments.process import logs

    logs.configure_from_environment()
    logging.getLogger("headrace.process").error(words)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
