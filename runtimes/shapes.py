"""The shapes that a device is prepared for beforehand, and which of them a batch runs in.

Where a device is prepared for certain shapes (captured graphs, static compilation, engine
profiles), a batch of R rows padded to L runs in the prepared shape that holds it and wastes the
least: fewest rows x length, then fewest rows. What none holds has no shape, and its runner needs
another way.

Shapes are those that warm-up runs: every bucket edge with 1, 2, 4 … rows within the token limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtimes import warmup
from runtimes.types import Limits, RuntimeSettings, TensorSpec

Shape = tuple[int, int]  # rows, length


def fitting(rows: int, length: int, prepared: Sequence[Shape]) -> Shape | None:
    """The least of `prepared` that holds the batch; None when it fits into none."""
    holding = [shape for shape in prepared if shape[0] >= rows and shape[1] >= length]
    return min(holding, key=lambda shape: (shape[0] * shape[1], shape[0]), default=None)


def fixed_edges(settings: RuntimeSettings, limits: Limits) -> tuple[int, ...]:
    """The lengths that a device prepared for `settings` pads to, ascending, the longest row's among
    them; none for rows without length."""
    if limits.length_input is None:
        return ()
    warmed = {length for _, length in warmup.shapes(settings, limits)}
    return tuple(sorted(warmed | ({limits.max_length} if limits.max_length else set())))


def edge_of(length: int, edges: Sequence[int]) -> int:
    """The smallest edge that holds `length`; itself beyond them all."""
    return next((edge for edge in sorted(edges) if edge >= length), length)


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Least, typical and most of a size."""

    least: int
    typical: int
    most: int

    def holds(self, size: int) -> bool:
        return self.least <= size <= self.most


@dataclass(frozen=True, slots=True)
class OptimizationProfile:
    """The rows and lengths that TensorRT builds an engine for, and those that it tunes it for."""

    rows: SizeRange
    lengths: SizeRange

    def holds(self, rows: int, length: int) -> bool:
        return self.rows.holds(rows) and self.lengths.holds(length)

    def shapes(self, spec: TensorSpec, length_axis: int | None) -> tuple[tuple[int, ...], ...]:
        """An input's least, typical and most shape; see `sized`."""
        rows, lengths = self.rows, self.lengths
        return (
            sized(spec, length_axis, rows.least, lengths.least),
            sized(spec, length_axis, rows.typical, lengths.typical),
            sized(spec, length_axis, rows.most, lengths.most),
        )


def sized(spec: TensorSpec, length_axis: int | None, rows: int, length: int) -> tuple[int, ...]:
    """An input's shape in a batch; -1 stays for a dynamic axis that is neither the batch nor the
    length."""
    return tuple(
        rows if axis == 0 else length if axis == length_axis and size == -1 else size
        for axis, size in enumerate(spec.shape)
    )
