"""How do tokens, times to them and engines' own accounts read as Prometheus metric families?

Tokens and times are counted by this gateway. What an engine says of itself is about all gateways'
requests, and every gateway passes it on: take the greatest of them, not the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deployments.gateway.telemetry.core_families import FLOW, Kind, Models
from deployments.gateway.telemetry.generation_tables import GenerationTables
from runtimes.types import EngineLoad

_TOKENS = (
    ("input_tokens", "input", "Tokens of prompts that were answered."),
    ("cached_tokens", "cached", "Of those, tokens that a replica had read before."),
    ("output_tokens", "output", "Tokens that were generated."),
    ("slo_kept", "kept", "Answers within both slo.ttft_ms and slo.tpot_ms."),
)
_ENGINE: tuple[tuple[Kind, str, str, Callable[[EngineLoad], float]], ...] = (
    (GaugeMetricFamily, "running_sequences", "Sequences it works on.", lambda e: e.running),
    (GaugeMetricFamily, "waiting_sequences", "Sequences that wait in it.", lambda e: e.waiting),
    (
        GaugeMetricFamily,
        "cache_used_ratio",
        "Share of its key-value cache in use.",
        lambda e: e.cache_used,
    ),
    (
        CounterMetricFamily,
        "preemptions",
        "Sequences it stopped for want of room.",
        lambda e: e.preemptions,
    ),
    (
        CounterMetricFamily,
        "prefix_queries",
        "Prompt tokens it looked for in its cache.",
        lambda e: e.prefix_queries,
    ),
    (CounterMetricFamily, "prefix_hits", "Of those, tokens found.", lambda e: e.prefix_hits),
    (CounterMetricFamily, "engine_steps", "Steps it made.", lambda e: e.steps),
)


def generation_families(gateway: str, models: Models, tables: GenerationTables) -> Iterator[Metric]:
    for name, what, text in _TOKENS:
        family = CounterMetricFamily(f"headrace_{name}", text, labels=("gateway", *FLOW))
        for flow, count in tables.counted(what):
            family.add_metric([gateway, *flow], count)
        yield family
    for kind, name, text, read in _ENGINE:
        engine = kind(f"headrace_replica_{name}", text, labels=("gateway", "model", "replica"))
        for model in models:
            for replica_id, load in model.engines.items():
                engine.add_metric([gateway, model.model, replica_id], read(load))
        yield engine
