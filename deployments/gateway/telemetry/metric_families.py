"""How do the recorded numbers and levels read as Prometheus metric families?

One function a group of metrics; names begin with `headrace_`, times are seconds, counters end in
`_total`, every sample carries `gateway`. The names and labels are an interface that dashboards and
alerts hold on to: docs/observability.md lists them, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from deployments.contract.preprocess.tokenizer import CacheStatistics
from deployments.gateway.telemetry.controller_families import controller_families
from deployments.gateway.telemetry.core_families import FLOW, core_families
from deployments.gateway.telemetry.generation_families import generation_families
from deployments.gateway.telemetry.generation_tables import GenerationTables
from deployments.gateway.telemetry.histograms import HistogramTable
from deployments.gateway.telemetry.label_names import LabelNames
from deployments.gateway.telemetry.ladder_families import ladder_families
from deployments.gateway.telemetry.levels import GatewayLevels, ModelLevels
from deployments.gateway.telemetry.metric_tables import BatchTables, RequestTables, StageTable


@dataclass(slots=True)
class Recorded:
    """Everything a gateway counts, and the names it may be counted under."""

    names: LabelNames
    requests: RequestTables
    batches: BatchTables
    stages: StageTable
    generation: GenerationTables
    arrivals: dict[tuple[str, str, str], int] = field(default_factory=dict)
    fallbacks: dict[tuple[str, str], int] = field(default_factory=dict)
    connections_opened: int = 0
    connections_reused: int = 0

    def flush(self) -> None:
        self.requests.flush()
        self.batches.flush()
        self.generation.flush()


def families(gateway: str, recorded: Recorded, levels: GatewayLevels) -> Iterator[Metric]:
    """Every family of the page, in its order."""
    yield from _counters(gateway, recorded)
    yield from _histograms(gateway, recorded)
    yield from core_families(gateway, levels.models, recorded.names)
    yield from controller_families(gateway, levels.models, recorded.names)
    yield _single(
        GaugeMetricFamily,
        "headrace_controllers_frozen",
        "1 while controllers are frozen, else 0.",
        gateway,
        int(levels.frozen),
    )
    yield from _preprocess_levels(gateway, levels)
    yield from ladder_families(gateway, levels.models, recorded.fallbacks)
    yield from generation_families(gateway, levels.models, recorded.generation)


def _counters(gateway: str, recorded: Recorded) -> Iterator[Metric]:
    arrivals = CounterMetricFamily(
        "headrace_arrivals", "Requests whose tenant and model are known.", labels=("gateway", *FLOW)
    )
    for flow, count in recorded.arrivals.items():
        arrivals.add_metric([gateway, *flow], count)
    yield arrivals
    requests = CounterMetricFamily(
        "headrace_requests",
        "Requests that ended, by outcome and reason.",
        labels=("gateway", *FLOW, "protocol", "outcome", "reason"),
    )
    for labels, count in recorded.requests.outcomes():
        if count:
            requests.add_metric([gateway, *labels], count)
    yield requests
    for name, text, count in (
        ("opened", "Connections on which a first request came.", recorded.connections_opened),
        ("reused", "Requests over a connection used before.", recorded.connections_reused),
    ):
        yield _single(CounterMetricFamily, f"headrace_connections_{name}", text, gateway, count)


def _histograms(gateway: str, recorded: Recorded) -> Iterator[Metric]:
    requests, batches, generation = recorded.requests, recorded.batches, recorded.generation
    for name, text, labels, table in (
        ("request_seconds", "Total time of answered requests.", FLOW, requests.total),
        ("queue_wait_seconds", "Queue wait of answered requests.", FLOW, requests.queue_wait),
        (
            "stage_seconds",
            "Time in one stage: of a request upstream, parse, tokenize, queue, reply; of a batch "
            "pad, copy, run, post.",
            ("model", "stage"),
            recorded.stages,
        ),
        ("response_bytes", "Body sizes of answers.", ("model",), requests.response_bytes),
        (
            "service_seconds",
            "Service time of batches, by bucket (its longest length, tokens).",
            ("model", "bucket"),
            batches.service,
        ),
        ("batch_size", "Rows in a batch.", ("model",), batches.size),
        ("padding_ratio", "Padding's share of a batch's tokens.", ("model",), batches.padding),
        (
            "cost_ratio",
            "Measured over predicted service time of batches.",
            ("model",),
            batches.cost_ratio,
        ),
        (
            "time_to_first_token_seconds",
            "From a request's headers to its first token, of answers that streamed.",
            FLOW,
            generation.ttft,
        ),
        (
            "time_per_output_token_seconds",
            "Mean time between an answer's further tokens.",
            FLOW,
            generation.tpot,
        ),
    ):
        yield _histogram(gateway, f"headrace_{name}", text, labels, table)


def _histogram(
    gateway: str, name: str, text: str, labels: tuple[str, ...], table: HistogramTable
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("gateway", *labels))
    bounds = [_bound(edge) for edge in (*table.edges, float("inf"))]
    for key, counts, total in table:
        buckets = list(zip(bounds, counts, strict=True))
        family.add_metric([gateway, *key], buckets, sum_value=total)
    return family


def _bound(edge: float) -> str:
    return str(floatToGoString(edge))  # type: ignore[no-untyped-call]


def _preprocess_levels(gateway: str, levels: GatewayLevels) -> Iterator[Metric]:
    pool = levels.preprocess
    if pool is not None:
        for family, name, text, value in (
            (GaugeMetricFamily, "waiting_jobs", "Requests waiting for it.", pool.waiting_jobs),
            (GaugeMetricFamily, "busy_workers", "Threads at work.", pool.busy_workers),
            (CounterMetricFamily, "turns", "Pieces of work done.", pool.turns_total),
            (CounterMetricFamily, "refused", "Requests refused: it is full.", pool.refused_total),
        ):
            yield _single(family, f"headrace_preprocess_{name}", text, gateway, value)
    yield from _text_caches(gateway, levels.models)


_CACHE_LEVELS: tuple[
    tuple[
        type[CounterMetricFamily] | type[GaugeMetricFamily],
        str,
        str,
        Callable[[CacheStatistics], float],
    ],
    ...,
] = (
    (GaugeMetricFamily, "bytes", "Memory of cached tokens.", lambda c: c.bytes),
    (CounterMetricFamily, "hits", "Texts found in the cache.", lambda c: c.hits_total),
    (CounterMetricFamily, "misses", "Texts not found in the cache.", lambda c: c.misses_total),
)


def _text_caches(gateway: str, models: tuple[ModelLevels, ...]) -> Iterator[Metric]:
    caches = [(m.model, m.text_cache) for m in models if m.text_cache is not None]
    for kind, name, text, read in _CACHE_LEVELS:
        family = kind(f"headrace_preprocess_cache_{name}", text, labels=("gateway", "model"))
        for model, cache in caches:
            family.add_metric([gateway, model], read(cache))
        yield family


def _single(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    gateway: str,
    value: float,
) -> Metric:
    metric = family(name, text, labels=("gateway",))
    metric.add_metric([gateway], value)
    return metric
