"""What does a gateway tell `headrace status` of its models?

Plain data, pushed to the registry once a second. Sums over gateways are made where it is asked for.
"""

from __future__ import annotations

from typing import Any

from deployments.observability.levels import ModelLevels


def model_status(levels: ModelLevels) -> dict[str, Any]:
    """`rows_by_bucket`: rows that wait by upper edge, tokens, the empty ones left out."""
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
    }
