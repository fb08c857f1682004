"""Builds the Ray Serve applications of the control plane: the tenants and the rollouts."""

from __future__ import annotations

from typing import Any

from ray import serve


def tenants(args: dict[str, Any]) -> Any:
    """`args`: see `TenantsPublisher`."""
    from deployments.control.tenants_publisher import TenantsPublisher

    deployment: Any = serve.deployment(
        TenantsPublisher,
        name="tenants",
        ray_actor_options={"num_cpus": 0},
        max_surge_percent=100,  # else the old one drains first, for 30 s on a cluster
        graceful_shutdown_timeout_s=1,
        graceful_shutdown_wait_loop_s=0.1,
    )
    return deployment.bind(args)


def rollouts(args: dict[str, Any]) -> Any:
    """The application that drives a cluster's rollouts. `args`: nothing; the rollouts are its
    deployment's `user_config`, see `listed_rollouts`."""
    from deployments.control.cluster_rollouts import RolloutsApplication

    deployment: Any = serve.deployment(
        RolloutsApplication,
        name="rollouts",
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=1,
        graceful_shutdown_wait_loop_s=0.1,
    )
    return deployment.bind()
