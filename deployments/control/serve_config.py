"""Builds the list of Serve applications for a settings file, as plain data.

One builder serves every way to run: `headrace serve` puts the list on a cluster of its own,
`headrace apply` on that one or on another, and `headrace build` prints it (`serveConfigV2`).

Serve restarts an application whose arguments change. So arguments hold only what shapes an
application's processes, as the user wrote it: nothing of other models, tenants, numbers of
replicas, scaling, or where the file is. Bounds on replicas, resources and time limits are overrides
of deployments, which Serve changes while they run (all but a replica's resources). Serve's
autoscaling policy copies the autoscaler's targets: one for all deployments of an application, since
a policy of each would let Serve start a replica of a sleeping model when a handle is used.
Source: reading of ray 2.60 `serve/_private/deploy_utils.py` (get_app_code_version).
"""

from __future__ import annotations

import math
from typing import Any

from deployments.contract.app_names import (
    CONTROL_APP,
    CONTROL_DEPLOYMENT,
    GATEWAY_APP,
    GATEWAY_DEPLOYMENT,
    POOL_APP,
    POOL_DEPLOYMENT,
    model_app,
    model_deployment,
)
from deployments.contract.listed import Control, plain
from deployments.contract.model_arguments import model_arguments
from deployments.control.ray_env import config_env
from deployments.control.scaling.scaling_terms import pooled
from deployments.process.loopback import LOOPBACK
from deployments.settings.capacity import PoolSettings
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.tree import Settings, TenantsSettings

BUILDERS = {
    "gateway": "deployments.gateway.application:gateway",
    "control": "deployments.control.application:control",
    "model": "deployments.replica.application:model",
    "pool": "deployments.replica.application:pool",
}
"""What Serve calls for each kind of application of ours."""
COPY_TARGETS = "deployments.control.scaling.copy_targets:CopyTargets"
LOGGING = {"enable_access_log": False, "encoding": "JSON"}  # of applications without their own
GRACE_S = 20.0
DEREGISTER_S = 30.0
"""Ray's own RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S: a gateway that is stopped on a cluster
takes requests for so long, until every HAProxy has heard of it, and drains after that."""
# Time limits of a health check, which never waits for a batch. Serve replaces a replica that missed
# three checks in a row, at most 2 s apart: a stopped gateway after 11 s, another replica after
# 17 s. A process finds its own hanging event loop or device sooner.
REPLICA_HEALTH_S = 5.0
_MIB = 1 << 20
_OF_SCALING = {"runtime", "source", "task", "slo", "replicas", "scaling"}  # that scaling reads
# Serve and whoever starts Ray use these settings; the gateway's process does not.
_NOT_THE_GATEWAYS = {
    "replicas", "num_cpus", "replicas_per_node", "labels", "port", "tenants_path",
}  # fmt: skip


def serve_config(settings: Settings, *, one_machine: bool = False) -> dict[str, Any]:
    """The body of `PUT /api/serve/applications/`: every Headrace application that ought to exist.

    `settings`: with paths as the user wrote them. `one_machine`: for the host's own cluster, where
    gateways need no placement.
    """
    gateway = settings.gateway if one_machine else in_cluster(settings.gateway)
    applications = [_gateway_application(gateway, one_machine), _control_plane(settings)]
    applications += [_model_application(n, m, gateway) for n, m in settings.models.items()]
    if settings.scaling.pool is not None:
        applications.append(_pool_application(settings, settings.scaling.pool, gateway.replicas))
    # Gives the processes that Serve starts the variables that `ray start` may not have had.
    controller = {"controller_options": {"runtime_env": {"env_vars": config_env(gateway)}}}
    return {
        **({} if one_machine else controller),
        "proxy_location": "Disabled" if gateway.ingress == "direct" else "EveryNode",
        "http_options": {
            "host": serve_host(gateway, one_machine=one_machine),
            "port": gateway.port,
            "keep_alive_timeout_s": math.ceil(gateway.keep_alive_s),
        },
        "logging_config": LOGGING,
        "applications": applications,
    }


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
        # Callers may come from elsewhere (`host`), but whoever scrapes metrics is on this machine.
        written.setdefault("metrics_host", LOOPBACK)
    return {
        "name": GATEWAY_APP,
        "route_prefix": "/",
        "import_path": BUILDERS["gateway"],
        "args": {"settings": written, "tenants_path": gateway.tenants_path},
        "deployments": [
            {
                "name": GATEWAY_DEPLOYMENT,
                "num_replicas": gateway.replicas,
                "graceful_shutdown_timeout_s": gateway.drain_s
                + (GRACE_S if one_machine else GRACE_S + DEREGISTER_S),
                **place,
            }
        ],
    }


def _control_plane(settings: Settings) -> dict[str, Any]:
    """The application that publishes what other processes take up while they run, and drives
    rollouts. The block of a file, without tenants if a path names them."""
    own = settings.gateway.tenants_path is None
    block = Control(
        tenants=_taken_up(settings) if own else None,
        priorities=tuple(settings.gateway.priorities) if own else (),
        auth=settings.gateway.auth if own else None,
        scaling=_scaled(settings),
    )
    return {
        "name": CONTROL_APP,
        "route_prefix": None,
        "import_path": BUILDERS["control"],
        "args": {},
        "deployments": [{"name": CONTROL_DEPLOYMENT, "user_config": plain(block)}],
    }


