"""What a gateway holds at this moment: levels, which are read, not counted, when somebody asks.

Filled by the gateway from each model's dispatcher snapshot, from what replicas report on their
answers and from the preprocessing pool. `/metrics` shows all of it; `headrace status` a part, as
plain data that is pushed to the registry once a second (sums over gateways are made where it is
asked for). Seconds, rows, leases; `drift` is accounted - actual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

from deployments.contract.registry import ModelSnapshot
from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.queues.connections import LinkCounts
from deployments.gateway.reuse.answer_reuse import ReuseLevels
from deployments.gateway.telemetry.key_uses import KeyLabels, KeyUse
from deployments.gateway.tenancy.fair_thread_pool import TurnStatistics
from deployments.preprocess.tokenizer import CacheStatistics
from routers.api.snapshot import Snapshot
from routers.estimates.cost.model import Coefficients, CostError
from runtimes.types import DeviceMemory, EngineLoad

_NO_ERROR = CostError(0.0, 0.0, 0)
_NO_COST = Coefficients(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ModelLevels:
    """`core`: the model's dispatcher as it is now. `cost_error`: relative error of predictions over
    recent batches, `coefficients`: what they are made from. `duty`: service seconds over wall
    seconds by replica, 0 to 1, as it last said. `batch_ends`: how many batches have ended how.
    `text_cache`: of a model that takes texts; `reuse`: of one that keeps or shares answers. Of one
    that generates, `engines`: each replica's own account; `output_tokens`: that came, ever.
    `reached`: replicas with a connection that stands; `links`: what went over the connections.
    `asleep`: it answers without a replica. `outlook`: what the autoscaler last said of it.
    `device_memory`: of each replica on a GPU; `memory_faults`: runs that devices had no memory for.
    `ended`: replicas that have lately said that they end, seconds ago and why.
    """

    model: str
    core: Snapshot
    cost_error: CostError = _NO_ERROR
    coefficients: Coefficients = _NO_COST
    duty: Mapping[str, float] = field(default_factory=dict)
    text_cache: CacheStatistics | None = None
    batch_ends: Mapping[str, int] = field(default_factory=dict)
    reuse: ReuseLevels | None = None
    engines: Mapping[str, EngineLoad] = field(default_factory=dict)
    output_tokens: int = 0
    reached: int = 0
    links: LinkCounts = field(default_factory=LinkCounts)
    asleep: bool = False
    outlook: ModelOutlook | None = None
    device_memory: Mapping[str, DeviceMemory] = field(default_factory=dict)
    memory_faults: int = 0
    ended: Mapping[str, tuple[float, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayLevels:
    """`frozen`: whether the controllers of all models are. `ready`: of every declared model,
    whether it answers, by its name and whether it is optional. `tenants_age_s`: since the tenants
    in force were last found to be those that are to be. `controller_ends`: how often the registry
    has ended Serve's controller; None before it was heard."""

    models: tuple[ModelLevels, ...] = ()
    preprocess: TurnStatistics | None = None
    frozen: bool = False
    ready: Mapping[tuple[str, bool], bool] = field(default_factory=dict)
    keys: Sequence[tuple[KeyLabels, KeyUse]] = ()
    tenants_age_s: float = 0.0
    controller_ends: int | None = None


class TokenRates:
    """Output tokens a second of each model, between one look and the next."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[float, int]] = {}

    def of(self, model: str, total: int, now: float) -> float:
        at, before = self._looks.get(model, (now, total))
        self._looks[model] = now, total
        return max(total - before, 0) / (now - at) if now > at else 0.0


def model_status(levels: ModelLevels, tokens_per_s: float = 0.0) -> ModelSnapshot:
    core = levels.core
    return ModelSnapshot(
        replicas=len(core.replicas),
        waiting_rows=core.waiting_rows,
        late_rows=core.late_rows,
        oldest_wait_s=core.oldest_wait_s,
        leases=core.leases,
        backlog_s=core.backlog_s,
        drift=core.drift,
        rows_by_bucket={str(edge): rows for edge, rows in core.rows_by_bucket if rows},
        rows_by_tenant=dict(_rows_by_tenant(core)),
        tokens_per_s=tokens_per_s,
        engines={
            replica: [load.running, load.waiting, load.cache_used]
            for replica, load in levels.engines.items()
        },
        ejected=[replica.replica_id for replica in core.replicas if replica.ejected],
        asleep=levels.asleep,
        cost_fit=astuple(levels.coefficients),
        device_memory=dict(levels.device_memory),
        ended=dict(levels.ended),
    )


def _rows_by_tenant(core: Snapshot) -> Counter[str]:
    rows: Counter[str] = Counter()
    for flow in core.flows:
        if flow.rows or flow.late_rows:
            rows[flow.tenant] += flow.rows + flow.late_rows
    return rows
