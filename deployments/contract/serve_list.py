"""Which models Serve runs, as its controller lists its applications.

Serve's controller outlives everything of ours and knows what was deployed by whomever: the command
line, its REST interface, an operator. An application named for a model is one; one that is being
deleted is none any more. Asks the controller directly, because `serve.status()` also collects every
replica's details. Held in place by tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.generated.serve_pb2 import (  # type: ignore[attr-defined]
    ApplicationStatus,
    StatusOverview,
)

from deployments.contract.app_names import ANCHOR_DEPLOYMENT, is_model_app, model_name

_ANSWER_S = 5.0
_DELETING = ApplicationStatus.Value("APPLICATION_STATUS_DELETING")


class ServeList:
    """Every method raises what Ray raises while there is no controller, or it does not answer."""

    def __init__(self) -> None:
        self._controller: Any = None

    async def models(self) -> set[str]:
        """Names of the models that ought to exist."""
        return model_names(await self._ask("list_serve_statuses"))

    async def applications(self) -> dict[str, Any]:
        """Serve's own details by application, as its REST interface shows them."""
        details: dict[str, Any] = await self._ask("get_serve_instance_details")
        found: dict[str, Any] = details["applications"]
        return found

    async def _ask(self, method: str) -> Any:
        if self._controller is None:
            self._controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        try:
            return await asyncio.wait_for(getattr(self._controller, method).remote(), _ANSWER_S)
        except Exception:
            self._controller = None  # a new Serve has another
            raise


def model_names(statuses: list[bytes]) -> set[str]:
    """`statuses`: serialised `StatusOverview` messages, one an application."""
    overviews = [StatusOverview.FromString(each) for each in statuses]
    return {
        model_name(each.name)
        for each in overviews
        if is_model_app(each.name) and each.app_status.status != _DELETING and _is_ours(each)
    }


def _is_ours(overview: Any) -> bool:
    """Somebody else's application may have such a name; a model's has an anchor, once it has
    anything."""
    names = [each.name for each in overview.deployment_statuses.deployment_status_infos]
    return not names or ANCHOR_DEPLOYMENT in names
