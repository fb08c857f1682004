"""The Serve applications of a RayService: what it declares, what Serve says of each, and in which
groups of pods a replica finds room.

A RayService's status tells an application's state and a deployment's, not how many replicas run:
bounds are what its own list says. Where a replica stands only Ray knows; by what it asks for
(`ray_actor_options`) and what a group's pods have (`rayStartParams`) one can say where it may.
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
    """Those that have replicas of ours: gateways, models, the pool; in the list's order."""
    config = yaml.safe_load(service["spec"].get("serveConfigV2") or "") or {}
    said = _said(service)
    groups = service["spec"].get("rayClusterConfig", {}).get("workerGroupSpecs") or ()
    return [
        _application(each, model, said.get(each["name"], {}), groups)
        for each in config.get("applications") or ()
        if (model := _named(each["name"])) is not None
    ]


def _application(
    declared: Mapping[str, Any], model: str, told: Mapping[str, Any], groups: Sequence[Any]
) -> Application:
    deployments = declared.get("deployments") or ()
    bounds = [_bounds(each) for each in deployments]
    return Application(
        name=declared["name"],
        model=model,
        state=str(told.get("status", "")),
        message=_message(told),
        least=sum(least for least, _ in bounds),
        most=sum(most for _, most in bounds),
        groups=tuple(
            group["groupName"]
            for group in groups
            if any(_fits(each, group) for each in deployments)
        ),
    )


def _named(application: str) -> str | None:
    """What its replicas are called here; None for those without any."""
    if application in (GATEWAY_APP, POOL_APP):
        return _GATEWAY if application == GATEWAY_APP else "pool"
    return model_name(application) if is_model_app(application) else None


def _said(service: Object) -> Mapping[str, Any]:
    """By application: of the cluster that serves; of the next one, where none serves yet."""
    status = service.get("status", {})
    for name in CLUSTER_STATUSES:
        found = status.get(name, {}).get("applicationStatuses")
        if found:
            return found  # type: ignore[no-any-return]
    return {}


def _message(told: Mapping[str, Any]) -> str:
    """The application's own, else the first of a deployment that is not healthy."""
    if told.get("message"):
        return str(told["message"]).strip()
    for each in (told.get("serveDeploymentStatuses") or {}).values():
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
    """Labels are matched where both sides name one plainly; other selectors are left to Ray."""
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
    """A group's custom resources: JSON, which a shell's quotes may stand around."""
    found = json.loads(str(text).strip("'")) if text else {}
    return json.loads(found) if isinstance(found, str) else found
