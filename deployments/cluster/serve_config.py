"""The list of Serve applications that a settings file means, as plain data.

One builder for every way to run: the host puts it on its own cluster, `headrace deploy` on another,
`headrace build` prints it for an operator (`serveConfigV2`). Serve restarts an application whose
arguments change, so they hold only what shapes its processes, as the user wrote it: defaults are
filled in inside the cluster. A model's hold nothing of other models, of tenants, of how many
gateways or replicas there are or where this file lies; counts, resources and time limits are
overrides of deployments, which Serve changes while they run (all but the resources of a replica).
Source: reading of ray 2.60 `serve/_private/deploy_utils.py` (get_app_code_version).
"""

from __future__ import annotations

import math
from typing import Any

from deployments.cluster.addresses import in_cluster, serve_host
from deployments.cluster.ray_env import config_env
from deployments.contract.app_names import (
    GATEWAY_APP,
    GATEWAY_DEPLOYMENT,
    TENANTS_APP,
    model_app,
    model_deployment,
)
from deployments.settings.gateway import GatewaySettings
from deployments.settings.load import tenants_text
from deployments.settings.model import ModelSettings
from deployments.settings.model_fields import ReplicaSettings
from deployments.settings.tree import Settings

BUILDERS = "deployments.cluster.applications"
GRACE_S = 20.0
_OVERRIDES = (
    "count", "num_cpus", "num_gpus", "memory_mib", "resources", "labels", "surge_percent",
    "start_timeout_s", "groups",
)  # fmt: skip
_MIB = 1 << 20
# Where a gateway listens and how many there are is for Serve and for those who start Ray.
_NOT_THE_GATEWAYS = {"replicas", "num_cpus", "replicas_per_node", "port", "tenants_path"}


def serve_config(settings: Settings, *, one_machine: bool = False) -> dict[str, Any]:
    """The body of `PUT /api/serve/applications/`: every application of ours that ought to exist.

    `settings` with paths as the user wrote them. `one_machine`: for the host's own cluster, where
    gateways need no place of their own and the host publishes the tenants.
    """
    gateway = settings.gateway if one_machine else in_cluster(settings.gateway)
    applications = [_gateway_application(gateway, one_machine)]
    if not one_machine and gateway.tenants_path is None:
        applications.append(_tenants_application(settings))
    applications += [_model_application(n, m, gateway) for n, m in settings.models.items()]
    return {
        **({} if one_machine else _controller(gateway)),
        "proxy_location": "EveryNode",
        "http_options": {
            "host": serve_host(gateway, one_machine=one_machine),
            "port": gateway.port,
            "keep_alive_timeout_s": math.ceil(gateway.keep_alive_s),
        },
        "logging_config": {"enable_access_log": False, "encoding": "JSON"},
        "applications": applications,
    }


def _controller(gateway: GatewaySettings) -> dict[str, Any]:
    """What `ray start` was not told reaches the processes that Serve starts all the same."""
    return {"controller_options": {"runtime_env": {"env_vars": config_env(gateway)}}}


def _gateway_application(gateway: GatewaySettings, one_machine: bool) -> dict[str, Any]:
    place: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}
    if not one_machine:
        place = {
            "ray_actor_options": {"num_cpus": gateway.num_cpus},
            "max_replicas_per_node": gateway.replicas_per_node,
        }
    written = gateway.model_dump(mode="json", exclude_unset=True, exclude=_NOT_THE_GATEWAYS)
    return {
        "name": GATEWAY_APP,
        "route_prefix": "/",
        "import_path": f"{BUILDERS}:gateway",
        "args": {"settings": written, "tenants_path": gateway.tenants_path},
        "deployments": [
            {
                "name": GATEWAY_DEPLOYMENT,
                "num_replicas": gateway.replicas,
                "graceful_shutdown_timeout_s": gateway.drain_s + GRACE_S,
                **place,
            }
        ],
    }


def _tenants_application(settings: Settings) -> dict[str, Any]:
    return {
        "name": TENANTS_APP,
        "route_prefix": None,
        "import_path": f"{BUILDERS}:tenants",
        "args": {
            "tenants": tenants_text(settings),
            "priorities": list(settings.gateway.priorities),
        },
    }


def _model_application(name: str, model: ModelSettings, gateway: GatewaySettings) -> dict[str, Any]:
    channel = gateway.channel.model_dump(mode="json", exclude_unset=True)
    args: dict[str, Any] = {"name": name, "settings": _shaping(model), "channel": channel}
    views = model.views()
    if views:
        args["groups"] = [
            {"name": group.name, "settings": _shaping(views[group.name]), "after_s": group.after_s}
            for group in model.replicas.groups
        ]
    return {
        "name": model_app(name),
        "route_prefix": None,
        "import_path": f"{BUILDERS}:model",
        "args": args,
        "deployments": [
            _replicas(group, view, gateway.replicas)
            for group, view in (views or {"": model}).items()
        ],
    }


def _shaping(model: ModelSettings) -> dict[str, Any]:
    """What of its settings shapes a replica, as the user wrote it."""
    written = model.model_dump(mode="json", exclude_unset=True)
    replicas = {n: v for n, v in written.pop("replicas", {}).items() if n not in _OVERRIDES}
    return written | ({"replicas": replicas} if replicas else {})


def _replicas(group: str, model: ModelSettings, gateways: int) -> dict[str, Any]:
    """Of a group, "" where there are none."""
    replicas = model.replicas
    return {
        "name": model_deployment(group),
        "num_replicas": replicas.count,
        "max_surge_percent": replicas.surge_percent,
        "ray_actor_options": _actor_options(replicas),
        "graceful_shutdown_timeout_s": _drain_s(model, gateways),
        "health_check_timeout_s": replicas.hang_limit_s + GRACE_S,  # behind what runs
    }


def _actor_options(replicas: ReplicaSettings) -> dict[str, Any]:
    """What Ray reserves for a replica, and where it may run."""
    options: dict[str, Any] = {"num_cpus": replicas.num_cpus, "num_gpus": replicas.num_gpus}
    if replicas.memory_mib is not None:
        options["memory"] = replicas.memory_mib * _MIB
    if replicas.resources:
        options["resources"] = dict(replicas.resources)
    if replicas.labels:
        options["label_selector"] = dict(replicas.labels)
    return options


def _drain_s(model: ModelSettings, gateways: int) -> float:
    """How long a replica may take to finish what it has in hand when it is told to go."""
    if model.task == "generate":
        return model.timeout_s + GRACE_S
    most_batches = 1 + gateways * (model.replicas.slots - 1)
    return model.replicas.hang_limit_s * most_batches + GRACE_S
