"""May this request be queued at all?

Bounds of the model and its queue: length, rows, time left. It reads counts only, so a refusal costs
the same however much waits. A refusal is final and carries, where the queue is the reason, the
seconds after which asking again may help: the predicted work that waits over the replicas that
serve it. Rates and shares of tenants are not decided here.
"""

from __future__ import annotations

from itertools import pairwise

from routers.buckets import Bucket, Waiting
from routers.cost import CostModel
from routers.errors import BadSettings
from routers.settings import DispatcherSettings
from routers.types import Reason, Request

MIN_RETRY_S = 0.05
MAX_RETRY_S = 60.0


def refusal(
    request: Request, waiting: Waiting, settings: DispatcherSettings, now: float
) -> Reason | None:
    """Why the request is not queued, or None. What can never succeed is said first."""
    lengths = request.lengths
    rows = len(lengths)
    longest = lengths[0] if rows == 1 else max(lengths)
    if longest > settings.bucket_edges[-1]:
        return Reason.TOO_LONG
    if rows > settings.max_queue_rows:
        return Reason.TOO_LARGE
    if request.expires <= now:
        return Reason.EXPIRED
    if waiting.rows + rows > settings.max_queue_rows:
        return Reason.QUEUE_FULL
    return None


def backlog_s(waiting: Waiting, cost: CostModel, *, pads: bool) -> float:
    """Predicted device seconds of all that waits, as if on one replica, in full batches."""
    return sum(_bucket_s(bucket, cost, pads) for bucket in waiting.queues() if bucket.rows)


def retry_after_s(work_s: float, replicas: int) -> float:
    return min(MAX_RETRY_S, max(MIN_RETRY_S, work_s / max(1, replicas)))


def validate(settings: DispatcherSettings) -> None:
    """Raises `BadSettings` naming the field; the core relies on what is checked here."""
    edges = settings.bucket_edges
    if not edges or edges[0] < 1 or any(a >= b for a, b in pairwise(edges)):
        raise BadSettings(f"bucket_edges must be ascending and at least 1, got {edges}")
    for name in ("max_size", "max_tokens", "max_queue_rows"):
        if getattr(settings, name) < 1:
            raise BadSettings(f"{name} must be at least 1, got {getattr(settings, name)}")
    for name in ("max_late_rows", "max_passed_over_s", "initial_cost_s"):
        if getattr(settings, name) < 0:
            raise BadSettings(f"{name} must not be negative, got {getattr(settings, name)}")
    if settings.late not in ("demote", "refuse"):
        raise BadSettings(f"late must be 'demote' or 'refuse', got {settings.late!r}")


def _bucket_s(bucket: Bucket, cost: CostModel, pads: bool) -> float:
    width = bucket.edge if pads and bucket.index >= 0 else -(-bucket.tokens // bucket.rows)
    full, rest = divmod(bucket.rows, bucket.fit)
    return full * cost.predict(bucket.fit, width) + (cost.predict(rest, width) if rest else 0.0)
