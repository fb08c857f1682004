"""Ray Serve's REST interface of one cluster: reads what runs, and puts a list of applications.

Source: Ray 2.60 `dashboard/modules/serve/serve_head.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.cluster.dashboard import Dashboard

ANSWER_S = 120.0  # the first list that a cluster gets also starts Serve
_PATH = "/api/serve/applications/"


class ServeRest:
    """A client of the interface. Every method blocks and raises ClusterError."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def details(self) -> dict[str, Any]:
        """`ServeInstanceDetails`. Its `applications` are empty if Serve does not run."""
        found: dict[str, Any] = self._dashboard.ask("GET", _PATH).json()
        return found

    def put(self, config: Mapping[str, Any]) -> None:
        """Put the whole list of applications. Serve deletes what the last list had and this one has
        not."""
        self._dashboard.ask("PUT", _PATH, json=dict(config))
