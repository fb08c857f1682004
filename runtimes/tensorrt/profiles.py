"""TensorRT's engines and profiles: what they are built for, and which one runs a batch.

Three engines of one model: *latency* takes one row, *throughput* up to the batch target, both at
the precision asked for and with one profile for each bucket edge, so that each is tuned for its own
lengths; *fallback* takes anything within the bounds in fp32 and one profile. A profile's least,
typical and most length come from its bucket and from the lengths recorded in it.

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
    """`name`: latency, throughput or fallback; `precision` as settings name it."""

    name: str
    precision: str
    profiles: tuple[OptimizationProfile, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """`edges`: ascending bucket edges, the last one the longest row; (1,) for rows without length.
    `recorded`: lengths that were seen, any order."""

    edges: tuple[int, ...]
    max_size: int
    max_tokens: int
    recorded: tuple[int, ...] = ()


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
    """Each bucket's lengths; its typical one is the median of those recorded, else its edge."""
    found, below = [], 0
    for edge in edges:
        inside = [length for length in recorded if below < length <= edge]
        typical = int(statistics.median(inside)) if inside else edge
        found.append(SizeRange(below + 1, typical, edge))
        below = edge
    return tuple(found)


def chosen(engines: Sequence[EnginePlan], rows: int, length: int) -> tuple[str, int] | None:
    """The engine's name and its profile's number for a batch of rows x padded length; None where
    none holds it."""
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
    """The same sizes; raises `LoadError` where one is -1."""
    if -1 in sizes:
        raise LoadError(
            f"tensorrt needs fixed sizes beside rows and length, input '{spec.name}' is "
            f"{list(spec.shape)}: export it with a fixed axis {sizes.index(-1)}, or use onnxruntime"
        )
    return sizes


def _rows(bounds: Bounds, lengths: SizeRange) -> SizeRange:
    """Up to the target, tuned for it: a full batch is what this engine is for."""
    most = max(1, min(bounds.max_size, bounds.max_tokens // lengths.most))
    return SizeRange(1, most, most)
