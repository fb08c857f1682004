"""Serve's applications as its controller has them, for processes inside the cluster.

The same as its REST interface (`dashboard.ServeRest`) without the dashboard, whose address a node
need not reach. Serve's controller outlives every Headrace process and knows what anyone has
deployed: the command line, Serve's REST interface, an operator. The private API of Serve that this
uses is tested by tests/integration/test_cluster_rollout.py and test_ray_contract.py.
Source: Ray 2.60 `dashboard/modules/serve/serve_head.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.generated.serve_pb2 import (  # type: ignore[attr-defined]
    ApplicationStatus,
    StatusOverview,
)

from deployments.contract.app_names import ANCHOR_DEPLOYMENT, is_model_app, model_name
from deployments.control.dashboard import ClusterError

_ANSWER_S = 30.0


class ServeController:
    """Asks Serve's controller. Every method blocks and raises ClusterError."""

    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("get_serve_instance_details")
        return found

    def put(self, config: Mapping[str, Any]) -> None:
        from ray.serve.schema import ServeDeploySchema

        self._ask("apply_config", ServeDeploySchema.model_validate(dict(config)))

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
            return ray.get(getattr(controller, method).remote(*args), timeout=_ANSWER_S)
        except (ray.exceptions.RayError, ValueError) as fault:
            raise ClusterError(f"Serve's controller does not answer: {fault}") from None


_SOON_S = 5.0
_DELETING = ApplicationStatus.Value("APPLICATION_STATUS_DELETING")


class AsyncServeController:
    """Asks Serve's controller. Every method raises what Ray raises while there is no controller or
    it does not answer."""

    def __init__(self) -> None:
        self._controller: Any = None

    async def models(self) -> set[str]:
        """Names of the models that ought to exist."""
        return model_names(await self._ask("list_serve_statuses"))

    async def applications(self) -> dict[str, Any]:
        """Serve's details of each application, by name, as its REST interface returns them."""
        found: dict[str, Any] = (await self._ask("get_serve_instance_details"))["applications"]
        return found

    async def _ask(self, method: str) -> Any:
        if self._controller is None:
            self._controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        try:
            return await asyncio.wait_for(getattr(self._controller, method).remote(), _SOON_S)
        except Exception:
            self._controller = None  # a restarted Serve has another
            raise


def model_names(statuses: list[bytes]) -> set[str]:
    """The models among these applications. `statuses`: serialised `StatusOverview` messages, one
    per application. An application that only has such a name is none: a model's has an anchor as
    soon as it has any deployment."""
    found = set()
    for each in map(StatusOverview.FromString, statuses):
        deployments = [d.name for d in each.deployment_statuses.deployment_status_infos]
        ours = is_model_app(each.name) and (not deployments or ANCHOR_DEPLOYMENT in deployments)
        if ours and each.app_status.status != _DELETING:
            found.add(model_name(each.name))
    return found
