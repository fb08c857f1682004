"""What does a gateway hold at this moment? The levels that are read, not counted, at a scrape.

Filled by the gateway from each model's dispatcher snapshot, from what replicas report on their
answers and from the preprocessing pool. Seconds, rows, leases; `drift` is accounted - actual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deployments.contract.preprocess.tokenizer import CacheStatistics
from deployments.gateway.preprocess.fair_thread_pool import TurnStatistics
from deployments.gateway.reuse.answer_reuse import ReuseLevels
from routers.cost.model import Coefficients, CostError
from routers.types import Snapshot
from runtimes.types import EngineLoad

_NO_ERROR = CostError(0.0, 0.0, 0)
_NO_COST = Coefficients(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ModelLevels:
    """`core`: the model's dispatcher as it is now. `cost_error`: relative error of predictions over
    recent batches, `coefficients`: what they are made from. `duty`: service seconds over wall
    seconds by replica, 0 to 1, as it last said. `batch_ends`: how many batches have ended how.
    `text_cache`: of a model that takes texts; `rungs`: of one that keeps or shares answers. Of one
    that generates, `engines`: each replica's own account; `output_tokens`: that came, ever.
    """

    model: str
    core: Snapshot
    cost_error: CostError = _NO_ERROR
    coefficients: Coefficients = _NO_COST
    duty: Mapping[str, float] = field(default_factory=dict)
    text_cache: CacheStatistics | None = None
    batch_ends: Mapping[str, int] = field(default_factory=dict)
    rungs: ReuseLevels | None = None
    engines: Mapping[str, EngineLoad] = field(default_factory=dict)
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GatewayLevels:
    """`frozen`: whether the controllers of all models are."""

    models: tuple[ModelLevels, ...] = ()
    preprocess: TurnStatistics | None = None
    frozen: bool = False
