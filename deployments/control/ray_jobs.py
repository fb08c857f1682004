"""Ray's job interface of one cluster: runs a command on the head node and returns its output.

Nothing here imports Ray.
Source: Ray 2.60 `dashboard/modules/job/job_head.py` (`POST /api/jobs/` and below).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from deployments.control.dashboard import ClusterError, Dashboard

_PATH = "/api/jobs/"
_POLL_S = 0.5
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class JobFailed(ClusterError):
    """A job did not succeed. `output` is what it printed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class RayJobs:
    """A client of the job interface. Every method blocks and raises ClusterError."""

    def __init__(self, dashboard: Dashboard, pause: Callable[[float], None] = time.sleep) -> None:
        self._dashboard, self._pause = dashboard, pause

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._dashboard.close()

    def lets_anybody_in(self) -> bool:
        """Whether the cluster runs jobs for callers without a token."""
        found = self._dashboard.answer("GET", _PATH, headers={"Authorization": ""})
        return found.status_code == 200

    def run(self, command: str, timeout_s: float) -> str:
        """Run `command` in a shell on the head node. Returns its output. Raises JobFailed."""
        job = self._json("POST", _PATH, json={"entrypoint": command})["submission_id"]
        try:
            status = self._until_ended(job, timeout_s)
            output = str(self._json("GET", f"{_PATH}{job}/logs")["logs"])
        except JobFailed:
            self._json("POST", f"{_PATH}{job}/stop")
            raise
        if status["status"] != "SUCCEEDED":
            raise JobFailed(status.get("message") or "the job did not succeed", output)
        self._json("DELETE", f"{_PATH}{job}")
        return output

    def _until_ended(self, job: str, timeout_s: float) -> dict[str, Any]:
        waited_s = 0.0
        while True:
            status: dict[str, Any] = self._json("GET", f"{_PATH}{job}")
            if status["status"] in _ENDED:
                return status
            if waited_s >= timeout_s:
                raise JobFailed(f"not done within {timeout_s:g} s")
            self._pause(_POLL_S)
            waited_s += _POLL_S

    def _json(self, method: str, path: str, **body: Any) -> Any:
        """The JSON of the answer."""
        return self._dashboard.json_of(self._dashboard.ask(method, path, **body))
