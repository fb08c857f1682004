"""Ray Serve applications: one `gateway`, one per model; builders and the declarative list of them.

Serve restarts an application whose arguments change, so the gateway's arguments hold nothing of the
models, and a model's hold nothing of the others: that is what makes `apply` touch one model alone.
The tenants' file and the registry are how gateways hear of everything else.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from deployments.contract.app_names import GATEWAY_APP, MODEL_DEPLOYMENT, directory_key, model_app
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings

GRACE_S = 20.0
_CALLS = 10_000  # never to be reached: gateways ask replicas for their key through Serve, no more


@dataclass(frozen=True, slots=True)
class Place:
    """Where this cluster keeps things: the cache of staged models, the tenants' file."""

    cache_dir: str
    tenants_file: str


def serve_config(settings: Settings, place: Place) -> dict[str, Any]:
    """The body of `PUT /api/serve/applications/`: every application that ought to exist."""
    gateway = settings.gateway
    return {
        "proxy_location": "EveryNode",
        "http_options": {
            "host": gateway.host,
            "port": gateway.port,
            "keep_alive_timeout_s": math.ceil(gateway.keep_alive_s),
        },
        "logging_config": {"enable_access_log": False, "encoding": "JSON"},
        "applications": [
            _gateway_application(gateway, place),
            *(_model_application(n, m, gateway, place) for n, m in settings.models.items()),
        ],
    }


def _gateway_application(gateway: GatewaySettings, place: Place) -> dict[str, Any]:
    return {
        "name": GATEWAY_APP,
        "route_prefix": "/",
        "import_path": "deployments.cluster.applications:gateway",
        "args": {
            "settings": gateway.model_dump(mode="json"),
            "tenants_file": place.tenants_file,
        },
    }


def _model_application(
    name: str, model: ModelSettings, gateway: GatewaySettings, place: Place
) -> dict[str, Any]:
    settings = model.model_dump(mode="json")
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return {
        "name": model_app(name),
        "route_prefix": None,
        "import_path": "deployments.cluster.applications:model",
        "args": {
            "name": name,
            "settings": settings,
            "digest": digest,
            "cache_dir": place.cache_dir,
            "gateways": gateway.replicas,
            "channel": gateway.channel.model_dump(mode="json"),
            "log": gateway.log.model_dump(mode="json"),
        },
    }


def gateway(args: dict[str, Any]) -> Any:
    """Builder of the gateway application; `args` as `_gateway_application` writes them."""
    from ray import serve

    from deployments.gateway.deployment import Gateway

    settings = GatewaySettings.model_validate(args["settings"])
    deployment: Any = serve.deployment(
        serve.ingress()(Gateway),
        name="gateway",
        num_replicas=settings.replicas,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=100_000,
        max_queued_requests=-1,
        graceful_shutdown_timeout_s=settings.drain_s + GRACE_S,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=2,
    )
    return deployment.bind(args)


def model(args: dict[str, Any]) -> Any:
    """Builder of a model's application: an anchor as root, the model's replicas below it."""
    from ray import serve

    from deployments.replica.anchor import ModelAnchor

    settings = ModelSettings.model_validate(args["settings"])
    gateways: int = args["gateways"]
    own = _streams(settings) if settings.task == "generate" else _batches(settings, gateways)
    replica: Any = serve.deployment(
        name=MODEL_DEPLOYMENT,
        num_replicas=settings.replicas.count,
        ray_actor_options={
            "num_cpus": settings.replicas.num_cpus,
            "num_gpus": settings.replicas.num_gpus,
        },
        max_ongoing_requests=_CALLS,
        max_queued_requests=-1,
        max_surge_percent=settings.replicas.surge_percent,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=2,
        health_check_timeout_s=settings.replicas.hang_limit_s + GRACE_S,  # behind what runs
        request_router_config=_pinned(args["name"]),
        graceful_shutdown_timeout_s=own.drain_s,
    )(own.cls)
    anchor: Any = serve.deployment(
        ModelAnchor,
        name="anchor",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_surge_percent=100,
        graceful_shutdown_timeout_s=GRACE_S,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=2,
    )
    return anchor.bind(args, replica.bind(args))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is a kind of replica's own: its class, and how long it may take to finish what it has
    in hand when it is told to go."""

    cls: type
    drain_s: float


def _batches(settings: ModelSettings, gateways: int) -> _Kind:
    from deployments.replica.batch_replica import BatchReplica

    # What a replica may have in hand at most.
    room = 1 + gateways * (settings.replicas.slots - 1)
    return _Kind(BatchReplica, settings.replicas.hang_limit_s * room + GRACE_S)


def _streams(settings: ModelSettings) -> _Kind:
    from deployments.replica.stream_replica import StreamReplica

    return _Kind(StreamReplica, settings.timeout_s + GRACE_S)


def _pinned(name: str) -> Any:
    from ray.serve.config import RequestRouterConfig

    router: Any = {"request_router_class": "deployments.contract.pin_router:PinRouter"}
    return RequestRouterConfig(**router, request_router_kwargs={"key": directory_key(name)})
