"""Wakes a loop within a tenth of a millisecond of when it should.

A loop's own timers are exact to a millisecond (epoll's and libuv's unit), which at 5,000 requests a
second is five of them, and as long as a fast server takes. Linux's timerfd is exact to
microseconds and costs a few of them; elsewhere the loop's timers do.

Source: timerfd_create(2).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress

MIN_S = 0.0001  # what comes closer together leaves together
_MIN_OF_LOOPS_S = 0.001  # uvloop rounds less than 0.5 ms to 0 and spins
_CLOCK_MONOTONIC = 1


class Alarm:
    """One at a time: setting it anew moves it. `close` it before its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def ring_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(_MIN_OF_LOOPS_S, seconds), self._ring)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _ItimerSpec(ctypes.Structure):
    """Interval, then the first time; seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class LinuxAlarm(Alarm):
    """Raises OSError where there is no timerfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        super().__init__(loop, ring)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            self._set = libc.timerfd_settime
            self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:
            raise OSError("no timerfd") from None
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _ItimerSpec()
        loop.add_reader(self._fd, self._rung)

    def ring_in(self, seconds: float) -> None:
        self._spec.s, self._spec.ns = divmod(int(max(MIN_S, seconds) * 1e9), 1_000_000_000)
        self._set(self._fd, 0, ctypes.byref(self._spec), None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _rung(self) -> None:
        with suppress(BlockingIOError):  # set anew since
            os.read(self._fd, 8)
            self._ring()


def alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    if sys.platform == "linux":
        with suppress(OSError):
            return LinuxAlarm(loop, ring)
    return Alarm(loop, ring)
