"""What this gateway counts and measures, and the page `/metrics` that says so.

Recording costs about 1 µs a request (docs/observability.md has the numbers) because it only
appends: histograms are counted in bulk, and levels are read from the gateway at a scrape. For the
event loop's thread alone. Every sample carries the gateway's name; model, tenant and priority
labels come from settings (`label_names`), so that no caller can make time series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from deployments.gateway.telemetry import exposition
from deployments.gateway.telemetry.label_names import LabelNames
from deployments.gateway.telemetry.levels import GatewayLevels
from deployments.gateway.telemetry.metric_families import Scrape
from deployments.gateway.telemetry.sample_tables import (
    BatchSample,
    BatchTables,
    FlowLabels,
    GenerationSample,
    GenerationTables,
    Recorded,
    RequestLabels,
    RequestTables,
    RequestTimes,
    StageTable,
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

    def request(
        self, labels: RequestLabels, times: RequestTimes, response_bytes: float = 0.0
    ) -> None:
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
        if _form(accept) == exposition.CONTENT_TYPE:
            return exposition.text(self.collect()), exposition.CONTENT_TYPE
        encode, content_type = choose_encoder(accept)
        # An encoder wants a registry and only ever calls `collect`.
        return encode(cast(CollectorRegistry, self)), content_type

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's collector interface."""
        self.flush()
        return exposition.families(self._gateway, Scrape(self._recorded, self._levels()))


def _form(accept: str) -> str:
    """The content type that a scraper gets."""
    if "openmetrics" not in accept or "text/plain" in accept:
        return exposition.CONTENT_TYPE
    return choose_encoder(accept)[1]
