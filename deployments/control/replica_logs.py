"""What the replicas of a model wrote, read from a Ray cluster's dashboard.

Source: Ray 2.60 `dashboard/modules/state/state_head.py` (`GET /api/v0/logs/{file|stream}`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from deployments.contract.app_names import GATEWAY_APP, is_model_app, model_app, model_name
from deployments.contract.rollout.terms import canary_of, is_canary
from deployments.control.dashboard import ClusterError, Dashboard

_PATH = "/api/v0/logs"
_ALL = -1


def replicas(details: Mapping[str, Any], model: str) -> dict[str, str]:
    """Actor ids of the model's processes, its canary's included, by the replicas' names. `details`:
    Serve's. Raises ClusterError if the cluster does not have the model."""
    apps = details.get("applications", {})
    mine = [apps[app] for name in (model, canary_of(model)) if (app := model_app(name)) in apps]
    if not mine:
        models = [model_name(app) for app in apps if is_model_app(app)]
        there = ", ".join(sorted(m for m in models if not is_canary(m))) or "none"
        raise ClusterError(f"{model} is no model of that cluster; must be one of: {there}")
    return _actors(mine)


def gateways(details: Mapping[str, Any]) -> dict[str, str]:
    """Actor ids of the gateways, by the replicas' names; `details`: Serve's."""
    apps = details.get("applications", {})
    return _actors([apps[GATEWAY_APP]] if GATEWAY_APP in apps else [])


def _actors(apps: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {
        replica["replica_id"]: replica["actor_id"]
        for app in apps
        for deployment in app["deployments"].values()
        for replica in deployment["replicas"]
        if replica.get("actor_id")
    }


def lines(dashboard: Dashboard, actor: str, tail: int | None, *, follow: bool) -> Iterator[str]:
    """The lines that the actor's process wrote to its standard error; `tail`: the last so many.
    With `follow` goes on as they are written. Raises ClusterError."""
    query = {"actor_id": actor, "suffix": "err", "lines": tail or _ALL}
    yield from dashboard.lines(f"{_PATH}/{'stream' if follow else 'file'}", query, follow=follow)
