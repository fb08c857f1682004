"""Ray Serve's REST interface of one cluster: reads what runs, and puts a list of applications.

Source: Ray 2.60 `dashboard/modules/serve/serve_head.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from deployments.control.dashboard import ClusterError, Dashboard, NoAnswer
from deployments.control.supervisor import dashboard_process

ANSWER_S = 120.0  # the first list that a cluster gets also starts Serve
_PATH = "/api/serve/applications/"
_ALIVE_PATH = "/api/ray/version"  # answered by the same process, without Serve's controller
_ALIVE_S = 5.0


class ServeRest:
    """A client of the interface. Every method blocks and raises ClusterError. A dashboard of this
    process's own Ray that is missing or hangs is started again, and asked once more: what is put is
    the whole list, and may be put twice."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._own = dashboard_process.own(dashboard.address)

    def details(self) -> dict[str, Any]:
        """`ServeInstanceDetails`. Its `applications` are empty if Serve does not run."""
        found: dict[str, Any] = self._dashboard.json_of(self._ask("GET"))
        return found

    def put(self, config: Mapping[str, Any]) -> None:
        """Put the whole list of applications. Serve deletes what the last list had and this one has
        not."""
        self._ask("PUT", json=dict(config))

    def _ask(self, method: str, **more: Any) -> httpx.Response:
        seen = 0 if self._own is None else self._own.starts
        try:
            return self._dashboard.ask(method, _PATH, **more)
        except NoAnswer as silence:
            if self._own is None:
                raise
            if not self._own.start_again(seen, self._answers):
                raise ClusterError(_silence(silence, self._answers())) from None
        return self._dashboard.ask(method, _PATH, **more)

    def _answers(self) -> bool:
        try:
            self._dashboard.ask("GET", _ALIVE_PATH, timeout=_ALIVE_S)
            return True
        except ClusterError:
            return False


def _silence(silence: NoAnswer, lives: bool) -> str:
    if lives:
        return f"Serve's controller says nothing; requests are served meanwhile ({silence})"
    return (
        "Ray's dashboard, through which models change, has ended and does not start again: "
        "dashboard.err and dashboard.log among Ray's logs say why; requests are served meanwhile"
    )
