"""Does a server's memory grow while it is under load, and is anything held when the load is over?

`watching` takes a sample every few seconds: resident bytes by process, and the levels of `/metrics`
(waiting rows, batches and rows at replicas, accounting drift). Growth is judged without the first
third, since caches are full by then: processes that lived throughout each by the slope of a
straight line through its samples, all processes together (those that were replaced too) by the
medians of the beginning and of the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from statistics import median

import numpy as np

from loadtests.benches import metrics_page
from loadtests.benches.metrics_page import MetricSample
from loadtests.benches.runner import meanwhile
from loadtests.benches.server import MIB, RunningServer

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
RAYS = ("gcs", "raylet", "dashboard", "ray's monitors", "proxy", "idle worker")
_EDGE = 10  # beginning and end are the first and the last tenth of the samples that count


@dataclass(frozen=True, slots=True)
class ServerSample:
    at_s: float
    rss_bytes: dict[str, int]  # by "role pid"
    levels: dict[str, float]  # those of LEVELS that the page has


def levels_of(page: Sequence[MetricSample]) -> dict[str, float]:
    present = {line.name for line in page}
    return {name: metrics_page.total(page, name) for name in LEVELS if name in present}


def sample(running: RunningServer, at_s: float) -> ServerSample:
    rss = {f"{each.role} {each.pid}": each.rss_bytes for each in running.usage()}
    try:
        page = metrics_page.fetch(running.url)
    except (OSError, ValueError, HTTPException):
        page = []
    return ServerSample(at_s, rss, levels_of(page))


@contextmanager
def watching(running: RunningServer, every_s: float) -> Iterator[list[ServerSample]]:
    """Takes samples while this context is entered; yields the list that they are added to."""
    samples: list[ServerSample] = []
    start = time.perf_counter()
    with meanwhile(every_s, lambda: samples.append(sample(running, time.perf_counter() - start))):
        yield samples


def peak(samples: Sequence[ServerSample], level: str) -> float:
    return max((each.levels.get(level, 0.0) for each in samples), default=0.0)


# ---- growth --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """The growth of one process, or of all together."""

    name: str
    began_mib: float  # after the first third
    share: float  # growth until the end over `began_mib`

    @property
    def role(self) -> str:
        return self.name.rpartition(" ")[0]


def lived(samples: Sequence[ServerSample]) -> list[MemoryGrowth]:
    """Growth of each process that lived throughout the last two thirds."""
    late = samples[len(samples) // 3 :]
    if len(late) < 3:
        return []
    found, at = [], np.array([each.at_s for each in late])
    for name in sorted(set.intersection(*(set(each.rss_bytes) for each in late))):
        mib = np.array([each.rss_bytes[name] / MIB for each in late])
        slope = float(np.polyfit(at, mib, 1)[0])
        found.append(
            MemoryGrowth(name, float(mib[0]), slope * float(at[-1] - at[0]) / float(mib[0]))
        )
    return found


def whole(samples: Sequence[ServerSample]) -> MemoryGrowth:
    """Growth of the resident memory of all processes together."""
    late = [sum(each.rss_bytes.values()) / MIB for each in samples[len(samples) // 3 :]]
    edge = max(1, len(late) // _EDGE)
    began, ended = median(late[:edge]), median(late[-edge:])
    return MemoryGrowth("all", began, ended / began - 1)
