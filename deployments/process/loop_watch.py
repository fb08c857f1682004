"""Ends a process whose event loop has stopped turning.

A loop that a call blocks answers nobody: no request, no health check, no signal. A thread checks
twice a second whether the loop has turned. If it has not for `limit_s`, the thread writes every
thread's stack and ends the process; whoever started the process starts another.

Only those seconds count in which the thread itself was on time. A process that was stopped, that
got no processor, or whose interpreter lock some thread holds has not shown that its loop hangs.
Such a process is found from outside, by `process_watchdog`, to which the thread sends heartbeats.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deployments.process.process_watchdog import ProcessWatchdog, process_watchdog

HUNG_EXIT_CODE = 70
LIMIT_S = 4.0  # without a turn of the loop
_EVERY_S = 0.5  # between two looks
_WRITES_S = 1.0  # to write the stacks; then the process ends all the same
_ON_TIME = 2.0  # a look is on time if it comes within so many intervals
logger = logging.getLogger("headrace.process")


class Heartbeat:
    """Measures how long the loop has not turned, in seconds in which the thread was on time."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._turns = -1
        self._looked_at: float | None = None
        self._still_s = 0.0

    def look(self, turns: int, now: float) -> float:
        """Take in one look; returns for how many seconds the loop has stood still. `turns`: how
        often the loop has turned so far."""
        before, self._looked_at = self._looked_at, now
        if turns != self._turns or before is None:
            self._turns, self._still_s = turns, 0.0
        elif now - before <= _ON_TIME * self._every_s:
            self._still_s += now - before
        return self._still_s


class LoopWatch:
    """Watches the event loop that is running; make and close it on that loop. `on_hang` replaces
    what happens to a process that hangs. `watchdog` gets a heartbeat at each look."""

    def __init__(
        self,
        limit_s: float = LIMIT_S,
        on_hang: Callable[[], None] | None = None,
        watchdog: ProcessWatchdog | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._watchdog = watchdog
        self._on_hang = on_hang or _end
        self._turns = 0
        self._stalls = 0  # blocks of `may_stall` that are open
        self._beating = threading.Lock()
        self._over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_soon(self._turn)
        threading.Thread(target=self._watch, name="loop-watch", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._timer.cancel()

    @contextmanager
    def may_stall(self) -> Iterator[None]:
        """Tell the watchdog that a thread may hold the interpreter's lock for long while this block
        runs, as loading a model does. A loop that hangs is still found."""
        self._stalls += 1
        self._beat()
        try:
            yield
        finally:
            self._stalls -= 1
            self._beat()

    def _beat(self) -> None:
        """Send the watchdog a heartbeat. Called by the loop and by the thread, hence the lock."""
        with self._beating:
            if self._watchdog is not None:
                self._watchdog.beat(stalled=self._stalls > 0)

    def _turn(self) -> None:
        self._turns += 1
        self._timer = self._loop.call_later(_EVERY_S / 2, self._turn)

    def _watch(self) -> None:
        heartbeat = Heartbeat(_EVERY_S)
        while not self._over.wait(_EVERY_S):
            self._beat()
            if heartbeat.look(self._turns, time.monotonic()) > self._limit_s:
                self._on_hang()
                break
        with self._beating:
            if self._watchdog is not None:
                self._watchdog.close()


def watch_process() -> LoopWatch:
    """Watch this process, in which the running loop is the one that matters, and end it if it
    hangs."""
    return LoopWatch(watchdog=process_watchdog())


def _end() -> None:
    # The thread that hangs may hold the log's lock, so logging may block: the timer ends the
    # process then.
    threading.Timer(_WRITES_S, os._exit, [HUNG_EXIT_CODE]).start()
    logger.error("the event loop has not turned for %g s; the process ends", LIMIT_S)
    faulthandler.dump_traceback()
    os._exit(HUNG_EXIT_CODE)
