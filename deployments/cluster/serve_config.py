"""The list of Serve applications that a settings file means, as plain data.

One builder for every way to run: the host puts it on its own cluster, `headrace deploy` on another,
`headrace build` prints it for an operator (`serveConfigV2`). Serve restarts an application whose
arguments change, so they hold only what shapes its processes, as the user wrote it: defaults are
filled in inside the cluster. A model's hold nothing of other models, of tenants, of how many
gateways or replicas there are, of how it is scaled or where this file lies; bounds on the number of
replicas, resources and time limits are overrides of deployments, which Serve changes while they run
(all but the resources of a replica). How many there are between the bounds is the autoscaler's, and
Serve's policy, one for all deployments of an application, copies it: a policy of each deployment
would let Serve start a replica of a sleeping model by itself when a handle is used.
Source: reading of ray 2.60 `serve/_private/deploy_utils.py` (get_app_code_version).
"""

from __future__ import annotations

import math
from typing import Any

from deployments.cluster.addresses import LOOPBACK, in_cluster, serve_host
from deployments.cluster.model_arguments import model_arguments
from deployments.cluster.ray_env import config_env
from deployments.cluster.scaling_terms import pooled
from deployments.contract.app_names import (
    GATEWAY_APP,
    GATEWAY_DEPLOYMENT,
    POOL_APP,
    POOL_DEPLOYMENT,
    TENANTS_APP,
    model_app,
    model_deployment,
)
from deployments.settings.capacity import PoolSettings
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.tree import Settings, TenantsSettings

BUILDERS = "deployments.cluster.applications"
COPY_TARGETS = "deployments.contract.scaling.copy_targets:CopyTargets"
GRACE_S = 20.0
# What a health check may take, which never waits for a batch. Serve replaces whoever has not
# answered three in a row, 2 s apart at most: a gateway that was stopped after 11 s, a replica
# after 17 s. A hanging event loop or device is found sooner, by the process itself.
GATEWAY_HEALTH_S, REPLICA_HEALTH_S = 3.0, 5.0
_MIB = 1 << 20
_OF_SCALING = {"runtime", "source", "task", "slo", "replicas", "scaling"}
# Where a gateway listens and how many there are is for Serve and for those who start Ray.
_NOT_THE_GATEWAYS = {
    "replicas", "num_cpus", "replicas_per_node", "labels", "port", "tenants_path",
}  # fmt: skip


def serve_config(settings: Settings, *, one_machine: bool = False) -> dict[str, Any]:
    """The body of `PUT /api/serve/applications/`: every application of ours that ought to exist.

    `settings` with paths as the user wrote them. `one_machine`: for the host's own cluster, where
    gateways need no place of their own and the host publishes the tenants.
    """
    gateway = settings.gateway if one_machine else in_cluster(settings.gateway)
    applications = [_gateway_application(gateway, one_machine)]
    if not one_machine:
        applications.append(_publisher(settings))
    applications += [_model_application(n, m, gateway) for n, m in settings.models.items()]
    if settings.scaling.pool is not None:
        applications.append(_pool_application(settings, settings.scaling.pool, gateway.replicas))
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
        options: dict[str, Any] = {"num_cpus": gateway.num_cpus}
        if gateway.labels:
            options["label_selector"] = dict(gateway.labels)
        place = {
            "ray_actor_options": options,
            "max_replicas_per_node": gateway.replicas_per_node,
        }
    written = gateway.model_dump(mode="json", exclude_unset=True, exclude=_NOT_THE_GATEWAYS)
    if one_machine:
        # Callers may come from elsewhere (`host`); whoever scrapes this machine is on it.
        written.setdefault("metrics_host", LOOPBACK)
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


def _publisher(settings: Settings) -> dict[str, Any]:
    """Of what other processes take up while they run; without the tenants where a path names
    them."""
    tenants = {
        "tenants": _taken_up(settings),
        "priorities": list(settings.gateway.priorities),
        **({"auth": settings.gateway.auth} if settings.gateway.auth else {}),
    }
    return {
        "name": TENANTS_APP,
        "route_prefix": None,
        "import_path": f"{BUILDERS}:tenants",
        "args": {
            **(tenants if settings.gateway.tenants_path is None else {}),
            "scaling": _scaled(settings),
        },
    }


