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

from deployments.observability.histograms import HistogramTable
from deployments.observability.ladder_families import ladder_families
from deployments.observability.levels import GatewayLevels, ModelLevels
from deployments.observability.metric_tables import BatchTables, RequestTables, StageTable
from deployments.preprocess.text_cache import CacheStatistics
from routers.types import ReplicaSnapshot

FLOW = ("model", "tenant", "priority")


@dataclass(slots=True)
class Recorded:
    """Everything a gateway counts."""

    requests: RequestTables
    batches: BatchTables
    stages: StageTable
    arrivals: dict[tuple[str, str, str], int] = field(default_factory=dict)
    fallbacks: dict[tuple[str, str], int] = field(default_factory=dict)
    connections_opened: int = 0
    connections_reused: int = 0

    def flush(self) -> None:
        self.requests.flush()
        self.batches.flush()


def families(gateway: str, recorded: Recorded, levels: GatewayLevels) -> Iterator[Metric]:
    """Every family of the page, in its order."""
    yield from _counters(gateway, recorded)
    yield from _histograms(gateway, recorded)
    yield from _model_levels(gateway, levels.models)
    yield _batch_ends(gateway, levels.models)
    yield from _replica_levels(gateway, levels.models)
    yield _single(
        GaugeMetricFamily,
        "headrace_controllers_frozen",
        "1 while controllers are frozen, else 0.",
        gateway,
        int(levels.frozen),
    )
    yield from _preprocess_levels(gateway, levels)
    yield from ladder_families(gateway, levels.models, recorded.fallbacks)


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
    requests, batches = recorded.requests, recorded.batches
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


_MODEL_LEVELS: tuple[tuple[str, str, Callable[[ModelLevels], float]], ...] = (
    ("queue_rows", "Rows that wait.", lambda m: m.core.waiting_rows),
    ("queue_late_rows", "Rows that wait and are past their deadline.", lambda m: m.core.late_rows),
    ("queue_requests", "Requests that wait.", lambda m: m.core.waiting_requests),
    ("queue_oldest_wait_seconds", "Wait of the oldest row.", lambda m: m.core.oldest_wait_s),
    ("backlog_seconds", "Predicted service time of what waits.", lambda m: m.core.backlog_s),
    ("inflight_batches", "Batches at replicas.", lambda m: m.core.leases),
    ("inflight_rows", "Rows in batches at replicas.", lambda m: m.core.leased_rows),
    ("accounting_drift", "Batches accounted for less batches actual.", lambda m: m.core.drift),
    ("cost_error_median", "Median relative cost-model error.", lambda m: m.cost_error.median),
    ("cost_error_p99", "99th percentile relative error.", lambda m: m.cost_error.p99),
    ("replicas", "Replicas that may be given batches.", lambda m: len(m.core.replicas)),
)

_REPLICA_LEVELS: tuple[tuple[str, str, Callable[[ModelLevels, ReplicaSnapshot], float]], ...] = (
    ("replica_inflight_batches", "Batches of this gateway it holds.", lambda _, r: r.leases),
    (
        "replica_accounting_drift",
        "Accounted less actual, by its last answer.",
        lambda _, r: r.drift,
    ),
    (
        "replica_duty_cycle",
        "Service seconds over wall seconds.",
        lambda m, r: m.duty.get(r.replica_id, 0.0),
    ),
)


def _model_levels(gateway: str, models: tuple[ModelLevels, ...]) -> Iterator[Metric]:
    for name, text, read in _MODEL_LEVELS:
        family = GaugeMetricFamily(f"headrace_{name}", text, labels=("gateway", "model"))
        for model in models:
            family.add_metric([gateway, model.model], read(model))
        yield family


def _batch_ends(gateway: str, models: tuple[ModelLevels, ...]) -> Metric:
    family = CounterMetricFamily(
        "headrace_batches",
        "Batches sent to replicas that have ended, by how.",
        labels=("gateway", "model", "end"),
    )
    for model in models:
        for end, count in model.batch_ends.items():
            family.add_metric([gateway, model.model, end], count)
    return family


def _replica_levels(gateway: str, models: tuple[ModelLevels, ...]) -> Iterator[Metric]:
    for name, text, read in _REPLICA_LEVELS:
        family = GaugeMetricFamily(f"headrace_{name}", text, labels=("gateway", "model", "replica"))
        for model in models:
            for replica in model.core.replicas:
                family.add_metric([gateway, model.model, replica.replica_id], read(model, replica))
        yield family


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
