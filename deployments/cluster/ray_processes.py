"""Ray's own processes of a local cluster, which must all live.

`ray.init` starts GCS and raylet as children of its process. Neither is restarted when it ends, and
the rest of the cluster falls apart within a minute: replicas end, nothing is replaced, and calls to
Ray block.
"""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from deployments.cluster.orphaned_processes import runs

_NAMES = {"gcs_server": "control store (gcs_server)", "raylet": "node process (raylet)"}


class RayProcesses:
    """Remembers Ray's processes among `children` of the process that started Ray."""

    def __init__(self, children: Sequence[psutil.Process]) -> None:
        self._known = {
            f"{_NAMES[name]}, process {each.pid}": each
            for each in children
            if (name := _name(each)) in _NAMES
        }

    def ended(self) -> str | None:
        """The first of them that does not run any more, in words; None if all run."""
        return next((words for words, each in self._known.items() if not runs(each)), None)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""
