"""What does a gateway hold at this moment? The levels that are read, not counted, at a scrape.

Filled by the gateway from each model's dispatcher snapshot, from what replicas report on their
answers and from the preprocessing pool. Seconds, rows, leases; `drift` is accounted - actual.
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.preprocess.text_cache import CacheStatistics
from deployments.preprocess.turns import TurnStatistics


@dataclass(frozen=True, slots=True)
class ReplicaLevels:
    """`duty_cycle`: service seconds over wall seconds, 0 to 1, as the replica last reported it."""

    replica: str
    leases: int
    drift: int
    duty_cycle: float


@dataclass(frozen=True, slots=True)
class ModelLevels:
    """`cost_error_*`: relative error of predicted service seconds over recent batches.
    `text_cache`: of a model that takes texts."""

    model: str
    waiting_rows: int
    late_rows: int
    waiting_requests: int
    inflight_batches: int
    inflight_rows: int
    drift: int
    backlog_s: float
    oldest_wait_s: float
    cost_error_median: float = 0.0
    cost_error_p99: float = 0.0
    replicas: tuple[ReplicaLevels, ...] = ()
    text_cache: CacheStatistics | None = None


@dataclass(frozen=True, slots=True)
class GatewayLevels:
    models: tuple[ModelLevels, ...] = ()
    preprocess: TurnStatistics | None = None
