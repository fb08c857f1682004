"""Ends a process whose event loop has stopped turning.

A loop that a call never gives back answers nobody: no request, no health check, no signal. A thread
looks twice a second whether the loop has turned since; where it has not for `limit_s`, it writes
what every thread is doing and ends the process, whose place another one takes. Seconds count only
while the thread itself looks on time: a process that was stopped, or got no processor, or whose
interpreter lock somebody holds, has not shown that its loop hangs. Such a one is found from
outside, by the `watchdog` to which the thread sends its heartbeats.
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

from deployments.contract.process_watchdog import ProcessWatchdog, process_watchdog

HUNG_EXIT_CODE = 70
LIMIT_S = 4.0
_EVERY_S = 0.5
_WRITES_S = 1.0
_ON_TIME = 2.0  # of the interval, that a look may take
logger = logging.getLogger("headrace.process")


class Heartbeat:
    """How long the loop has not turned while somebody was there to see it. Seconds."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._turns = -1
        self._looked_at: float | None = None
        self._still_s = 0.0

    def look(self, turns: int, now: float) -> float:
        """`turns`: of the loop, so far."""
        before, self._looked_at = self._looked_at, now
        if turns != self._turns or before is None:
            self._turns, self._still_s = turns, 0.0
        elif now - before <= _ON_TIME * self._every_s:
            self._still_s += now - before
        return self._still_s


class LoopWatch:
    """Make and close it on the loop."""

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
        self._stalls = 0
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
        """While some thread may keep the interpreter's lock for long, as loading a model does.
        What keeps the loop itself from turning is found all the same."""
        self._stalls += 1
        self._beat()
        try:
            yield
        finally:
            self._stalls -= 1
            self._beat()

    def _beat(self) -> None:
        """From the loop and from the thread."""
        with self._beating:
            if self._watchdog is not None:
                self._watchdog.beat(stalled=self._stalls > 0)

    def _end_beats(self) -> None:
        with self._beating:
            if self._watchdog is not None:
                self._watchdog.close()

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
        self._end_beats()


def watch_process() -> LoopWatch:
    """Of this process, in which this loop is the one that matters: what hangs is ended."""
    return LoopWatch(watchdog=process_watchdog())


def _end() -> None:
    # Whoever holds the log's lock may be what hangs.
    threading.Timer(_WRITES_S, os._exit, [HUNG_EXIT_CODE]).start()
    logger.error("the event loop has not turned for %g s; the process ends", LIMIT_S)
    faulthandler.dump_traceback()
    os._exit(HUNG_EXIT_CODE)
