"""Builds the Ray Serve applications of a model and of the shared pool.

Serve calls them inside the cluster, with the arguments that `serve_config` writes. Options that are
set here never change while it runs; `serve_config` overrides those that may.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from deployments.contract.app_names import (
    ANCHOR_DEPLOYMENT,
    POOL_DEPLOYMENT,
    POOL_DIRECTORY,
    directory_key,
    model_deployment,
)
from deployments.contract.model_arguments import group_arguments
from deployments.settings.model import ModelSettings

_CALLS = 10_000  # never reached: through Serve, gateways only ask replicas for their key
_GRACE_S = 20.0  # to a stopped anchor


def model(args: dict[str, Any]) -> Any:
    """A model's application: an anchor as its root, and below it a deployment of replicas for each
    group. `args`: {"name", "settings", "channel"}, and "groups" if the model has groups."""
    from deployments.replica.anchor import ModelAnchor

    anchor: Any = serve.deployment(
        ModelAnchor,
        name=ANCHOR_DEPLOYMENT,
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_surge_percent=100,
        graceful_shutdown_timeout_s=_GRACE_S,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=2,
    )
    return anchor.bind(args, *[_replicas(each) for each in group_arguments(args)])


def pool(args: dict[str, Any]) -> Any:
    """The pool's application: replicas that can become any model of the pool, below an anchor.
    `args`: see `PoolReplica`."""
    from deployments.replica.pool.pool_replica import PoolAnchor, PoolReplica

    replicas: Any = serve.deployment(
        PoolReplica,
        name=POOL_DEPLOYMENT,
        max_ongoing_requests=_CALLS,
        max_queued_requests=-1,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=2,
        request_router_config=_pinned(POOL_DIRECTORY),
    )
    anchor: Any = serve.deployment(
        PoolAnchor, name=ANCHOR_DEPLOYMENT, num_replicas=1, ray_actor_options={"num_cpus": 0}
    )
    return anchor.bind(replicas.bind(args))


def _replicas(args: dict[str, Any]) -> Any:
    from deployments.replica.model_replica import BatchReplica, StreamReplica

    settings, group = ModelSettings.model_validate(args["settings"]), args.get("group", "")
    replica: Any = serve.deployment(
        name=model_deployment(group),
        max_ongoing_requests=_CALLS,
        max_queued_requests=-1,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=2,
        request_router_config=_pinned(directory_key(args["name"], group)),
    )(StreamReplica if settings.task == "generate" else BatchReplica)
    return replica.bind(args)


def _pinned(directory: str) -> Any:
    from ray.serve.config import RequestRouterConfig

    router: Any = {"request_router_class": "deployments.process.pin_router:PinRouter"}
    return RequestRouterConfig(**router, request_router_kwargs={"key": directory})
