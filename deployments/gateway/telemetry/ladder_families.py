"""How often was a request spared its run, or a refusal? As Prometheus metric families.

Cache and coalescing are read from each model that has them, at a scrape; what a cheaper model
answered is counted as it lands. Rows for the cache, which answers by row, requests for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deployments.gateway.reuse.response_cache import ResponseCacheStatistics
from deployments.gateway.telemetry.levels import ModelLevels

_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
_CACHE: tuple[tuple[_Family, str, str, Callable[[ResponseCacheStatistics], float]], ...] = (
    (GaugeMetricFamily, "bytes", "Memory of kept answers.", lambda c: c.bytes),
    (GaugeMetricFamily, "rows", "Rows whose answers are kept.", lambda c: c.entries),
    (CounterMetricFamily, "hits", "Rows answered from the cache.", lambda c: c.hits_total),
    (CounterMetricFamily, "misses", "Rows not found in it.", lambda c: c.misses_total),
    (CounterMetricFamily, "evictions", "Dropped to make room.", lambda c: c.evictions_total),
)


def ladder_families(
    gateway: str, models: Sequence[ModelLevels], fallbacks: Mapping[tuple[str, str], int]
) -> Iterator[Metric]:
    """`fallbacks`: requests by the model that was asked and the one that answered."""
    yield from _caches(gateway, models)
    yield from _flights(gateway, models)
    family = CounterMetricFamily(
        "headrace_fallbacks",
        "Requests that a cheaper model answered.",
        labels=("gateway", "model", "fallback"),
    )
    for names, count in fallbacks.items():
        family.add_metric([gateway, *names], count)
    yield family


def _caches(gateway: str, models: Sequence[ModelLevels]) -> Iterator[Metric]:
    caches = [
        (model.model, model.rungs.cache)
        for model in models
        if model.rungs is not None and model.rungs.cache is not None
    ]
    for kind, name, text, read in _CACHE:
        family = kind(f"headrace_response_cache_{name}", text, labels=("gateway", "model"))
        for model, cache in caches:
            family.add_metric([gateway, model], read(cache))
        yield family


def _flights(gateway: str, models: Sequence[ModelLevels]) -> Iterator[Metric]:
    coalesced = CounterMetricFamily(
        "headrace_coalesced",
        "Requests answered by an identical one's run.",
        labels=("gateway", "model"),
    )
    following = GaugeMetricFamily(
        "headrace_coalesced_waiting_rows",
        "Rows that wait for an identical request's run.",
        labels=("gateway", "model"),
    )
    for model in models:
        if model.rungs is not None:
            coalesced.add_metric([gateway, model.model], model.rungs.coalesced_total)
            following.add_metric([gateway, model.model], model.rungs.following_rows)
    yield coalesced
    yield following
