"""Serve's applications as its controller has them, for a process inside the cluster.

The same as its REST interface (`serve_rest`) without the dashboard, whose address a node need not
reach. The private API of Serve that this uses is tested by
tests/integration/test_cluster_rollout.py.
Source: Ray 2.60 `dashboard/modules/serve/serve_head.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from deployments.control.dashboard import ClusterError

_ANSWER_S = 30.0


class ServeController:
    """Asks Serve's controller. Every method blocks and raises ClusterError."""

    def details(self) -> dict[str, Any]:
        """`ServeInstanceDetails`."""
        found: dict[str, Any] = self._ask("get_serve_instance_details")
        return found

    def put(self, config: Mapping[str, Any]) -> None:
        """Put the whole list of applications. Where and how Serve listens stays as it is."""
        from ray.serve.schema import ServeDeploySchema

        self._ask("apply_config", ServeDeploySchema.model_validate(dict(config)))

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
            return ray.get(getattr(controller, method).remote(*args), timeout=_ANSWER_S)
        except (ray.exceptions.RayError, ValueError) as fault:
            raise ClusterError(f"Serve's controller does not answer: {fault}") from None
