"""What have a model's controllers learnt, and what do they do? As Prometheus metric families.

Bucket edges, batch sizes, races, ejections and admission, as each model's core publishes them.
Counters begin with the core. A controller's mode is a label of a sample that is 1, so that a
change of mode shows as one. Of its values by flow only those of declared tenants are shown: they
cannot be added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deployments.gateway.telemetry.label_names import OTHER, LabelNames
from deployments.gateway.telemetry.levels import ModelLevels
from routers.types import ReplicaSnapshot, Snapshot

Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]
Models = Sequence[ModelLevels]

_MODEL: tuple[tuple[Kind, str, str, Callable[[Snapshot], float]], ...] = (
    (CounterMetricFamily, "bucket_switches", "Times that edges moved.", lambda c: c.edge_switches),
    (CounterMetricFamily, "hedges", "Copies of batches that took long.", lambda c: c.hedges),
    (CounterMetricFamily, "hedges_won", "Of those, first to answer.", lambda c: c.hedges_won),
    (CounterMetricFamily, "ties", "Copies of batches that stood behind another.", lambda c: c.ties),
    (CounterMetricFamily, "probes", "Batches to replicas that are left out.", lambda c: c.probes),
    (CounterMetricFamily, "retries", "Batches of rows that had been lost.", lambda c: c.retries),
    (CounterMetricFamily, "evictions", "Staged batches that gave way.", lambda c: c.evictions),
    (CounterMetricFamily, "preempted", "Work stopped for more urgent.", lambda c: c.preempted),
    (GaugeMetricFamily, "copy_budget_seconds", "What copies may cost now.", lambda c: c.budget_s),
    (GaugeMetricFamily, "utilisation", "Busy share of the replicas.", lambda c: c.utilisation),
    (
        GaugeMetricFamily,
        "idle_gap_seconds",
        "Device time between a batch and the next that waited, lately.",
        lambda c: c.idle_gap_s,
    ),
    (
        GaugeMetricFamily,
        "early_binding_seconds",
        "Time that a staged batch waits at its replica, lately.",
        lambda c: c.early_binding_s,
    ),
)

_REPLICA: tuple[tuple[str, str, Callable[[ReplicaSnapshot], float]], ...] = (
    ("replica_ejected", "1 while it is left out as slow, else 0.", lambda r: int(r.ejected)),
    ("replica_slowdown", "Measured over predicted service time.", lambda r: r.slowdown),
)


def controller_families(gateway: str, models: Models, names: LabelNames) -> Iterator[Metric]:
    for kind, name, text, read in _MODEL:
        family = kind(f"headrace_{name}", text, labels=("gateway", "model"))
        for model in models:
            family.add_metric([gateway, model.model], read(model.core))
        yield family
    yield from _buckets(gateway, models)
    yield from _replicas(gateway, models)
    yield from _admission(gateway, models)
    yield _by_flow(gateway, models, names)


def _buckets(gateway: str, models: Models) -> Iterator[Metric]:
    for name, text, read in (
        ("batch_size_target", "Rows in a full batch of a bucket.", _targets),
        ("bucket_queue_rows", "Rows that wait in a bucket.", _rows),
    ):
        family = GaugeMetricFamily(f"headrace_{name}", text, labels=("gateway", "model", "bucket"))
        for model in models:
            for edge, value in read(model.core):
                family.add_metric([gateway, model.model, str(edge)], value)
        yield family


def _targets(core: Snapshot) -> tuple[tuple[int, int], ...]:
    return core.batch_targets


def _rows(core: Snapshot) -> tuple[tuple[int, int], ...]:
    return core.rows_by_bucket


def _replicas(gateway: str, models: Models) -> Iterator[Metric]:
    for name, text, read in _REPLICA:
        family = GaugeMetricFamily(f"headrace_{name}", text, labels=("gateway", "model", "replica"))
        for model in models:
            for replica in model.core.replicas:
                family.add_metric([gateway, model.model, replica.replica_id], read(replica))
        yield family


def _admission(gateway: str, models: Models) -> Iterator[Metric]:
    labels = ("gateway", "model", "controller")
    mode = GaugeMetricFamily(
        "headrace_controller_mode", "1 for the mode it is in.", labels=(*labels, "mode")
    )
    value = GaugeMetricFamily("headrace_controller_value", "What it has learnt.", labels=labels)
    shed = CounterMetricFamily("headrace_controller_shed", "Requests it refused.", labels=labels)
    would = CounterMetricFamily(
        "headrace_controller_would_shed", "Requests it would have refused.", labels=labels
    )
    for model in models:
        for each in model.core.controllers:
            at = [gateway, model.model, each.name]
            mode.add_metric([*at, each.mode], 1)
            value.add_metric(at, each.value)
            shed.add_metric(at, each.shed)
            would.add_metric(at, each.would_shed)
    yield from (mode, value, shed, would)


def _by_flow(gateway: str, models: Models, names: LabelNames) -> Metric:
    family = GaugeMetricFamily(
        "headrace_controller_tenant_value",
        "What it has learnt of a tenant.",
        labels=("gateway", "model", "controller", "tenant", "priority"),
    )
    for model in models:
        for each in model.core.controllers:
            for rank, name, value in each.by_flow:
                _, tenant, priority = names.flow_at(model.model, name, rank)
                if tenant != OTHER:
                    at = [gateway, model.model, each.name, tenant, priority]
                    family.add_metric(at, value)
    return family
