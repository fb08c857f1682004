"""Builds the control plane's Ray Serve application, `headrace-control`.

Serve calls it inside the cluster. `args`: {"code": digest of the sources, if a deployer wrote the
list}, so that another version of Headrace replaces the process, which then replaces the named
actors. The state is the deployment's `user_config`; a change of it restarts nothing.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from deployments.contract.app_names import CONTROL_DEPLOYMENT


def control(args: dict[str, Any]) -> Any:
    from deployments.control.control import ControlPlane

    deployment: Any = serve.deployment(
        ControlPlane,
        name=CONTROL_DEPLOYMENT,
        ray_actor_options={"num_cpus": 0},
        max_surge_percent=100,  # else the old one drains first, for 30 s on a cluster
        graceful_shutdown_timeout_s=1,
        graceful_shutdown_wait_loop_s=0.1,
    )
    return deployment.bind(args.get("code", ""))
