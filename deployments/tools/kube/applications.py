"""Which Serve applications does a RayService declare, in what state are they, and in which worker
groups can their replicas run?

A RayService's status has the state of each application and deployment, but no number of running
replicas and no pod of a replica. So the numbers here are the bounds that the RayService declares,
and the groups are those whose pods have (`rayStartParams`) what a replica asks for
(`ray_actor_options`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from deployments.contract.app_names import GATEWAY_APP, POOL_APP, is_model_app, model_name
from deployments.tools.kube.types import CLUSTER_STATUSES, Application, Object

_GATEWAY = "gateway"


def applications(service: Object) -> list[Application]:
    """The applications that have replicas (gateways, models, shared pool), in declared order."""
    config = yaml.safe_load(service["spec"].get("serveConfigV2") or "") or {}
    statuses = _statuses(service)
    groups = service["spec"].get("rayClusterConfig", {}).get("workerGroupSpecs") or ()
    return [
        _application(each, model, statuses.get(each["name"], {}), groups)
        for each in config.get("applications") or ()
        if (model := _shown_name(each["name"])) is not None
    ]


def _application(
    declared: Mapping[str, Any], model: str, status: Mapping[str, Any], groups: Sequence[Any]
) -> Application:
    deployments = declared.get("deployments") or ()
    bounds = [_bounds(each) for each in deployments]
    return Application(
        name=declared["name"],
        model=model,
        state=str(status.get("status", "")),
        message=_message(status),
        min_replicas=sum(minimum for minimum, _ in bounds),
        max_replicas=sum(maximum for _, maximum in bounds),
        groups=tuple(
            group["groupName"]
            for group in groups
            if any(_fits(each, group) for each in deployments)
        ),
    )


def _shown_name(application: str) -> str | None:
    """`gateway`, `pool` or the model's name; None for an application without replicas to show."""
    if application in (GATEWAY_APP, POOL_APP):
        return _GATEWAY if application == GATEWAY_APP else "pool"
    return model_name(application) if is_model_app(application) else None


def _statuses(service: Object) -> Mapping[str, Any]:
    """Status by application, of the cluster that serves; of the next one, if none serves yet."""
    status = service.get("status", {})
    for name in CLUSTER_STATUSES:
        found = status.get(name, {}).get("applicationStatuses")
        if found:
            return found  # type: ignore[no-any-return]
    return {}


def _message(status: Mapping[str, Any]) -> str:
    """The application's own message, else that of its first deployment that is not healthy."""
    if status.get("message"):
        return str(status["message"]).strip()
    for each in (status.get("serveDeploymentStatuses") or {}).values():
        if each.get("status") != "HEALTHY" and each.get("message"):
            return str(each["message"]).strip()
    return ""


def _bounds(deployment: Mapping[str, Any]) -> tuple[int, int]:
    scaling = deployment.get("autoscaling_config")
    if scaling:
        return int(scaling.get("min_replicas", 1)), int(scaling.get("max_replicas", 1))
    count = int(deployment.get("num_replicas") or 1)
    return count, count


def _fits(deployment: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    """Whether a pod of the group can hold a replica of the deployment.

    Of label selectors, only plain values are compared; Ray decides about `!…` and `in(…)`.
    """
    options = deployment.get("ray_actor_options") or {}
    start = group.get("rayStartParams") or {}
    has = _resources(start.get("resources"))
    labels = group.get("labels") or {}
    enough = float(options.get("num_cpus") or 0) <= float(start.get("num-cpus", 0))
    enough &= float(options.get("num_gpus") or 0) <= float(start.get("num-gpus", 0))
    enough &= all(amount <= has.get(n, 0) for n, amount in (options.get("resources") or {}).items())
    return enough and all(
        value.startswith(("!", "in(")) or labels.get(name) == value
        for name, value in (options.get("label_selector") or {}).items()
    )


def _resources(text: Any) -> dict[str, float]:
    """A group's custom resources, from JSON that may stand in a shell's quotes."""
    found = json.loads(str(text).strip("'")) if text else {}
    return json.loads(found) if isinstance(found, str) else found
