"""Made-up measurements: a device whose formula is known, runs of it, and a profile's identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from deployments.replica.known_costs import ProfileIdentity
from deployments.tools.profile.sweep import TimedBatch, TimedRun
from runtimes.types import StageTimes

IDENTITY = ProfileIdentity(
    "a" * 64, "openvino", "2026.4", "fp32", "embed", 2, "{}", "x86_64 chip 0123", ""
)


def identity(**changes: Any) -> ProfileIdentity:
    return replace(IDENTITY, **changes)


def law(rows: int, width: int) -> float:
    """Seconds: 5 ms, 0.2 ms a row, 8 µs a padded token."""
    return 5e-3 + 2e-4 * rows + 8e-6 * rows * width


def samples(
    all_timed: list[TimedBatch], seconds: Callable[[int, int], float] = law, runs: int = 1
) -> list[TimedRun]:
    """Each timed so often, one after another from 0 on; all of a run is the stage `run`."""
    made, at = [], 0.0
    for timed in all_timed * runs:
        took_s = seconds(timed.rows, max(timed.lengths))
        made.append(TimedRun(timed, at, took_s, StageTimes(run_s=took_s)))
        at += took_s
    return made


def square(
    rows: tuple[int, ...] = (1, 4, 16), widths: tuple[int, ...] = (16, 128)
) -> list[TimedBatch]:
    return [TimedBatch((width,) * size) for size in rows for width in widths]