def _taken_up(settings: Settings) -> dict[str, Any]:
    """What gateways take up while they run, as the user wrote it, and always the controllers'
    switch, which `headrace freeze` sets here."""
    written = settings.model_dump(
        mode="json", exclude_unset=True, include=set(TenantsSettings.model_fields)
    )
    return {
        "tenants": {},
        **{name: section for name, section in written.items() if section},
        "controllers": {"frozen": settings.controllers.frozen},
    }


def _scaled(settings: Settings) -> dict[str, Any]:
    """What the autoscaler is told, as the user wrote it: a settings file of its own, which the
    publisher translates. With a pool, it has all that the pool's replicas need."""
    include: dict[str, Any] = {
        "models": {name: _of_scaling(model) for name, model in settings.models.items()},
        "scaling": True,
    }
    if settings.scaling.pool is not None:
        include |= {"models": True, "gateway": {"channel", "replay"}}
    written = settings.model_dump(mode="json", exclude_unset=True, include=include)
    return {name: section for name, section in written.items() if section}


def _of_scaling(model: ModelSettings) -> set[str]:
    """The fields that scaling reads; lengths, where groups end at some."""
    ends = any(group.max_length is not None for group in model.replicas.groups)
    return _OF_SCALING | {"lengths"} if ends else _OF_SCALING


def _model_application(name: str, model: ModelSettings, gateway: GatewaySettings) -> dict[str, Any]:
    views = model.views()
    return {
        "name": model_app(name),
        "route_prefix": None,
        "import_path": BUILDERS["model"],
        "args": model_arguments(name, model, views, gateway.channel),
        "autoscaling_policy": {"policy_function": COPY_TARGETS},
        "deployments": [
            _replicas(group, view, gateway.replicas)
            for group, view in (views or {"": model}).items()
        ],
    }


def _replicas(group: str, model: ModelSettings, gateways: int) -> dict[str, Any]:
    """The deployment of a group's replicas; `group` is "" for a model without groups."""
    replicas = model.replicas
    # Serve reports an application as running while the autoscaler still adds replicas, but not
    # before the replicas have started that Serve's own list asks for.
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
    """The shared pool. The autoscaler decides which models its replicas hold; the arguments only
    name what the replicas import."""
    models = [model for _, model in pooled(settings, pool)]
    engines = sorted({m.runtime for m in models if m.task == "generate"} - {"vllm"})
    return {
        "name": POOL_APP,
        "route_prefix": None,
        "import_path": BUILDERS["pool"],
        "args": {
            "runtimes": sorted({m.runtime for m in models if m.task != "generate"}),
            **({"engines": engines} if engines else {}),
            "memory_bytes": pool.memory_mib * _MIB,
            "after_s": pool.after_ms / 1000,
            **({"memory_limit_mib": pool.memory_limit_mib} if pool.memory_limit_mib else {}),
            **({"num_gpus": pool.num_gpus} if pool.num_gpus else {}),
            **({"asleep_bytes": pool.asleep_mib * _MIB} if pool.asleep_mib else {}),
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
                # Loading a model beside those that serve may block all threads of the process.
                "health_check_timeout_s": GRACE_S,
            }
        ],
    }


def bounds(least: int, most: int) -> dict[str, Any]:
    """Serve's bounds of a deployment whose number of replicas the autoscaler decides; for a fixed
    number `least` = `most`.

    Serve follows the targets at once, because delays are decided before. Nobody reads Serve's own
    counts of requests, so they are rare. They must not be rarer still: a count that reports a call
    waiting for a first replica would be believed for twice as long."""
    return {
        "min_replicas": least,
        "max_replicas": max(1, most),
        "upscale_delay_s": 0,
        "downscale_delay_s": 0,
        "metrics_interval_s": 30,
        "look_back_period_s": 60,
    }


def _actor_options(replicas: ReplicaSettings) -> dict[str, Any]:
    """The resources that Ray reserves for a replica, and the nodes where it may run."""
    options: dict[str, Any] = {"num_cpus": replicas.num_cpus, "num_gpus": replicas.num_gpus}
    if replicas.memory_mib is not None:
        options["memory"] = replicas.memory_mib * _MIB
    if replicas.resources:
        options["resources"] = dict(replicas.resources)
    if replicas.labels:
        options["label_selector"] = dict(replicas.labels)
    return options


def _drain_s(model: ModelSettings, gateways: int) -> float:
    """Seconds that a replica gets to finish its work when it is told to stop; streams get as long
    as a request may ask for."""
    if model.task == "generate":
        return model.max_timeout_s + GRACE_S
    max_batches = 1 + gateways * (model.replicas.slots - 1)
    return model.replicas.hang_limit_s * max_batches + GRACE_S


# ---- addresses, on one machine and on many nodes -------------------------------------------------


EVERY_INTERFACE = "0.0.0.0"


def in_cluster(gateway: GatewaySettings) -> GatewaySettings:
    """The settings for a cluster of many nodes: reachable from everywhere, unless the file sets a
    host."""
    if "host" in gateway.model_fields_set:
        return gateway
    return gateway.model_copy(update={"host": EVERY_INTERFACE})


def serve_host(gateway: GatewaySettings, *, one_machine: bool) -> str:
    """`http_options.host` of a Serve config. `one_machine`: the cluster has this machine only."""
    if one_machine:
        return LOOPBACK
    return "::" if ":" in gateway.host else EVERY_INTERFACE
