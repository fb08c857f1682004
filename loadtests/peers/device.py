"""The device that every server serves here, to which it hands batches of rows.

A function that takes `base_ms + per_row_ms·B + per_token_us·B·L` for B rows whose longest has L ids
(shorter ones are padded to it), one batch at a time, and answers each row's sum. It sleeps, so that
the processors are left to what is measured. Needs the standard library alone: it is imported in
every peer's own environment. The same arithmetic as Headrace's `synthetic` runtime.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

SPIN_S = 0.0001  # a sleep ends 60 to 90 µs late; the rest is spun


@dataclass(frozen=True, slots=True)
class Speed:
    base_ms: float = 5.0
    per_row_ms: float = 0.2
    per_token_us: float = 8.0

    def seconds(self, rows: int, longest: int) -> float:
        milliseconds = self.base_ms + self.per_row_ms * rows
        return milliseconds / 1e3 + self.per_token_us * rows * longest / 1e6


class FakeDevice:
    """Safe to call from several threads: they wait for each other."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._busy = threading.Lock()

    def run(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """One batch. The sums, in order; returns when the device is done."""
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
