"""Which TensorRT engines and optimisation profiles does a model get, and which one runs a batch?

A model has three engines. *latency* takes one row, *throughput* takes up to the batch target; both
have the configured precision and a profile for each bucket edge, so that each profile is tuned for
its own lengths. *fallback* takes every batch within the bounds; it has fp32 and one profile. A
profile's minimum, typical and maximum length come from its bucket and from the lengths recorded in
the bucket.

Pure arithmetic. Source: TensorRT's developer guide on dynamic shapes and optimisation profiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from runtimes import shapes
from runtimes.errors import LoadError
from runtimes.shapes import OptimizationProfile, SizeRange
from runtimes.types import TensorSpec

LATENCY, THROUGHPUT, FALLBACK = "latency", "throughput", "fallback"


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """An engine to be built."""

    name: str  # latency, throughput or fallback
    precision: str  # as settings name it
    profiles: tuple[OptimizationProfile, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The batches that engines must take."""

    edges: tuple[int, ...]  # of buckets, up to the longest row; (1,) for rows without a length
    max_size: int  # rows in a batch
    max_tokens: int  # tokens in a batch, padding included
    recorded: tuple[int, ...] = ()  # lengths of real rows, in any order


def plans(bounds: Bounds, precision: str) -> tuple[EnginePlan, ...]:
    """The three engines, in the order in which `chosen` tries them."""
    ranges = length_ranges(bounds.edges, bounds.recorded)
    single = tuple(OptimizationProfile(SizeRange(1, 1, 1), lengths) for lengths in ranges)
    many = tuple(OptimizationProfile(_rows(bounds, lengths), lengths) for lengths in ranges)
    typical = int(statistics.median(bounds.recorded)) if bounds.recorded else ranges[-1].typical
    longest = bounds.edges[-1]
    whole = OptimizationProfile(
        SizeRange(1, max(1, bounds.max_size // 2), bounds.max_size),
        SizeRange(1, min(max(1, typical), longest), longest),
    )
    return (
        EnginePlan(LATENCY, precision, single),
        EnginePlan(THROUGHPUT, precision, many),
        EnginePlan(FALLBACK, "fp32", (whole,)),
    )


def length_ranges(edges: Sequence[int], recorded: Sequence[int]) -> tuple[SizeRange, ...]:
    """Each bucket's lengths; the typical one is the median of recorded ones, else the edge."""
    found, below = [], 0
    for edge in edges:
        inside = [length for length in recorded if below < length <= edge]
        typical = int(statistics.median(inside)) if inside else edge
        found.append(SizeRange(below + 1, typical, edge))
        below = edge
    return tuple(found)


def chosen(engines: Sequence[EnginePlan], rows: int, length: int) -> tuple[str, int] | None:
    """The first engine and profile (by number) whose range contains a batch of `rows` padded to
    `length`; None if there is none."""
    for engine in engines:
        for number, profile in enumerate(engine.profiles):
            if profile.holds(rows, length):
                return engine.name, number
    return None


def shape(spec: TensorSpec, axis: int | None, rows: int, length: int) -> tuple[int, ...]:
    """An input's shape in a batch. Raises `LoadError` for a dynamic axis that is neither the batch
    nor the length."""
    return known(spec, shapes.sized(spec, axis, rows, length))


def known(spec: TensorSpec, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns `sizes`; raises `LoadError` if one is -1, that is unknown."""
    if -1 in sizes:
        raise LoadError(
            f"tensorrt needs fixed sizes besides rows and length, but input '{spec.name}' is "
            f"{list(spec.shape)}: export it with a fixed axis {sizes.index(-1)}, or use onnxruntime"
        )
    return sizes


def _rows(bounds: Bounds, lengths: SizeRange) -> SizeRange:
    """From one row to a full batch, tuned for a full batch, which the throughput engine is for."""
    full = max(1, min(bounds.max_size, bounds.max_tokens // lengths.most))
    return SizeRange(1, full, full)
