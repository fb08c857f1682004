"""Ray Serve's REST interface of one cluster: what runs there, and another list of applications.

Source: Ray 2.60 `dashboard/modules/serve/serve_head.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.cluster.dashboard import Dashboard

ANSWER_S = 120.0  # the first list that a cluster gets also starts Serve
_PATH = "/api/serve/applications/"


class ServeRest:
    """Every method raises ClusterError. Blocks."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def details(self) -> dict[str, Any]:
        """`ServeInstanceDetails`; its `applications` are empty where Serve does not run."""
        found: dict[str, Any] = self._dashboard.ask("GET", _PATH).json()
        return found

    def put(self, config: Mapping[str, Any]) -> None:
        """The whole list of applications: what was put before and is not in it is deleted."""
        self._dashboard.ask("PUT", _PATH, json=dict(config))
