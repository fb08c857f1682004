"""Sets a model's number of replicas by hand, from inside the cluster.

The autoscaler keeps the number, across its own restarts too, until it is told to decide again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class ManualTarget:
    """The number of replicas to set."""

    model: str
    group: str = ""  # "": of a model without groups
    replicas: int | None = None  # None: let the autoscaler decide


def set_target(target: ManualTarget) -> dict[str, Any]:
    """Set the number. Returns the target, or {"error": what is wrong, "away": whether only because
    the autoscaler is away}. Needs an initialised Ray."""
    import ray

    from deployments.process import actors

    try:
        asked = actors.running_autoscaler().pin.remote(target.model, target.group, target.replicas)
        complaint: str = ray.get(asked, timeout=_ANSWER_S)
    except (ValueError, ray.exceptions.RayError) as away:
        said = f"the autoscaler is away ({type(away).__name__}); try again in some seconds"
        return {"error": said, "away": True}
    return {"error": complaint, "away": False} if complaint else asdict(target)
