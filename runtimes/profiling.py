"""Times batches of each size on this device, before the replica serves.

The shapes are those of warm-up, and one length between each two edges. One row of each length comes
first, then the largest batch of each, then the sizes between, so that the extremes are known if
time is short. A batch that would take longer than the time left is skipped; its time is estimated
from a smaller batch, growing at most with the rows and with the square of the length. Each shape
runs at least twice and the shortest time counts, which is the device's time without disturbances.
For warm batch runtimes; for engines see `stream_profiling.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from time import perf_counter

from runtimes import warmup
from runtimes.types import Batch, Limits, RuntimeSettings

Profile = tuple[tuple[int, int, float], ...]

_MIN_RUNS = 2
_MAX_RUNS = 5
_ENOUGH_S = (
    0.01  # shorter batches are run more often, as what disturbs them is longer than they are
)


def measure(
    settings: RuntimeSettings,
    limits: Limits,
    run: Callable[[Batch], object],
    seconds: float,
    clock: Callable[[], float] = perf_counter,
) -> Profile:
    """(rows, length, seconds) of each shape that was run; about `seconds` in all, none for 0.
    Raises `LoadError` where a batch fails: callers would meet the same."""
    end = clock() + seconds
    found: list[tuple[int, int, float]] = []
    for rows, length in in_order(settings, limits):
        left = end - clock()
        if left <= 0.0 or _MIN_RUNS * at_most(rows, length, found) > left:
            continue
        tried = warmup.batch(limits, rows, length)
        found.append((rows, length, _least(run, tried, length, clock)))
    return tuple(found)


def in_order(settings: RuntimeSettings, limits: Limits) -> Iterator[tuple[int, int]]:
    """(rows, length) of what is measured: extremes first, then what lies between."""
    shapes = warmup.shapes(replace(settings, edges=_edges(settings, limits)), limits)
    most: dict[int, int] = {}
    for rows, length in shapes:
        most[length] = max(rows, most.get(length, 0))
    yield from ((1, length) for length in sorted(most))
    yield from ((most[length], length) for length in sorted(most) if most[length] > 1)
    between = [shape for shape in shapes if 1 < shape[0] < most[shape[1]]]
    yield from sorted(between, key=lambda shape: shape[0] * shape[1])


def _edges(settings: RuntimeSettings, limits: Limits) -> tuple[int, ...]:
    """A device that is compiled for certain lengths runs no other, nor do rows of known shapes."""
    if limits.row_shapes is not None:
        return limits.row_shapes.lengths
    if limits.fixed_edges or not settings.edges:
        return limits.fixed_edges
    below, last = (0, *settings.edges)[-2:]
    return (*settings.edges, max(1, (below + last) // 2))


def at_most(rows: int, length: int, found: Iterable[tuple[int, int, float]]) -> float:
    """Seconds that the batch takes at most, judged by those measured; 0 before there are any."""
    bounds = (
        took_s * max(1.0, rows / known_rows) * max(1.0, length / known_length) ** 2
        for known_rows, known_length, took_s in found
    )
    return min(bounds, default=0.0)


def _least(
    run: Callable[[Batch], object], tried: Batch, length: int, clock: Callable[[], float]
) -> float:
    least = spent = 0.0
    for done in range(_MAX_RUNS):
        if done >= _MIN_RUNS and spent >= _ENOUGH_S:
            break
        begin = clock()
        warmup.attempt(run, tried, length)
        took_s = clock() - begin
        spent += took_s
        least = min(least, took_s) if done else took_s
    return least
