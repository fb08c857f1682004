"""What do requests to generate leave behind? Tokens, times to them, and promises kept, by flow.

Times to tokens are of answers that streamed; tokens and kept promises of all that were answered in
whole. Counted in bulk like everything else a request leaves (`metric_tables`). Seconds and tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from deployments.gateway.telemetry.histograms import FloatArray, HistogramTable, SampleLog
from deployments.gateway.telemetry.label_names import LabelNames

WAITING_ROWS = 1024
COUNTED = ("input", "cached", "output", "kept")
TTFT_EDGES_S = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
TPOT_EDGES_S = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4, 0.5, 1.0, 2.5,
)  # fmt: skip

Flow = tuple[str, str, str]


class GenerationSample(NamedTuple):
    """NaN for a time that there was not. `kept`: 1 where both promises were, else 0."""

    ttft_s: float
    tpot_s: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kept: int


class GenerationTables:
    def __init__(self, names: LabelNames) -> None:
        self._names = names
        self.ttft = HistogramTable(TTFT_EDGES_S)
        self.tpot = HistogramTable(TPOT_EDGES_S)
        self._ids: dict[Flow, int] = {}
        self._series: list[tuple[int, int]] = []
        self._sums: FloatArray = np.zeros((0, len(COUNTED)))
        self._log = SampleLog(7, WAITING_ROWS, self._count)

    def add(self, flow: Flow, sample: GenerationSample) -> None:
        number = self._ids.get(flow)
        if number is None:
            number = self._known(flow)
        self._log.append(number, *sample)

    def flush(self) -> None:
        self._log.drain()

    def counted(self, what: str) -> Iterator[tuple[Flow, float]]:
        """Sums of one of `COUNTED` by flow."""
        column = COUNTED.index(what)
        for flow, number in self._ids.items():
            if number < len(self._sums):
                yield flow, float(self._sums[number, column])

    def _known(self, raw: Flow) -> int:
        """The number of this flow as settings allow it; only such are remembered."""
        flow = self._names.flow(*raw)
        number = self._ids.get(flow)
        if number is None:
            number = self._ids[flow] = len(self._ids)
            self._series.append((self.ttft.series(flow), self.tpot.series(flow)))
        return number

    def _count(self, rows: FloatArray) -> None:
        numbers = rows[:, 0].astype(np.int64)
        series = np.array(self._series, dtype=np.int64)[numbers]
        self.ttft.add(series[:, 0], rows[:, 1])
        self.tpot.add(series[:, 1], rows[:, 2])
        sums = np.zeros((len(self._ids), len(COUNTED)))
        sums[: len(self._sums)] = self._sums
        np.add.at(sums, numbers, rows[:, 3:])
        self._sums = sums
