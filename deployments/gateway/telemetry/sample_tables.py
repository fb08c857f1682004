"""What requests, batches and generated answers leave behind: rows of numbers, counted in bulk.

Recording a row costs the event loop a dictionary look-up and one `struct` packing. Histograms are
counted when 4,096 rows wait or somebody reads: thousands of observations with a few array
operations, tens of nanoseconds each. Only answered requests are samples of latency; what was
refused, expired or cancelled is counted by outcome alone. NaN means "did not happen". Bounds are
inclusive, as Prometheus's `le` is. Labels are those that settings name; all others are `other`, so
that no caller can make new time series. No metric names and no clock are known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from deployments.settings.gateway import PRIORITIES

ANSWERED = "ok"
NOT_MEASURED = float("nan")
WAITING_ROWS = 4096
WAITING_GENERATIONS = 1024
REQUEST_STAGES = ("upstream", "parse", "tokenize", "queue", "reply")
BATCH_STAGES = ("pad", "copy", "run", "post", "transport")

FlowLabels = tuple[str, str, str]  # model, tenant, priority


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


OTHER = "other"


class LabelNames:
    """`priorities`: the gateway's, which don't change while it runs."""

    def __init__(
        self,
        models: Iterable[str] = (),
        tenants: Iterable[str] = (),
        priorities: Iterable[str] = PRIORITIES,
    ) -> None:
        self._models, self._tenants = frozenset(models), frozenset(tenants)
        self._priorities = tuple(priorities)

    def declare(
        self, models: Iterable[str] | None = None, tenants: Iterable[str] | None = None
    ) -> None:
        """Replaces the names that settings declare; None leaves a set as it is."""
        if models is not None:
            self._models = frozenset(models)
        if tenants is not None:
            self._tenants = frozenset(tenants)

    def model(self, name: str) -> str:
        return name if name in self._models else OTHER

    def flow(self, model: str, tenant: str, priority: str) -> tuple[str, str, str]:
        return (
            self.model(model),
            tenant if tenant in self._tenants else OTHER,
            priority if priority in self._priorities else OTHER,
        )

    def flow_at(self, model: str, tenant: str, rank: int) -> tuple[str, str, str]:
        """As `flow`, for a priority by its place, 0 the most urgent."""
        known = rank < len(self._priorities)
        return self.flow(model, tenant, self._priorities[rank] if known else OTHER)


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


Labels = tuple[str, str, str, str, str, str]
"""As `RequestLabels`, which costs 0.5 us more to make."""

Times = tuple[float, float, float, float, float, float]
"""As `RequestTimes`."""


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
        self._ids: dict[Labels, int] = {}
        self._series: list[list[int]] = []  # of a label set: answered, flow, model, stages
        self._counts = np.zeros(0, dtype=np.int64)
        self._log = SampleLog(3 + len(REQUEST_STAGES), WAITING_ROWS, self._count)

    def add(self, labels: Labels, times: Times, response_bytes: float) -> None:
        number = self._ids.get(labels)
        if number is None:
            number = self._known(labels)
        self._log.append(number, *times, response_bytes)

    def flush(self) -> None:
        self._log.drain()

    def outcomes(self) -> Iterator[tuple[RequestLabels, int]]:
        """(labels, requests) by label set that any had."""
        counted = zip(self._ids, self._counts.tolist(), strict=False)
        return ((RequestLabels(*labels), count) for labels, count in counted if count)

    def _known(self, raw: Labels) -> int:
        """The number of these labels as settings allow them; only such are remembered."""
        flow = self._names.flow(*raw[:3])
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
