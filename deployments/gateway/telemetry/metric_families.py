"""Every metric of a gateway's page: name, kind, labels, help text, source; and Prometheus's text.

One row per family, in the page's order. Names stand here without `headrace_` and a counter's
`_total`; every sample also carries `gateway`; times are seconds. A row's scope has its labels and
lists what there is to tell apart at a scrape; `read` makes the value. docs/observability.md lists
names and labels, and a test compares the two. Tenants that settings do not name are added up as
`other`; what controllers learnt of those cannot be added up and is left out.
The text is byte for byte prometheus_client's, at a fifth of its time, because label sets are
remembered (4,600 samples: 5 ms instead of 20). OpenMetrics is left to prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.telemetry.levels import GatewayLevels
from deployments.gateway.telemetry.sample_tables import OTHER, HistogramTable, Recorded
from deployments.gateway.tenancy.fair_thread_pool import TurnStatistics
from routers.api.snapshot import FlowSnapshot

T = TypeVar("T")
Items = Iterable[tuple[tuple[str, ...], T]]  # each with its label values


class Scrape:
    """What a gateway has recorded and holds at one moment, as the items of each scope."""

    def __init__(self, recorded: Recorded, levels: GatewayLevels) -> None:
        self.recorded, self.levels = recorded, levels
        self._items: dict[Scope[Any], list[Any] | None] = {}

    def of(self, scope: Scope[T]) -> list[tuple[tuple[str, ...], T]] | None:
        """Listed once a scrape."""
        if scope not in self._items:
            found = scope.items(self)
            self._items[scope] = None if found is None else list(found)
        return self._items[scope]


@dataclass(frozen=True, slots=True)
class Scope(Generic[T]):
    """`items`: None where the gateway has no such thing, and then its families are not shown."""

    labels: tuple[str, ...]
    items: Callable[[Scrape], Items[T] | None]


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    kind: Literal["counter", "gauge"]
    name: str
    scope: Scope[T]
    help: str
    read: Callable[[T], float]


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    name: str
    labels: tuple[str, ...]
    help: str
    table: Callable[[Recorded], HistogramTable]


def counter(name: str, scope: Scope[T], help: str, read: Callable[[T], float]) -> Family[T]:
    return Family("counter", name, scope, help, read)


def gauge(name: str, scope: Scope[T], help: str, read: Callable[[T], float]) -> Family[T]:
    return Family("gauge", name, scope, help, read)


histogram = HistogramFamily


def _flows(s: Scrape) -> Items[list[FlowSnapshot]]:
    """By labels: several flows of undeclared tenants share one."""
    found: dict[tuple[str, ...], list[FlowSnapshot]] = {}
    for model in s.levels.models:
        for flow in model.core.flows:
            labels = s.recorded.names.flow_at(model.model, flow.tenant, flow.priority)
            found.setdefault(labels, []).append(flow)
    return found.items()


def _preprocess(s: Scrape) -> Items[TurnStatistics] | None:
    pool = s.levels.preprocess
    return None if pool is None else [((), pool)]


def _controller_ends(s: Scrape) -> Items[int] | None:
    """Not shown before it is known: what comes then would look like an increase."""
    ends = s.levels.controller_ends
    return None if ends is None else [((), ends)]


def _coefficients(s: Scrape) -> Items[float]:
    for model in s.levels.models:
        cost = model.coefficients
        yield (model.model, "batch"), cost.launch_s
        yield (model.model, "row"), cost.row_s
        yield (model.model, "token"), cost.token_s
        yield (model.model, "token_length"), cost.square_s


def _scaled(s: Scrape) -> Items[ModelOutlook]:
    for model in s.levels.models:
        if model.outlook is not None:
            yield (model.model,), model.outlook


def _by_group(numbers: Callable[[ModelOutlook], Mapping[str, int]]) -> Scope[int]:
    """Of the outlook; "" where a model has no groups."""

    def items(s: Scrape) -> Items[int]:
        for (model,), outlook in _scaled(s):
            for group, number in numbers(outlook).items():
                yield (model, group), number

    return Scope(("model", "group"), items)


def _learnt_of_tenants(s: Scrape) -> Items[float]:
    for model in s.levels.models:
        for each in model.core.controllers:
            for rank, name, value in each.by_flow:
                _, tenant, priority = s.recorded.names.flow_at(model.model, name, rank)
                if tenant != OTHER:
                    yield (model.model, each.name, tenant, priority), value


def _itself(value: float) -> float:
    return value


# fmt: off
FLOW_LABELS = ("model", "tenant", "priority")
GATEWAY = Scope((), lambda s: [((), s)])
ARRIVALS = Scope(FLOW_LABELS, lambda s: s.recorded.arrivals.items())
KEPT = Scope(FLOW_LABELS, lambda s: s.recorded.kept.items())
SQUARES = Scope(("model", "bucket"), lambda s: s.recorded.batches.service.squares())
REQUESTS = Scope((*FLOW_LABELS, "protocol", "outcome", "reason"),
                 lambda s: s.recorded.requests.outcomes())
TOKENS = Scope(FLOW_LABELS, lambda s: s.recorded.generation.totals())
FALLBACKS = Scope(("model", "fallback"), lambda s: s.recorded.fallbacks.items())
PREPROCESS = Scope((), _preprocess)
CONTROLLER_ENDS = Scope((), _controller_ends)
MODEL = Scope(("model",), lambda s: [((m.model,), m) for m in s.levels.models])
DECLARED = Scope(("model", "optional"), lambda s: [
    ((model, str(optional).lower()), int(ready))
    for (model, optional), ready in s.levels.ready.items()])
CORE = Scope(("model",), lambda s: [((m.model,), m.core) for m in s.levels.models])
FLOW = Scope(FLOW_LABELS, _flows)
BATCH_ENDS = Scope(("model", "end"), lambda s: [
    ((m.model, end), count) for m in s.levels.models for end, count in m.batch_ends.items()])
COEFFICIENTS = Scope(("model", "per"), _coefficients)
TARGETS = Scope(("model", "bucket"), lambda s: [
    ((m.model, str(edge)), rows) for m in s.levels.models for edge, rows in m.core.batch_targets])
BUCKETS = Scope(("model", "bucket"), lambda s: [
    ((m.model, str(edge)), rows) for m in s.levels.models for edge, rows in m.core.rows_by_bucket])
REPLICA = Scope(("model", "replica"), lambda s: [
    ((m.model, r.replica_id), r) for m in s.levels.models for r in m.core.replicas])
GROUP = Scope(("model", "group"), lambda s: [
    ((m.model, g.name), g) for m in s.levels.models for g in m.core.groups if g.name])
GROUPS = Scope(("model", "group"), lambda s: [
    ((m.model, g.name), g) for m in s.levels.models for g in m.core.groups])
WORK = Scope(("model", "length"), lambda s: [
    ((m.model, str(length)), work_s)
    for m in s.levels.models for length, work_s in m.core.offered.by_length])
SCALED = Scope(("model",), _scaled)
SCALED_WHY = Scope(("model", "reason"), lambda s: [
    ((*model, outlook.reason), 1) for model, outlook in _scaled(s)])
WANTED = _by_group(lambda outlook: outlook.wanted)
TARGETED = _by_group(lambda outlook: outlook.targets)
DUTY = Scope(("model", "replica"), lambda s: [
    ((m.model, r.replica_id), m.duty.get(r.replica_id, 0.0))
    for m in s.levels.models for r in m.core.replicas])
MEMORY = Scope(("model", "replica", "part"), lambda s: [
    ((m.model, replica, part), size) for m in s.levels.models
    for replica, memory in m.device_memory.items()
    for part, size in asdict(memory).items()
    if size is not None])
ENGINE = Scope(("model", "replica"), lambda s: [
    ((m.model, replica), load) for m in s.levels.models for replica, load in m.engines.items()])
GENERATING = Scope(("model",), lambda s: [
    ((m.model,), m.core.generation) for m in s.levels.models if m.core.generation is not None])
CACHED = Scope(("model", "known"), lambda s: [
    ((m.model, known), account) for m in s.levels.models if m.core.generation is not None
    for known, account in (("told", m.core.generation.told),
                           ("estimated", m.core.generation.estimated))])
CONTROLLER = Scope(("model", "controller"), lambda s: [
    ((m.model, c.name), c) for m in s.levels.models for c in m.core.controllers])
MODE = Scope(("model", "controller", "mode"), lambda s: [
    ((m.model, c.name, c.mode), 1) for m in s.levels.models for c in m.core.controllers])
LEARNT = Scope(("model", "controller", "tenant", "priority"), _learnt_of_tenants)
TEXT_CACHE = Scope(("model",), lambda s: [
    ((m.model,), m.text_cache) for m in s.levels.models if m.text_cache is not None])
KEYS = Scope(("tenant", "key"), lambda s: s.levels.keys)
KEYS_USED = Scope(("tenant", "key"), lambda s: [
    (labels, use.last_s) for labels, use in s.levels.keys if use.last_s is not None])
KEYS_THAT_END = Scope(("tenant", "key"), lambda s: [
    (labels, use) for labels, use in s.levels.keys if use.ends_s is not None or use.late_uses])
KEYS_ENDING = Scope(("tenant", "key"), lambda s: [
    (labels, use.ends_s) for labels, use in s.levels.keys if use.ends_s is not None])
REUSE = Scope(("model",), lambda s: [
    ((m.model,), m.reuse) for m in s.levels.models if m.reuse is not None])
CACHE = Scope(("model",), lambda s: [
    ((m.model,), m.reuse.cache)
    for m in s.levels.models if m.reuse is not None and m.reuse.cache is not None])

FAMILIES: tuple[Family[Any] | HistogramFamily, ...] = (
    counter("arrivals", ARRIVALS, "Requests whose tenant and model are known.", _itself),
    counter("requests", REQUESTS, "Requests that ended, by outcome and reason.", _itself),
    counter("slo_kept", KEPT, "Requests that were answered within the model's slo.", _itself),
    counter("connections_opened", GATEWAY, "Connections on which a first request came.",
            lambda s: s.recorded.connections_opened),
    counter("connections_reused", GATEWAY, "Requests over a connection used before.",
            lambda s: s.recorded.connections_reused),
    histogram("request_seconds", FLOW_LABELS, "Total time of answered requests.",
              lambda r: r.requests.total),
    histogram("queue_wait_seconds", FLOW_LABELS, "Queue wait of answered requests.",
              lambda r: r.requests.queue_wait),
    histogram("stage_seconds", ("model", "stage"),
              "Time in one stage: of a request upstream, parse, tokenize, queue, reply; of a batch "
              "pad, copy, run, post, transport.", lambda r: r.stages),
    histogram("response_bytes", ("model",), "Body sizes of answers.",
              lambda r: r.requests.response_bytes),
    histogram("service_seconds", ("model", "bucket"),
              "Service time of batches, by bucket (its longest length, tokens).",
              lambda r: r.batches.service),
    counter("service_squared_seconds", SQUARES, "Sum of squares of those service times.", _itself),
    histogram("batch_size", ("model",), "Rows in a batch.", lambda r: r.batches.size),
    histogram("padding_ratio", ("model",), "Padding's share of a batch's tokens.",
              lambda r: r.batches.padding),
    histogram("cost_ratio", ("model",), "Measured over predicted service time of batches.",
              lambda r: r.batches.cost_ratio),
    histogram("time_to_first_token_seconds", FLOW_LABELS,
              "From a request's headers to its first token, of answers that streamed.",
              lambda r: r.generation.ttft),
    histogram("time_per_output_token_seconds", FLOW_LABELS,
              "Mean time between an answer's further tokens.", lambda r: r.generation.tpot),

    gauge("model_ready", DECLARED, "Whether a declared model answers: 1, or 0.", _itself),
    gauge("queue_rows", CORE, "Rows that wait.", lambda c: c.waiting_rows),
    gauge("queue_late_rows", CORE, "Rows that wait and are past their deadline.",
          lambda c: c.late_rows),
    gauge("queue_requests", CORE, "Requests that wait.", lambda c: c.waiting_requests),
    gauge("queue_oldest_wait_seconds", CORE, "Wait of the oldest waiting row.",
          lambda c: c.oldest_wait_s),
    gauge("backlog_seconds", CORE, "Predicted service time of what waits.", lambda c: c.backlog_s),
    gauge("inflight_batches", CORE, "Batches at replicas.", lambda c: c.leases),
    gauge("inflight_rows", CORE, "Rows in them.", lambda c: c.leased_rows),
    gauge("accounting_drift", CORE, "Batches accounted for less batches actual.",
          lambda c: c.drift),
    gauge("cost_error_median", MODEL, "Median relative cost-model error.",
          lambda m: m.cost_error.median),
    gauge("cost_error_p99", MODEL, "99th percentile relative error.", lambda m: m.cost_error.p99),
    gauge("replicas", CORE, "Replicas that may be given batches.", lambda c: len(c.replicas)),
    counter("batches", BATCH_ENDS, "Batches sent to replicas that have ended, by how.", _itself),
    gauge("cost_coefficient_seconds", COEFFICIENTS,
          "What a batch is predicted to take, by what of it.", _itself),
    gauge("tenant_queue_rows", FLOW, "Rows of a tenant that wait.",
          lambda flows: sum(f.rows + f.late_rows for f in flows)),
    gauge("tenant_backlog_seconds", FLOW,
          "Predicted service time of a tenant's rows that wait on time.",
          lambda flows: sum(f.waiting_s for f in flows)),
    counter("tenant_served_seconds", FLOW, "Service time that a tenant was given.",
            lambda flows: sum(f.served_s for f in flows)),
    gauge("replica_inflight_batches", REPLICA, "Batches of this gateway it holds.",
          lambda r: r.leases),
    gauge("replica_accounting_drift", REPLICA, "Accounted less actual, by its last answer.",
          lambda r: r.drift),
    gauge("replica_duty_cycle", DUTY, "Service seconds over wall seconds.", _itself),
    gauge("replica_device_memory_bytes", MEMORY,
          "Memory of its GPU: its own part, what is used by all, and the total.", _itself),

    gauge("channel_connections", MODEL, "Replicas with a connection that stands.",
          lambda m: m.reached),
    counter("channel_connects", MODEL, "Connections to replicas that were made.",
            lambda m: m.links.connects),
    counter("channel_disconnects", MODEL, "Of those, connections that have ended.",
            lambda m: m.links.disconnects),
    counter("channel_sent_frames", MODEL, "Frames sent to replicas.",
            lambda m: m.links.sent_frames),
    counter("channel_sent_bytes", MODEL, "Bytes of them.", lambda m: m.links.sent_bytes),
    counter("channel_received_frames", MODEL, "Frames that replicas sent.",
            lambda m: m.links.received_frames),
    counter("channel_received_bytes", MODEL, "Bytes of them.", lambda m: m.links.received_bytes),

    counter("bucket_switches", CORE, "Times that edges moved.", lambda c: c.edge_switches),
    counter("hedges", CORE, "Copies of batches that took long.", lambda c: c.hedges),
    counter("hedges_won", CORE, "Of those, first to answer.", lambda c: c.hedges_won),
    counter("ties", CORE, "Copies of batches that stood behind another.", lambda c: c.ties),
    counter("probes", CORE, "Batches to replicas that are left out.", lambda c: c.probes),
    counter("memory_faults", MODEL, "Runs that a device had too little memory for.",
            lambda m: m.memory_faults),
    counter("retries", CORE, "Batches of rows that had been lost.", lambda c: c.retries),
    counter("suspensions", CORE, "Replicas that stopped talking.", lambda c: c.suspensions),
    counter("moved_rows", CORE, "Rows that went elsewhere because of that.",
            lambda c: c.moved_rows),
    counter("late_rows_used", CORE, "Of those, answered first where they had been.",
            lambda c: c.late_rows_used),
    counter("evictions", CORE, "Staged batches that gave way.", lambda c: c.evictions),
    counter("preempted", CORE, "Work stopped for more urgent.", lambda c: c.preempted),
    gauge("copy_budget_seconds", CORE, "What copies may cost now.", lambda c: c.budget_s),
    gauge("utilisation", CORE, "Busy share of the replicas.", lambda c: c.utilisation),
    gauge("pressure", CORE, "0: at ease, 1: busy, 2: refuses some for load, 3: at least half.",
          lambda c: c.pressure),
    gauge("idle_gap_seconds", CORE,
          "Device time between a batch and the next that waited, lately.", lambda c: c.idle_gap_s),
    gauge("early_binding_seconds", CORE, "Time that a staged batch waits at its replica, lately.",
          lambda c: c.early_binding_s),
    gauge("batch_size_target", TARGETS, "Rows in a full batch of a bucket.", _itself),
    gauge("bucket_queue_rows", BUCKETS, "Rows that wait in a bucket.", _itself),
    gauge("replica_ejected", REPLICA, "1 while it is left out as slow, else 0.",
          lambda r: int(r.ejected)),
    gauge("replica_suspended", REPLICA, "1 while it says nothing and gets nothing, else 0.",
          lambda r: int(r.suspended)),
    gauge("replica_slowdown", REPLICA, "Measured over predicted service time.",
          lambda r: r.slowdown),
    gauge("group_healthy_replicas", GROUP, "Replicas of a group that are used.",
          lambda g: g.healthy),
    gauge("group_speed", GROUP, "Seconds of the first group's work that one does a second.",
          lambda g: g.speed),
    gauge("group_open", GROUP, "1 while it may be used; 0: a reserve that is not needed.",
          lambda g: int(g.is_open)),
    counter("offered_work_seconds", CORE, "Work that was asked for, before anything is refused.",
            lambda c: c.offered.work_s),
    counter("offered_requests", CORE, "Requests of it.", lambda c: c.offered.requests),
    counter("offered_length_work_seconds", WORK, "The same by length, of requests that were read.",
            _itself),
    counter("served_work_seconds", CORE, "Work that was answered, at the same price.",
            lambda c: c.offered.served_s),
    gauge("group_replicas", GROUPS, "Replicas of a group that may be given batches.",
          lambda g: g.running),
    gauge("wanted_replicas", WANTED, "Replicas that demand asks for.", _itself),
    gauge("target_replicas", TARGETED, "Replicas that the autoscaler has decided on.", _itself),
    gauge("starting_replicas", SCALED, "Replicas that start.", lambda o: o.starting),
    gauge("asleep", MODEL, "1 while the model answers without a replica, else 0.",
          lambda m: int(m.asleep)),
    gauge("scaling_reason", SCALED_WHY, "1 for why it is as many.", _itself),
    gauge("scaling_offered_rate", SCALED, "Work offered a second, at all gateways.",
          lambda o: o.offered_s),
    gauge("scaling_planned_rate", SCALED, "Work a second that is planned for.",
          lambda o: o.planned_s),
    gauge("scaling_forecast_rate", SCALED, "Work a second that is forecast; 0: none is.",
          lambda o: o.forecast_s),
    gauge("scaling_forecast_trusted", SCALED, "1 while the forecast is used, else 0.",
          lambda o: int(o.forecast_trusted)),
    gauge("time_to_capacity_seconds", SCALED,
          "Until a replica that is ordered now, or was before, serves.", lambda o: o.ready_in_s),
    gauge("controller_mode", MODE, "1 for the mode it is in.", _itself),
    gauge("controller_value", CONTROLLER, "What it has learnt.", lambda c: c.value),
    counter("controller_shed", CONTROLLER, "Requests it refused.", lambda c: c.shed),
    counter("controller_would_shed", CONTROLLER, "Requests it would have refused.",
            lambda c: c.would_shed),
    gauge("controller_tenant_value", LEARNT, "What it has learnt of a tenant.", _itself),
    gauge("controllers_frozen", GATEWAY, "1 while controllers are frozen, else 0.",
          lambda s: int(s.levels.frozen)),

    counter("key_requests", KEYS, "Requests that came by a key.", lambda k: k.uses),
    counter("key_expired_requests", KEYS_THAT_END, "Requests refused: their key had expired.",
            lambda k: k.late_uses),
    gauge("key_last_used_timestamp_seconds", KEYS_USED, "When a key was used last.", _itself),
    gauge("key_expires_timestamp_seconds", KEYS_ENDING, "When a key ends.", _itself),
    gauge("tenants_age_seconds", GATEWAY, "Since the tenants in force were last found current.",
          lambda s: s.levels.tenants_age_s),
    counter("serve_controller_ends", CONTROLLER_ENDS,
            "Times that the registry has ended Serve's controller.", _itself),

    gauge("preprocess_waiting_jobs", PREPROCESS, "Requests waiting for it.",
          lambda p: p.waiting_jobs),
    gauge("preprocess_busy_workers", PREPROCESS, "Threads at work.", lambda p: p.busy_workers),
    counter("preprocess_turns", PREPROCESS, "Pieces of work done.", lambda p: p.turns_total),
    counter("preprocess_refused", PREPROCESS, "Requests refused: it is full.",
            lambda p: p.refused_total),
    gauge("preprocess_cache_bytes", TEXT_CACHE, "Memory of cached tokens.", lambda c: c.bytes),
    counter("preprocess_cache_hits", TEXT_CACHE, "Texts found in the cache.",
            lambda c: c.hits_total),
    counter("preprocess_cache_misses", TEXT_CACHE, "Texts not found in the cache.",
            lambda c: c.misses_total),
    gauge("response_cache_bytes", CACHE, "Memory of kept answers.", lambda c: c.bytes),
    gauge("response_cache_rows", CACHE, "Rows whose answers are kept.", lambda c: c.entries),
    counter("response_cache_hits", CACHE, "Rows answered from the cache.", lambda c: c.hits_total),
    counter("response_cache_misses", CACHE, "Rows not found in it.", lambda c: c.misses_total),
    counter("response_cache_evictions", CACHE, "Dropped to make room.",
            lambda c: c.evictions_total),
    counter("coalesced", REUSE, "Requests answered by an identical one's run.",
            lambda r: r.coalesced_total),
    gauge("coalesced_waiting_rows", REUSE, "Rows that wait for an identical request's run.",
          lambda r: r.following_rows),
    counter("fallbacks", FALLBACKS, "Requests that a cheaper model answered.", _itself),

    counter("input_tokens", TOKENS, "Tokens of prompts that were read.", lambda t: t.input),
    counter("cached_tokens", TOKENS, "Of those, tokens that a replica had read before.",
            lambda t: t.cached),
    counter("output_tokens", TOKENS, "Tokens that were generated.", lambda t: t.output),
    gauge("replica_running_sequences", ENGINE, "Sequences it works on.", lambda e: e.running),
    gauge("replica_waiting_sequences", ENGINE, "Sequences that wait in it.", lambda e: e.waiting),
    gauge("replica_cache_used_ratio", ENGINE, "Share of its key-value cache in use.",
          lambda e: e.cache_used),
    counter("replica_preemptions", ENGINE, "Sequences it stopped for want of room.",
            lambda e: e.preemptions),
    counter("replica_prefix_queries", ENGINE, "Prompt tokens it looked for in its cache.",
            lambda e: e.prefix_queries),
    counter("replica_prefix_hits", ENGINE, "Of those, tokens found.", lambda e: e.prefix_hits),
    gauge("replicas_telling_blocks", GENERATING,
          "Replicas that tell which blocks of prompts they hold.", lambda g: g.told_replicas),
    counter("predicted_cached_tokens", CACHED,
            "Prompt tokens that were predicted to be cached where they were sent.",
            lambda c: c.predicted),
    counter("found_cached_tokens", CACHED, "Prompt tokens of these requests that were.",
            lambda c: c.found),
    counter("replica_engine_steps", ENGINE, "Steps it made.", lambda e: e.steps),
    gauge("replica_adapters_resident", ENGINE, "Adapters it holds.",
          lambda e: len(e.adapters.held) if e.adapters else 0),
    counter("replica_adapter_loads", ENGINE, "Adapters it loaded.",
            lambda e: e.adapters.loads if e.adapters else 0),
    counter("replica_adapter_failures", ENGINE, "Adapters it could not load.",
            lambda e: e.adapters.failures if e.adapters else 0),
    counter("replica_draft_tokens", ENGINE, "Tokens proposed by speculative decoding.",
            lambda e: e.drafted),
    counter("replica_accepted_draft_tokens", ENGINE, "Of those, tokens kept.",
            lambda e: e.accepted),
)
# fmt: on


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN_WHOLE_NUMBERS = 1_000_000  # from here on Go writes exponents


def families(gateway: str, scrape: Scrape) -> Iterator[Metric]:
    """Every family of the page, in its order, `gateway` being the first label."""
    for row in FAMILIES:
        if isinstance(row, HistogramFamily):
            yield _histogram(gateway, row, scrape)
            continue
        items = scrape.of(row.scope)
        if items is not None:
            yield _counter_or_gauge(gateway, row, items)


def _counter_or_gauge(gateway: str, row: Family[Any], items: Iterable[Any]) -> Metric:
    family = (CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily)(
        f"headrace_{row.name}", row.help, labels=("gateway", *row.scope.labels)
    )
    read = row.read
    for labels, item in items:
        family.add_metric((gateway, *labels), read(item))
    return family


def _histogram(gateway: str, row: HistogramFamily, scrape: Scrape) -> Metric:
    family = HistogramMetricFamily(
        f"headrace_{row.name}", row.help, labels=("gateway", *row.labels)
    )
    table = row.table(scrape.recorded)
    bounds = [_go_float(edge) for edge in (*table.edges, float("inf"))]
    for key, counts, total in table:
        buckets = list(zip(bounds, counts, strict=True))
        family.add_metric((gateway, *key), buckets, sum_value=total)
    return family


def text(families: Iterable[Metric]) -> bytes:
    lines: list[str] = []
    for metric in families:
        name = metric.name + "_total" if metric.type == "counter" else metric.name
        lines.append(f"# HELP {name} {_escaped_help(metric.documentation)}\n")
        lines.append(f"# TYPE {name} {metric.type}\n")
        for sample in metric.samples:
            labels = _labels(tuple(sample.labels.items()))
            lines.append(f"{sample.name}{labels} {_number(sample.value)}\n")
    return "".join(lines).encode()


@lru_cache(maxsize=65_536)
def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if isinstance(value, int) and 0 <= value < _PLAIN_WHOLE_NUMBERS:
        return f"{value}.0"
    return _go_float(value)


def _go_float(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]
