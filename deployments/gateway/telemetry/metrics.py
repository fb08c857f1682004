"""What this gateway counts: for the page `/metrics`, and per model for Triton's statistics.

Recording a request costs about 1 µs (docs/observability.md): it only appends. Levels are read from
the gateway at a scrape. Model, tenant and priority labels come from settings (`LabelNames`), so
that no caller can make time series. Statistics count requests when they end and batches when they
come back; a request's times in a batch are the whole batch's, as in Triton. They begin anew with a
version and count nothing that a canary answered. A model that generates has one execution per
request: its engine's steps are not seen here. For the event loop's thread alone. Source: Triton,
"Statistics Extension".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from deployments.contract.description import version_number
from deployments.gateway.http.protocols import triton
from deployments.gateway.queues.pending_requests import BatchRecord
from deployments.gateway.services import RequestContext
from deployments.gateway.telemetry import metric_families
from deployments.gateway.telemetry.levels import GatewayLevels
from deployments.gateway.telemetry.metric_families import Scrape
from deployments.gateway.telemetry.sample_tables import (
    ANSWERED,
    BatchSample,
    BatchTables,
    FlowLabels,
    GenerationSample,
    GenerationTables,
    LabelNames,
    Labels,
    Recorded,
    RequestTables,
    StageTable,
    Times,
)
from deployments.settings.gateway import PRIORITIES

PAGE_KEPT_S = 1.0
_MAX_FORMS = 4  # of a page that are kept: a caller may name others by `accept`


class GatewayMetrics:
    """`gateway`: the constant label. `levels` is called at each scrape; it should be cheap."""

    def __init__(
        self,
        gateway: str,
        models: Iterable[str] = (),
        tenants: Iterable[str] = (),
        levels: Callable[[], GatewayLevels] = GatewayLevels,
        priorities: Iterable[str] = PRIORITIES,
    ) -> None:
        self.names = LabelNames(models, tenants, priorities)
        stages = StageTable()
        self._recorded = Recorded(
            self.names,
            RequestTables(self.names, stages),
            BatchTables(self.names, stages),
            stages,
            GenerationTables(self.names),
        )
        self._gateway, self._levels = gateway, levels
        self._pages: dict[str, tuple[float, tuple[bytes, str]]] = {}  # (when, page) by content type

    def arrival(self, model: str, tenant: str, priority: str) -> None:
        """A request was read so far that we know whose it is and what it wants."""
        arrivals = self._recorded.arrivals
        key = (model, tenant, priority)
        if key not in arrivals:
            key = self.names.flow(model, tenant, priority)
            arrivals.setdefault(key, 0)
            self._recorded.kept.setdefault(key, 0)
        arrivals[key] += 1

    def kept(self, model: str, tenant: str, priority: str) -> None:
        """A request that had arrived was answered within what its model promises."""
        kept, key = self._recorded.kept, (model, tenant, priority)
        if key not in kept:
            key = self.names.flow(model, tenant, priority)
        kept[key] = kept.get(key, 0) + 1

    def request(self, labels: Labels, times: Times, response_bytes: float = 0.0) -> None:
        """A request ended, in whichever way."""
        self._recorded.requests.add(labels, times, response_bytes)

    def generated(self, flow: FlowLabels, sample: GenerationSample) -> None:
        """A request to generate has ended; `flow`: model, tenant and priority."""
        self._recorded.generation.add(flow, sample)

    def fallback(self, model: str, to: str) -> None:
        """A request for `model` was answered by the model it falls back to."""
        key = self.names.model(model), self.names.model(to)
        self._recorded.fallbacks[key] = self._recorded.fallbacks.get(key, 0) + 1

    def batch(self, sample: BatchSample) -> None:
        """A batch came back from its replica."""
        self._recorded.batches.add(sample)

    def connection_opened(self) -> None:
        self._recorded.connections_opened += 1

    def connection_reused(self) -> None:
        """A request came over a connection that had carried one before."""
        self._recorded.connections_reused += 1

    def flush(self) -> None:
        """Counts what waits to be counted; once a second keeps a scrape short."""
        self._recorded.flush()

    def page(self, accept: str, now: float) -> tuple[bytes, str]:
        """As `exposition`, at most `PAGE_KEPT_S` old: however often it is asked for, the loop makes
        one of each form a second."""
        form = _form(accept)
        kept = self._pages.get(form)
        if kept is not None and now - kept[0] < PAGE_KEPT_S:
            return kept[1]
        page = self.exposition(accept)
        if len(self._pages) >= _MAX_FORMS:
            self._pages.clear()
        self._pages[form] = now, page
        return page

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: Prometheus's text, or OpenMetrics if `accept` insists."""
        if _form(accept) == metric_families.CONTENT_TYPE:
            return metric_families.text(self.collect()), metric_families.CONTENT_TYPE
        encode, content_type = choose_encoder(accept)
        # An encoder wants a registry and only ever calls `collect`.
        return encode(cast(CollectorRegistry, self)), content_type

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's collector interface."""
        self.flush()
        return metric_families.families(self._gateway, Scrape(self._recorded, self._levels()))


