"""What does a gateway tell `headrace status` of its models?

Plain data, pushed to the registry once a second. Sums over gateways are made where it is asked for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from deployments.gateway.telemetry.levels import ModelLevels
from routers.types import Snapshot


class TokenPace:
    """Output tokens a second of each model, between one look and the next."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[float, int]] = {}

    def of(self, model: str, total: int, now: float) -> float:
        at, before = self._looks.get(model, (now, total))
        self._looks[model] = now, total
        return max(total - before, 0) / (now - at) if now > at else 0.0


def model_status(levels: ModelLevels, tokens_per_s: float = 0.0) -> dict[str, Any]:
    """`rows_by_bucket`: rows that wait by upper edge, tokens; `rows_by_tenant`: by name; the empty
    ones left out. `engines`: running and waiting sequences and the share of the cache in use, by
    replica, of a model that generates. `ejected`: replicas left out as slow."""
    core = levels.core
    return {
        "replicas": len(core.replicas),
        "waiting_rows": core.waiting_rows,
        "late_rows": core.late_rows,
        "oldest_wait_s": core.oldest_wait_s,
        "leases": core.leases,
        "backlog_s": core.backlog_s,
        "drift": core.drift,
        "rows_by_bucket": {str(edge): rows for edge, rows in core.rows_by_bucket if rows},
        "rows_by_tenant": dict(_rows_by_tenant(core)),
        "tokens_per_s": tokens_per_s,
        "engines": {
            replica: [load.running, load.waiting, load.cache_used]
            for replica, load in levels.engines.items()
        },
        "ejected": [replica.replica_id for replica in core.replicas if replica.ejected],
    }


def _rows_by_tenant(core: Snapshot) -> Counter[str]:
    rows: Counter[str] = Counter()
    for flow in core.flows:
        if flow.rows or flow.late_rows:
            rows[flow.tenant] += flow.rows + flow.late_rows
    return rows
