"""What requests, batches and generated answers leave behind: rows of numbers, counted in bulk.

A row costs the event loop a dictionary look-up and one `struct` packing; its histograms are counted
when 4,096 rows wait or somebody reads. Only answered requests are samples of latency: what was
refused, expired or cancelled is counted by outcome and nowhere else. NaN means "did not happen".
Metric names and Prometheus's types are not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

import numpy as np

from deployments.gateway.telemetry.histograms import (
    BYTES_EDGES,
    COST_RATIO_EDGES,
    LATENCY_EDGES_S,
    PADDING_EDGES,
    SIZE_EDGES,
    STAGE_EDGES_S,
    TPOT_EDGES_S,
    TTFT_EDGES_S,
    FloatArray,
    HistogramTable,
    SquaresTable,
)
from deployments.gateway.telemetry.label_names import LabelNames

ANSWERED = "ok"
NOT_MEASURED = float("nan")
WAITING_ROWS = 4096
WAITING_GENERATIONS = 1024
REQUEST_STAGES = ("upstream", "parse", "tokenize", "queue", "reply")
BATCH_STAGES = ("pad", "copy", "run", "post", "transport")

FlowLabels = tuple[str, str, str]  # model, tenant, priority


class RequestLabels(NamedTuple):
    """`outcome`: `ok` or an error's outcome label; `reason`: finer, "" when there is none."""

    model: str
    tenant: str
    priority: str
    protocol: str
    outcome: str = ANSWERED
    reason: str = ""


class RequestTimes(NamedTuple):
    """Seconds. `total_s`: from the arrival of the headers to the answer's last byte."""

    total_s: float
    upstream_s: float = NOT_MEASURED
    parse_s: float = NOT_MEASURED
    tokenize_s: float = NOT_MEASURED
    queue_s: float = NOT_MEASURED
    reply_s: float = NOT_MEASURED


class BatchSample(NamedTuple):
    """`bucket`: upper edge, tokens. `padding`: share of the padded tokens that is padding, 0 to 1.
    `copy_s`: to and from the device; `transport_s`: round trip less what passed at the replica."""

    model: str
    bucket: int
    size: int
    padding: float
    service_s: float
    predicted_s: float
    pad_s: float
    copy_s: float
    run_s: float
    post_s: float
    transport_s: float


class GenerationSample(NamedTuple):
    """NaN for a time that there was not."""

    ttft_s: float
    tpot_s: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class Totals(NamedTuple):
    """Sums over a flow's answers, tokens."""

    input: float
    cached: float
    output: float


class SampleLog:
    """Rows of floats, appended one by one and drained in bulk; a row costs 0.2 µs.

    Appending to a full log drains it first: `drain` gets an array [rows, width] that is valid only
    during the call. For one thread.
    """

    def __init__(self, width: int, rows: int, drain: Callable[[FloatArray], None]) -> None:
        self._row = Struct(f"={width}d")
        self._buffer = bytearray(self._row.size * rows)
        self._view: FloatArray = np.frombuffer(self._buffer, dtype=np.float64).reshape(rows, width)
        self._end = self._row.size * rows
        self._at = 0
        self._drain = drain

    def append(self, *row: float) -> None:
        if self._at == self._end:
            self.drain()
        self._row.pack_into(self._buffer, self._at, *row)
        self._at += self._row.size

    def drain(self) -> None:
        rows, self._at = self._at // self._row.size, 0
        if rows:
            self._drain(self._view[:rows])

    def __len__(self) -> int:
        return self._at // self._row.size


class StageTable(HistogramTable):
    """Histograms by (model, stage), filled from requests and from batches."""

    def __init__(self) -> None:
        super().__init__(STAGE_EDGES_S)

    def all_of(self, model: str, stages: tuple[str, ...]) -> list[int]:
        return [self.series((model, stage)) for stage in stages]


class RequestTables:
    def __init__(self, names: LabelNames, stages: StageTable) -> None:
        self._names, self._stages = names, stages
        self.total = HistogramTable(LATENCY_EDGES_S)
        self.queue_wait = HistogramTable(LATENCY_EDGES_S)
        self.response_bytes = HistogramTable(BYTES_EDGES)
        self._ids: dict[RequestLabels, int] = {}
        self._series: list[list[int]] = []  # of a label set: answered, flow, model, stages
        self._counts = np.zeros(0, dtype=np.int64)
        self._log = SampleLog(3 + len(REQUEST_STAGES), WAITING_ROWS, self._count)

    def add(self, labels: RequestLabels, times: RequestTimes, response_bytes: float) -> None:
        number = self._ids.get(labels)
        if number is None:
            number = self._known(labels)
        self._log.append(number, *times, response_bytes)

    def flush(self) -> None:
        self._log.drain()

    def outcomes(self) -> Iterator[tuple[RequestLabels, int]]:
        """(labels, requests) by label set that any had."""
        counted = zip(self._ids, self._counts.tolist(), strict=False)
        return ((labels, count) for labels, count in counted if count)

    def _known(self, raw: RequestLabels) -> int:
        """The number of these labels as settings allow them; only such are remembered."""
        flow = self._names.flow(raw.model, raw.tenant, raw.priority)
        labels = RequestLabels(*flow, *raw[3:])
        number = self._ids.get(labels)
        if number is not None:
            return number
        number = self._ids[labels] = len(self._ids)
        series = self.total.series(flow)
        self.queue_wait.series(flow)
        model = self.response_bytes.series((labels.model,))
        stages = self._stages.all_of(labels.model, REQUEST_STAGES)
        self._series.append([int(labels.outcome == ANSWERED), series, model, *stages])
        return number

    def _count(self, rows: FloatArray) -> None:
        labels = rows[:, 0].astype(np.int64)
        counts = np.bincount(labels, minlength=len(self._ids))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        series = np.array(self._series, dtype=np.int64)[labels]
        answered = series[:, 0] == 1
        series, rows = series[answered], rows[answered]
        self.total.add(series[:, 1], rows[:, 1])
        self.queue_wait.add(series[:, 1], rows[:, 2 + REQUEST_STAGES.index("queue")])
        self.response_bytes.add(series[:, 2], rows[:, -1])
        self._stages.add(series[:, 3:].ravel(), rows[:, 2:-1].ravel())