def _form(accept: str) -> str:
    """The content type that a scraper gets."""
    if "openmetrics" not in accept or "text/plain" in accept:
        return metric_families.CONTENT_TYPE
    return choose_encoder(accept)[1]


@dataclass(slots=True)
class DurationTotal:
    """How often something happened, and for how long in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds * count


@dataclass(slots=True)
class BatchSizeStatistics:
    """Of batches of one size; times per batch."""

    compute_input: DurationTotal = field(default_factory=DurationTotal)
    compute_infer: DurationTotal = field(default_factory=DurationTotal)
    compute_output: DurationTotal = field(default_factory=DurationTotal)


@dataclass(slots=True)
class ModelStatistics:
    """Of one version. `compute_input` is padding and copying in, `compute_output` copying out and
    what follows; `cache_hit` counts requests whose rows all had been answered before."""

    version: str
    last_inference_ms: int = 0  # since the epoch; 0: none
    inference_count: int = 0  # rows, or generated answers
    execution_count: int = 0  # batches, or generated answers
    success: DurationTotal = field(default_factory=DurationTotal)
    fail: DurationTotal = field(default_factory=DurationTotal)
    queue: DurationTotal = field(default_factory=DurationTotal)
    compute_input: DurationTotal = field(default_factory=DurationTotal)
    compute_infer: DurationTotal = field(default_factory=DurationTotal)
    compute_output: DurationTotal = field(default_factory=DurationTotal)
    cache_hit: DurationTotal = field(default_factory=DurationTotal)
    cache_miss: DurationTotal = field(default_factory=DurationTotal)
    by_size: dict[int, BatchSizeStatistics] = field(default_factory=dict)

    def ended(self, context: RequestContext, total_s: float) -> None:
        """A request ended, in whichever way."""
        if context.outcome != ANSWERED:
            self.fail.add(total_s)
            return
        self.success.add(total_s)
        if context.ran:
            self.queue.add(context.queue_wait_s)
        if context.generated is not None:
            self._executed(1)
            self.compute_infer.add(max(total_s - context.queue_wait_s, 0.0))
        reused = context.reused
        if reused is not None and reused.kept is not None:
            hit = reused.kept == len(reused.answers)
            (self.cache_hit if hit else self.cache_miss).add(total_s)

    def ran(self, record: BatchRecord) -> None:
        """A batch came back."""
        pad_s, copy_in_s, run_s, copy_out_s, post_s = record.reply.stages
        of_size = self.by_size.setdefault(record.size, BatchSizeStatistics())
        self._executed(record.size)
        for total, alike, seconds in (
            (self.compute_input, of_size.compute_input, pad_s + copy_in_s),
            (self.compute_infer, of_size.compute_infer, run_s),
            (self.compute_output, of_size.compute_output, copy_out_s + post_s),
        ):
            total.add(seconds, len(record.traces))
            alike.add(seconds)

    def entry(self, name: str) -> triton.ModelStatisticsEntry:
        """What Triton's page says of the model `name`."""
        fields = triton.InferenceTimes.__struct_fields__
        sizes = [
            triton.BatchTimes(
                size,
                _duration(each.compute_input),
                _duration(each.compute_infer),
                _duration(each.compute_output),
            )
            for size, each in sorted(self.by_size.items())
        ]
        return triton.ModelStatisticsEntry(
            name,
            version_number(self.version),
            self.last_inference_ms,
            self.inference_count,
            self.execution_count,
            triton.InferenceTimes(**{field: _duration(getattr(self, field)) for field in fields}),
            sizes,
        )

    def _executed(self, rows: int) -> None:
        self.inference_count += rows
        self.execution_count += 1
        self.last_inference_ms = int(time.time() * 1000)


def _duration(found: DurationTotal) -> triton.StatisticDuration:
    return triton.StatisticDuration(found.count, round(found.seconds * 1e9))


class InferenceStatistics:
    """Of all models that are served."""

    def __init__(self) -> None:
        self._by_model: dict[str, ModelStatistics] = {}

    def declare(self, versions: Mapping[str, str]) -> None:
        """The live versions, by model. Another version begins at nothing."""
        known = self._by_model
        self._by_model = {
            name: known[name]
            if name in known and known[name].version == version
            else ModelStatistics(version)
            for name, version in versions.items()
        }

    def of(self, model: str, version: str) -> ModelStatistics:
        """Of a live version; nothing if it was declared neither now nor before."""
        found = self._by_model.get(model)
        return found if found is not None and found.version == version else ModelStatistics(version)

    def ended(self, context: RequestContext, total_s: float) -> None:
        found = self._by_model.get(context.model)
        # A request that was refused before it was given a version counts too.
        if found is not None and context.version in ("", found.version):
            found.ended(context, total_s)

    def ran(self, model: str, record: BatchRecord) -> None:
        found = self._by_model.get(model)
        if found is not None:
            found.ran(record)
