"""Ends a process that stands still altogether: it was stopped (SIGSTOP), or a call keeps the
interpreter's lock.

Such a one cannot look after itself, so a small process of its own does, as Erlang's `heart`. The
watched one sends a heartbeat twice a second; where none has come for `LIMIT_S` it gets SIGKILL, and
whoever started it starts another. Seconds count only in which

- the watchdog was on time itself: else the machine was suspended, the container frozen, or nobody
  got a processor;
- no thread of the watched process wanted a processor and got less than half of one: else it is
  slow because the machine is busy;
- its last heartbeat did not say that it may be `stalled`: a backend's library may keep the
  interpreter's lock while it loads a model.

An event loop that hangs while its process does not is `loop_watch`'s, which says what it was doing.
Linux alone. The watchdog's process runs this very file, on nothing but the standard library until
it has to write its line: 7 MiB of its own.
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
_ON_TIME = 2.0  # of the interval, that a look may take
_STOPPED, _RUNNABLE = "T", "R"
_NOWHERE = -1  # no file has that number
_BEAT, _STALLED = b".", b"-"
_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")


# ---- what the watchdog decides ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Thread:
    """`state`: as in proc(5); `cpu_s`: that it has used so far."""

    state: str
    cpu_s: float


@dataclass(slots=True)
class Silence:
    """For how many `seconds` nothing has been heard of a process that could have spoken, looked at
    every `every_s`."""

    every_s: float
    seconds: float = 0.0
    _looked_at: float | None = None
    _threads: dict[int, Thread] = field(default_factory=dict)

    def heard(self, now: float) -> None:
        self.seconds, self._looked_at, self._threads = 0.0, now, {}

    def silent(self, threads: dict[int, Thread], now: float) -> float:
        """A look at which no heartbeat had come since the last one; `threads` by their number."""
        before, self._looked_at = self._looked_at, now
        gap_s = 0.0 if before is None else now - before
        if gap_s <= _ON_TIME * self.every_s and not self._starved(threads, gap_s):
            self.seconds += gap_s
        self._threads = threads
        return self.seconds

    def _starved(self, threads: dict[int, Thread], gap_s: float) -> bool:
        """One that is seen here for the first time has used nothing yet, for all that is known."""
        return any(
            each.state == _RUNNABLE
            and each.cpu_s - self._threads.get(number, each).cpu_s < gap_s / 2
            for number, each in threads.items()
        )


# ---- in the watched process ---------------------------------------------------------------------


class ProcessWatchdog:
    """Of this process, from now on. `beat` waits for nobody."""

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
        """Nobody may listen any more: then this process is watched by others alone. `stalled`: the
        next one may be late, and silence does not count until then."""
        with suppress(OSError):
            os.write(self._beats, _STALLED if stalled else _BEAT)

    def close(self) -> None:
        """What it watched ends in order."""
        assert self._process.stdin is not None
        self._beats = _NOWHERE
        self._process.stdin.close()
        self._process.wait()


def process_watchdog() -> ProcessWatchdog | None:
    """None where there is no proc(5)."""
    return ProcessWatchdog() if sys.platform == "linux" else None


# ---- the watchdog's process ---------------------------------------------------------------------


def _watch(pid: int, limit_s: float, every_s: float) -> None:
    silence, beats = Silence(every_s), sys.stdin.fileno()
    silence.heard(time.monotonic())
    said = _BEAT
    while True:
        time.sleep(every_s)
        if select.select([beats], [], [], 0)[0]:
            said = os.read(beats, 4096)
            if not said:
                return  # it has ended
            silence.heard(time.monotonic())
        elif said.endswith(_STALLED):
            silence.heard(time.monotonic())
        elif silence.silent(dict(_threads(pid)), time.monotonic()) >= limit_s:
            if os.getppid() == pid:
                _end(pid, silence.seconds)
            return


def _threads(pid: int) -> Iterator[tuple[int, Thread]]:
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{number}/stat", encoding="utf-8") as f:
                # state is the third field, utime and stime the fourteenth and fifteenth
                words = f.read().rpartition(")")[2].split()
                yield int(number), Thread(words[0], (int(words[11]) + int(words[12])) * _TICKS_S)


def _end(pid: int, silent_s: float) -> None:
    stopped = all(each.state == _STOPPED for _, each in _threads(pid))
    why = "it is stopped" if stopped else "a call keeps the interpreter's lock"
    try:  # before it ends: its node may end this one with it
        _say(f"process {pid} has stood still for {silent_s:.1f} s and is ended: {why}")
    finally:
        os.kill(pid, signal.SIGKILL)


def _say(words: str) -> None:
    """Where the ended one's own lines went."""
    import site
    from pathlib import Path

    site.main()
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from deployments.contract import logs

    logs.configure_from_environment()
    logging.getLogger("headrace.process").error(words)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
