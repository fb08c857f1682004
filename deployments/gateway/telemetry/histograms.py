"""Histograms by series, into which many observations are counted at once.

A table holds one histogram a series, all with the same bucket edges; `add` counts thousands of
observations with a handful of array operations, so that one costs tens of nanoseconds and the event
loop is not held up. Bounds are inclusive as Prometheus's `le` is; NaN means "not observed".
It knows no metric names and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

# Whole requests and batches, 0.5 ms to 60 s.
LATENCY_EDGES_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25,
    0.4, 0.6, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
# Single stages, which may take 10 µs.
STAGE_EDGES_S = (
    0.00001, 0.00003, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
    0.5, 1.0, 2.0, 5.0, 10.0, 60.0,
)  # fmt: skip
# To a first token, and between further ones.
TTFT_EDGES_S = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
TPOT_EDGES_S = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4, 0.5, 1.0, 2.5,
)  # fmt: skip
SIZE_EDGES = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0)
PADDING_EDGES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
COST_RATIO_EDGES = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
BYTES_EDGES = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0)


class HistogramTable:
    """One histogram a series. `edges`: ascending upper bounds; a last one, +Inf, is implied."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self._edges = np.array(edges, dtype=np.float64)
        self._series: dict[tuple[str, ...], int] = {}
        self._counts: IntArray = np.zeros((0, len(edges) + 1), dtype=np.int64)
        self._sums: FloatArray = np.zeros(0, dtype=np.float64)

    def series(self, key: tuple[str, ...]) -> int:
        """The number of the series with these label values; made when new."""
        number = self._series.setdefault(key, len(self._series))
        if number == len(self._counts):
            self._grow()
        return number

    def _grow(self) -> None:
        more = max(8, len(self._counts))
        self._counts = np.vstack([self._counts, np.zeros((more, len(self.edges) + 1), np.int64)])
        self._sums = np.concatenate([self._sums, np.zeros(more)])

    def add(self, series: IntArray, values: FloatArray) -> None:
        """Counts values[i] in series[i]; NaN is skipped."""
        seen = ~np.isnan(values)
        series, values = series[seen], values[seen]
        bucket = np.searchsorted(self._edges, values, side="left")
        flat = np.bincount(series * self._counts.shape[1] + bucket, minlength=self._counts.size)
        self._counts += flat.reshape(self._counts.shape)
        self._sums += np.bincount(series, weights=values, minlength=len(self._sums))

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
        """(label values, cumulative counts up to +Inf, sum) of each series with an observation."""
        cumulative = np.cumsum(self._counts, axis=1)
        for key, number in self._series.items():
            if cumulative[number, -1]:
                yield key, cumulative[number].tolist(), float(self._sums[number])


class SquaresTable(HistogramTable):
    """A histogram that also adds up squares: with its sum and its count they make the standard
    deviation, which a histogram's buckets are too coarse for."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        super().__init__(edges)
        self._squares: FloatArray = np.zeros(0, dtype=np.float64)

    def add(self, series: IntArray, values: FloatArray) -> None:
        super().add(series, values)
        squares = np.where(np.isnan(values), 0.0, values * values)
        more = np.zeros(len(self._sums) - len(self._squares))
        self._squares = np.concatenate([self._squares, more])
        self._squares += np.bincount(series, weights=squares, minlength=len(self._squares))

    def squares(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """(label values, sum of squares) of each series with an observation."""
        for key, number in self._series.items():
            if number < len(self._squares) and self._counts[number].any():
                yield key, float(self._squares[number])
