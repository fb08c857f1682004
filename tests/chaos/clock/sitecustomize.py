"""The wall clock of every Python process that finds this folder on its path, moved while it runs.

`time.time` and `time.time_ns` are the machine's and the seconds in a file, which all processes read
as one: so a whole server's clocks are set at once, and nobody else's. Not moved: what is written in
C++ (Ray's control store and raylet, HAProxy), timestamps of files, `datetime.now`.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

_FILE = os.environ.get("HEADRACE_TEST_CLOCK")


def _move(path: str) -> None:
    with open(path, "rb") as file:
        moved = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    seconds, nanoseconds = time.time, time.time_ns

    def by_s() -> float:
        moved_s: float = struct.unpack("d", moved)[0]
        return moved_s

    time.time = lambda: seconds() + by_s()
    time.time_ns = lambda: nanoseconds() + int(by_s() * 1e9)


if _FILE:
    _move(_FILE)
