"""Samples a server's memory and levels while it is under load and after the load has ended.

A thread samples every few seconds: resident bytes by process, and the levels of `/metrics` (waiting
rows, batches and rows at replicas, accounting drift). Memory leaks if a straight line through the
samples after the first third rises; caches are full by then. Other leaks show as levels above zero
after the load has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPException

import numpy as np

from loadtests.benches import metrics_page
from loadtests.benches.launched import RunningServer

LEVELS = (
    "headrace_queue_rows",
    "headrace_queue_late_rows",
    "headrace_queue_requests",
    "headrace_inflight_batches",
    "headrace_inflight_rows",
    "headrace_accounting_drift",
    "headrace_replica_inflight_batches",
    "headrace_preprocess_waiting_jobs",
)
MIB = 2**20


@dataclass(frozen=True, slots=True)
class SoakSample:
    """One sample."""

    at_s: float
    rss_bytes: dict[str, int]  # by "role pid"
    levels: dict[str, float]  # those of LEVELS that the page has


def sample(running: RunningServer, at_s: float) -> SoakSample:
    rss = {f"{each.role} {each.pid}": each.rss_bytes for each in running.usage()}
    try:
        page = metrics_page.fetch(running.url)
    except (OSError, ValueError, HTTPException):
        page = []
    present = {line.name for line in page}
    levels = {name: metrics_page.total(page, name) for name in LEVELS if name in present}
    return SoakSample(at_s, rss, levels)


@dataclass(slots=True)
class SoakWatch:
    """A context manager that takes samples while it is entered."""

    running: RunningServer
    every_s: float
    samples: list[SoakSample] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> SoakWatch:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        start = time.perf_counter()
        while not self._ended.wait(self.every_s):
            self.samples.append(sample(self.running, time.perf_counter() - start))


def settled(running: RunningServer, limit_s: float) -> SoakSample:
    """The levels once they are all zero, or after `limit_s`."""
    start = time.perf_counter()
    while True:
        found = sample(running, time.perf_counter() - start)
        if (found.levels and not any(found.levels.values())) or found.at_s > limit_s:
            return found
        time.sleep(0.2)


def growth_mib_per_hour(samples: Sequence[SoakSample], process: str) -> float:
    """Slope of resident memory over the last two thirds; NaN below three samples."""
    late = [each for each in samples[len(samples) // 3 :] if process in each.rss_bytes]
    if len(late) < 3:
        return float("nan")
    at = np.array([each.at_s for each in late])
    rss = np.array([each.rss_bytes[process] for each in late], dtype=np.float64)
    slope: float = np.polyfit(at, rss, 1)[0]
    return slope * 3600 / MIB


def peak(samples: Sequence[SoakSample], level: str) -> float:
    return max((each.levels.get(level, 0.0) for each in samples), default=0.0)
