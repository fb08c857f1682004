"""How long an event loop gives nothing its turn, and what held it.

A timer is due every 2 ms; it is late by what ran, or did not, meanwhile. Linux accounts for the
loop's thread: the time that it computed, and that it could have but had no processor. What is left
of a gap it waited for the interpreter's lock. Seconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

_EVERY_S = 0.002
_LONG_S = 0.005


@dataclass(frozen=True, slots=True)
class Gap:
    """`late_s`: after it was due; of that, `own_s` computing and `unplaced_s` without processor."""

    late_s: float
    own_s: float
    unplaced_s: float

    @property
    def locked_s(self) -> float:
        return max(self.late_s - self.own_s - self.unplaced_s, 0.0)


class LoopGaps:
    """Of the loop that it is made on, from then until `end`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._account = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._gaps: list[Gap] = []
        self._wait()

    def take(self) -> str:
        """What there was since the last time, in words."""
        gaps, self._gaps = self._gaps, []
        return described(gaps)

    def end(self) -> None:
        self._timer.cancel()
        os.close(self._account)

    def _wait(self) -> None:
        self._before = self._spent()
        self._due = time.perf_counter() + _EVERY_S
        self._timer = self._loop.call_later(_EVERY_S, self._turn)

    def _turn(self) -> None:
        late_s = max(time.perf_counter() - self._due, 0.0)
        own_s, unplaced_s = (a - b for a, b in zip(self._spent(), self._before, strict=True))
        unplaced_s = min(unplaced_s, late_s)
        self._gaps.append(Gap(late_s, min(own_s, late_s - unplaced_s), unplaced_s))
        self._wait()

    def _spent(self) -> tuple[float, float]:
        return time.thread_time(), int(os.pread(self._account, 64, 0).split()[1]) / 1e9


def described(gaps: list[Gap]) -> str:
    if not gaps:
        return "no turn"
    late = sorted(gap.late_s for gap in gaps)
    placed = sorted(gap.late_s - gap.unplaced_s for gap in gaps)
    long = [gap for gap in gaps if gap.late_s > _LONG_S]
    whole = sum(gap.late_s for gap in long) or 1.0
    parts = {
        "computing": sum(gap.own_s for gap in long),
        "interpreter lock": sum(gap.locked_s for gap in long),
        "no processor": sum(gap.unplaced_s for gap in long),
    }
    told = ", ".join(f"{name} {100 * part / whole:.0f} %" for name, part in parts.items())
    return (
        f"loop late p99 {_p99(late) * 1e3:.1f}, longest {late[-1] * 1e3:.1f} ms; with a processor "
        f"at hand p99 {_p99(placed) * 1e3:.1f}, longest {placed[-1] * 1e3:.1f} ms; "
        f"{len(long)} times over {_LONG_S * 1e3:.0f} ms ({told})"
    )


def _p99(ordered: list[float]) -> float:
    return ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
