"""The fake device that all servers run batches of rows on.

A batch of B rows, padded to the longest with L ids, takes `base_ms + per_row_ms·B +
per_token_us·B·L`; the answer to each row is its sum. The device runs one batch at a time. It
sleeps, so that the processors are free for the servers that are measured. It needs only the
standard library, because it is imported in every peer's own environment. The arithmetic is that of
Headrace's `synthetic` runtime.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

SPIN_S = 0.0001  # a sleep ends 60 to 90 µs late, so the last part is a busy wait


@dataclass(frozen=True, slots=True)
class Speed:
    base_ms: float = 5.0
    per_row_ms: float = 0.2
    per_token_us: float = 8.0

    def seconds(self, rows: int, longest: int) -> float:
        milliseconds = self.base_ms + self.per_row_ms * rows
        return milliseconds / 1e3 + self.per_token_us * rows * longest / 1e6


class FakeDevice:
    """May be called from several threads, which wait for each other."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._busy = threading.Lock()

    def run(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Runs one batch; returns the rows' sums when the device's time is over."""
        with self._busy:
            start = time.perf_counter()
            sums = [float(sum(row)) for row in rows]
            wait_until(start + self._speed.seconds(len(rows), max(map(len, rows))))
        return sums


def wait_until(finish: float) -> None:
    left = finish - time.perf_counter()
    if left > SPIN_S:
        time.sleep(left - SPIN_S)
    while time.perf_counter() < finish:
        pass