def _taken_up(settings: Settings) -> dict[str, Any]:
    """What gateways take up while they run, as the user wrote it; the switch of the controllers in
    any case, which `headrace freeze` turns here."""
    written = settings.model_dump(
        mode="json", exclude_unset=True, include=set(TenantsSettings.model_fields)
    )
    return {
        "tenants": {},
        **{name: section for name, section in written.items() if section},
        "controllers": {"frozen": settings.controllers.frozen},
    }


def _scaled(settings: Settings) -> dict[str, Any]:
    """What the autoscaler is told of, as the user wrote it: a settings file of its own, which the
    publisher turns into the autoscaler's words. With a pool, all that its replicas need."""
    include: dict[str, Any] = {
        "models": dict.fromkeys(settings.models, _OF_SCALING),
        "scaling": True,
    }
    if settings.scaling.pool is not None:
        include |= {"models": True, "gateway": {"channel", "replay"}}
    written = settings.model_dump(mode="json", exclude_unset=True, include=include)
    return {name: section for name, section in written.items() if section}


def _model_application(name: str, model: ModelSettings, gateway: GatewaySettings) -> dict[str, Any]:
    views = model.views()
    return {
        "name": model_app(name),
        "route_prefix": None,
        "import_path": f"{BUILDERS}:model",
        "args": model_arguments(name, model, views, gateway.channel),
        "autoscaling_policy": {"policy_function": COPY_TARGETS},
        "deployments": [
            _replicas(group, view, gateway.replicas)
            for group, view in (views or {"": model}).items()
        ],
    }


def _replicas(group: str, model: ModelSettings, gateways: int) -> dict[str, Any]:
    """Of a group, "" where there are none."""
    replicas = model.replicas
    # Serve says that an application runs while the autoscaler adds replicas, and not before those
    # have started that Serve's own list wants.
    least = 0 if model.optional else replicas.least
    return {
        "name": model_deployment(group),
        "autoscaling_config": bounds(least, replicas.most),
        "max_surge_percent": replicas.surge_percent,
        "ray_actor_options": _actor_options(replicas),
        "graceful_shutdown_timeout_s": _drain_s(model, gateways),
        "health_check_timeout_s": REPLICA_HEALTH_S,
    }


def _pool_application(settings: Settings, pool: PoolSettings, gateways: int) -> dict[str, Any]:
    """What models its replicas hold is the autoscaler's; here stands what they import for them."""
    models = [model for _, model in pooled(settings, pool)]
    return {
        "name": POOL_APP,
        "route_prefix": None,
        "import_path": f"{BUILDERS}:pool",
        "args": {
            "runtimes": sorted({model.runtime for model in models}),
            "memory_bytes": pool.memory_mib * _MIB,
            "after_s": pool.after_ms / 1000,
        },
        "autoscaling_policy": {"policy_function": COPY_TARGETS},
        "deployments": [
            {
                "name": POOL_DEPLOYMENT,
                "autoscaling_config": bounds(pool.min, pool.max),
                "ray_actor_options": {
                    "num_cpus": pool.num_cpus,
                    "num_gpus": pool.num_gpus,
                    **({"resources": dict(pool.resources)} if pool.resources else {}),
                },
                "graceful_shutdown_timeout_s": max(
                    (_drain_s(model, gateways) for model in models), default=GRACE_S
                ),
                # Models are loaded beside those that serve, which may hold up all threads.
                "health_check_timeout_s": GRACE_S,
            }
        ],
    }


def bounds(least: int, most: int) -> dict[str, Any]:
    """Of a deployment whose number the autoscaler decides; a fixed one is `least` = `most`.

    Serve copies what it is told at once: what holds replicas back is decided before. Its own counts
    of requests, which nobody reads, are rare; rarer still, and one that says that something waits
    for a first replica would be believed for twice as long."""
    return {
        "min_replicas": least,
        "max_replicas": max(1, most),
        "upscale_delay_s": 0,
        "downscale_delay_s": 0,
        "metrics_interval_s": 30,
        "look_back_period_s": 60,
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
