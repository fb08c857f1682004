"""May this request be queued at all?

Bounds of the model, its queue and its tenant: length, rows, predicted seconds, time left. It reads
counts only, so a refusal costs the same however much waits. A refusal is final and carries, where
the queue is the reason, the seconds after which asking again may help: the predicted work that
waits over the replicas that serve it. Deadlines and rates are not decided here.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

from routers.errors import BadSettings
from routers.request_queue import RequestQueue
from routers.settings import DispatcherSettings
from routers.types import Reason, Request

MIN_RETRY_S = 0.05
MAX_RETRY_S = 60.0


def refusal(
    request: Request, waiting: RequestQueue, settings: DispatcherSettings, replicas: int, now: float
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
    if request.tenant_rows and waiting.rows_of(request.tenant) + rows > request.tenant_rows:
        return Reason.TENANT_FULL
    if waiting.rows + rows > settings.max_queue_rows:
        return Reason.QUEUE_FULL
    most_s = settings.admission.max_queue_s
    if most_s < inf and waiting.rows and waiting.seconds > most_s * max(1, replicas):
        return Reason.QUEUE_FULL
    return None


def retry_after_s(work_s: float, replicas: int) -> float:
    return min(MAX_RETRY_S, max(MIN_RETRY_S, work_s / max(1, replicas)))


def validate(settings: DispatcherSettings) -> None:
    """Raises `BadSettings` naming the field; the core relies on what is checked here."""
    edges = settings.bucket_edges
    if not edges or edges[0] < 1 or any(a >= b for a, b in pairwise(edges)):
        raise BadSettings(f"bucket_edges must be ascending and at least 1, got {edges}")
    for name in ("max_size", "max_tokens", "max_queue_rows", "priorities"):
        if getattr(settings, name) < 1:
            raise BadSettings(f"{name} must be at least 1, got {getattr(settings, name)}")
    for name in ("max_late_rows", "ageing_s", "initial_cost_s", "slo_s", "max_slo_share"):
        if getattr(settings, name) < 0:
            raise BadSettings(f"{name} must not be negative, got {getattr(settings, name)}")
    _one_of("late", settings.late, ("demote", "refuse"))
    _one_of("hold", settings.hold, ("never", "auto"))


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadSettings(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
