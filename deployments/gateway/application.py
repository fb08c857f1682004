"""Builds the gateway's Ray Serve application.

Serve calls it inside the cluster, with the arguments that `serve_config` writes. Options that are
set here never change while it runs; `serve_config` overrides those that may.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from deployments.contract.app_names import GATEWAY_DEPLOYMENT

# Of a health check, which never waits for a batch. Serve replaces a gateway that missed three in a
# row, half a second apart: one that is stopped after 10 s. One that has ended is found at once.
_HEALTH_S = 3.0


def gateway(args: dict[str, Any]) -> Any:
    """`args`: {"settings", "tenants_path"}, as `serve_config` writes them."""
    from deployments.gateway.deployment import Gateway

    deployment: Any = serve.deployment(
        serve.ingress()(Gateway),
        name=GATEWAY_DEPLOYMENT,
        max_ongoing_requests=100_000,
        max_queued_requests=-1,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=0.5,
        health_check_timeout_s=_HEALTH_S,
    )
    return deployment.bind(args)
