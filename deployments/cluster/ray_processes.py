"""Ray's own processes of a local cluster, without which it is no cluster.

`ray.init` starts GCS and raylet as children of its process. Neither is started again when it ends,
and what is left of the cluster falls apart within a minute: replicas go, nothing is replaced, and
what asks for Ray waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from deployments.cluster.orphaned_processes import runs

_NAMES = {"gcs_server": "control store (gcs_server)", "raylet": "node process (raylet)"}


class RayProcesses:
    """Known by what they are now; `children`: of the process that started Ray."""

    def __init__(self, children: Sequence[psutil.Process]) -> None:
        self._known = {
            f"{_NAMES[name]}, process {each.pid}": each
            for each in children
            if (name := _name(each)) in _NAMES
        }

    def ended(self) -> str | None:
        """The first that runs no more, in words."""
        return next((words for words, each in self._known.items() if not runs(each)), None)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""
