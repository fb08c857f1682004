"""Ray Serve's REST interface of one cluster: reads what runs, and puts a list of applications.

Source: Ray 2.60 `dashboard/modules/serve/serve_head.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from deployments.control.dashboard import ClusterError, Dashboard, NoAnswer

ANSWER_S = 120.0  # the first list that a cluster gets also starts Serve
_PATH = "/api/serve/applications/"
_ALIVE_PATH = "/api/ray/version"  # answered by the same process, without Serve's controller
_ALIVE_S = 5.0
_TRIES_S = 0.5


class ServeRest:
    """A client of the interface. Every method blocks and raises ClusterError. `patience_s`: to wait
    for a dashboard that does not answer what only reads: its host starts another. `pause` waits
    between two tries."""

    def __init__(
        self,
        dashboard: Dashboard,
        patience_s: float = 0.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._dashboard = dashboard
        self._patience_s = patience_s
        self._pause = pause

    def details(self) -> dict[str, Any]:
        """`ServeInstanceDetails`. Its `applications` are empty if Serve does not run."""
        end = time.monotonic() + self._patience_s
        while True:
            try:
                found: dict[str, Any] = self._dashboard.json_of(self._ask("GET"))
                return found
            except NoAnswer as silence:
                if self._patience_s == 0.0:
                    raise
                if time.monotonic() >= end:
                    raise ClusterError(_silence(silence, self.answers())) from None
                self._pause(_TRIES_S)

    def put(self, config: Mapping[str, Any]) -> None:
        """Put the whole list of applications. Serve deletes what the last list had and this one has
        not."""
        self._ask("PUT", json=dict(config))

    def _ask(self, method: str, **more: Any) -> httpx.Response:
        return self._dashboard.ask(method, _PATH, **more)

    def answers(self) -> bool:
        """Whether the dashboard itself answers, be it without Serve's controller."""
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
