"""How do a model's queue, tenants and replicas, as its core sees them now, read as metric families?

Levels are gauges, what the core counts since it began are counters. Tenants are those that settings
declare: what an undeclared one still has waiting or was served is added up as `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deployments.gateway.telemetry.label_names import LabelNames
from deployments.gateway.telemetry.levels import ModelLevels
from routers.types import FlowSnapshot, ReplicaSnapshot

FLOW = ("model", "tenant", "priority")
Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]
Models = tuple[ModelLevels, ...]

_MODEL: tuple[tuple[Kind, str, str, Callable[[ModelLevels], float]], ...] = (
    (GaugeMetricFamily, "queue_rows", "Rows that wait.", lambda m: m.core.waiting_rows),
    (
        GaugeMetricFamily,
        "queue_late_rows",
        "Rows that wait and are past their deadline.",
        lambda m: m.core.late_rows,
    ),
    (GaugeMetricFamily, "queue_requests", "Requests that wait.", lambda m: m.core.waiting_requests),
    (
        GaugeMetricFamily,
        "queue_oldest_wait_seconds",
        "Wait of the oldest waiting row.",
        lambda m: m.core.oldest_wait_s,
    ),
    (
        GaugeMetricFamily,
        "backlog_seconds",
        "Predicted service time of what waits.",
        lambda m: m.core.backlog_s,
    ),
    (GaugeMetricFamily, "inflight_batches", "Batches at replicas.", lambda m: m.core.leases),
    (GaugeMetricFamily, "inflight_rows", "Rows in them.", lambda m: m.core.leased_rows),
    (
        GaugeMetricFamily,
        "accounting_drift",
        "Batches accounted for less batches actual.",
        lambda m: m.core.drift,
    ),
    (
        GaugeMetricFamily,
        "cost_error_median",
        "Median relative cost-model error.",
        lambda m: m.cost_error.median,
    ),
    (
        GaugeMetricFamily,
        "cost_error_p99",
        "99th percentile relative error.",
        lambda m: m.cost_error.p99,
    ),
    (
        GaugeMetricFamily,
        "replicas",
        "Replicas that may be given batches.",
        lambda m: len(m.core.replicas),
    ),
)

_FLOW: tuple[tuple[Kind, str, str, Callable[[FlowSnapshot], float]], ...] = (
    (
        GaugeMetricFamily,
        "tenant_queue_rows",
        "Rows of a tenant that wait.",
        lambda f: f.rows + f.late_rows,
    ),
    (
        GaugeMetricFamily,
        "tenant_backlog_seconds",
        "Predicted service time of a tenant's rows that wait on time.",
        lambda f: f.waiting_s,
    ),
    (
        CounterMetricFamily,
        "tenant_served_seconds",
        "Service time that a tenant was given.",
        lambda f: f.served_s,
    ),
)

_REPLICA: tuple[tuple[Kind, str, str, Callable[[ModelLevels, ReplicaSnapshot], float]], ...] = (
    (
        GaugeMetricFamily,
        "replica_inflight_batches",
        "Batches of this gateway it holds.",
        lambda _, r: r.leases,
    ),
    (
        GaugeMetricFamily,
        "replica_accounting_drift",
        "Accounted less actual, by its last answer.",
        lambda _, r: r.drift,
    ),
    (
        GaugeMetricFamily,
        "replica_duty_cycle",
        "Service seconds over wall seconds.",
        lambda m, r: m.duty.get(r.replica_id, 0.0),
    ),
)


def core_families(gateway: str, models: Models, names: LabelNames) -> Iterator[Metric]:
    yield from _of_models(gateway, models)
    yield _batch_ends(gateway, models)
    yield _coefficients(gateway, models)
    yield from _of_tenants(gateway, models, names)
    yield from _of_replicas(gateway, models)


def _of_models(gateway: str, models: Models) -> Iterator[Metric]:
    for kind, name, text, read in _MODEL:
        family = kind(f"headrace_{name}", text, labels=("gateway", "model"))
        for model in models:
            family.add_metric([gateway, model.model], read(model))
        yield family


def _batch_ends(gateway: str, models: Models) -> Metric:
    family = CounterMetricFamily(
        "headrace_batches",
        "Batches sent to replicas that have ended, by how.",
        labels=("gateway", "model", "end"),
    )
    for model in models:
        for end, count in model.batch_ends.items():
            family.add_metric([gateway, model.model, end], count)
    return family


def _coefficients(gateway: str, models: Models) -> Metric:
    family = GaugeMetricFamily(
        "headrace_cost_coefficient_seconds",
        "What a batch is predicted to take, by what of it.",
        labels=("gateway", "model", "per"),
    )
    for model in models:
        cost = model.coefficients
        for per, seconds in (
            ("batch", cost.launch_s),
            ("row", cost.row_s),
            ("token", cost.token_s),
            ("token_length", cost.square_s),
        ):
            family.add_metric([gateway, model.model, per], seconds)
    return family


def _of_tenants(gateway: str, models: Models, names: LabelNames) -> Iterator[Metric]:
    labelled = [
        (names.flow_at(model.model, flow.tenant, flow.priority), flow)
        for model in models
        for flow in model.core.flows
    ]
    for kind, name, text, read in _FLOW:
        family = kind(f"headrace_{name}", text, labels=("gateway", *FLOW))
        sums: dict[tuple[str, str, str], float] = {}
        for labels, flow in labelled:
            sums[labels] = sums.get(labels, 0.0) + read(flow)
        for labels, value in sums.items():
            family.add_metric([gateway, *labels], value)
        yield family


def _of_replicas(gateway: str, models: Models) -> Iterator[Metric]:
    for kind, name, text, read in _REPLICA:
        family = kind(f"headrace_{name}", text, labels=("gateway", "model", "replica"))
        for model in models:
            for replica in model.core.replicas:
                family.add_metric([gateway, model.model, replica.replica_id], read(model, replica))
        yield family