class BatchTables:
    def __init__(self, names: LabelNames, stages: StageTable) -> None:
        self._names, self._stages = names, stages
        self.service = SquaresTable(LATENCY_EDGES_S)
        self.size = HistogramTable(SIZE_EDGES)
        self.padding = HistogramTable(PADDING_EDGES)
        self.cost_ratio = HistogramTable(COST_RATIO_EDGES)
        self._ids: dict[tuple[str, int], int] = {}
        self._series: list[list[int]] = []  # service, model, stages
        self._log = SampleLog(5 + len(BATCH_STAGES), WAITING_ROWS, self._count)

    def add(self, sample: BatchSample) -> None:
        model, bucket, size, padding, service_s, predicted_s, *stages = sample
        number = self._ids.get((model, bucket))
        if number is None:
            number = self._known(model, bucket)
        ratio = service_s / predicted_s if predicted_s > 0 else NOT_MEASURED
        self._log.append(number, size, padding, service_s, ratio, *stages)

    def flush(self) -> None:
        self._log.drain()

    def _known(self, raw_model: str, bucket: int) -> int:
        model = self._names.model(raw_model)
        number = self._ids.get((model, bucket))
        if number is not None:
            return number
        number = self._ids[(model, bucket)] = len(self._ids)
        service = self.service.series((model, str(bucket)))
        for table in (self.size, self.padding, self.cost_ratio):
            of_model = table.series((model,))
        self._series.append([service, of_model, *self._stages.all_of(model, BATCH_STAGES)])
        return number

    def _count(self, rows: FloatArray) -> None:
        series = np.array(self._series, dtype=np.int64)[rows[:, 0].astype(np.int64)]
        self.size.add(series[:, 1], rows[:, 1])
        self.padding.add(series[:, 1], rows[:, 2])
        self.service.add(series[:, 0], rows[:, 3])
        self.cost_ratio.add(series[:, 1], rows[:, 4])
        self._stages.add(series[:, 2:].ravel(), rows[:, 5:].ravel())


class GenerationTables:
    def __init__(self, names: LabelNames) -> None:
        self._names = names
        self.ttft = HistogramTable(TTFT_EDGES_S)
        self.tpot = HistogramTable(TPOT_EDGES_S)
        self._ids: dict[FlowLabels, int] = {}
        self._series: list[tuple[int, int]] = []
        self._sums: FloatArray = np.zeros((0, len(Totals._fields)))
        self._log = SampleLog(6, WAITING_GENERATIONS, self._count)

    def add(self, flow: FlowLabels, sample: GenerationSample) -> None:
        number = self._ids.get(flow)
        if number is None:
            number = self._known(flow)
        self._log.append(number, *sample)

    def flush(self) -> None:
        self._log.drain()

    def totals(self) -> Iterator[tuple[FlowLabels, Totals]]:
        """(flow, sums over its answers) by flow."""
        for flow, sums in zip(self._ids, self._sums.tolist(), strict=False):
            yield flow, Totals(*sums)

    def _known(self, raw: FlowLabels) -> int:
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
        sums = np.zeros((len(self._ids), len(Totals._fields)))
        sums[: len(self._sums)] = self._sums
        np.add.at(sums, numbers, rows[:, 3:])
        self._sums = sums


@dataclass(slots=True)
class Recorded:
    """Everything a gateway counts, and the names it may be counted under."""

    names: LabelNames
    requests: RequestTables
    batches: BatchTables
    stages: StageTable
    generation: GenerationTables
    arrivals: dict[FlowLabels, int] = field(default_factory=dict)
    kept: dict[FlowLabels, int] = field(default_factory=dict)
    fallbacks: dict[tuple[str, str], int] = field(default_factory=dict)
    connections_opened: int = 0
    connections_reused: int = 0

    def flush(self) -> None:
        self.requests.flush()
        self.batches.flush()
        self.generation.flush()
