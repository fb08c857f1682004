"""Ray's own processes of a local cluster, which must all live.

`ray.init` starts GCS and raylet as children of its process. Neither is restarted when it ends, and
the rest of the cluster falls apart within a minute: replicas end, nothing is replaced, and calls to
Ray block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from deployments.control.supervisor.orphaned_processes import runs

_NAMES = {"gcs_server": "control store (gcs_server)", "raylet": "node process (raylet)"}


@dataclass(frozen=True, slots=True)
class RayProcess:
    """One of Ray's own processes."""

    name: str  # for people
    address: str  # "host:port", where it answers health checks
    process: psutil.Process

    def __str__(self) -> str:
        return f"{self.name}, process {self.process.pid}"

    def event(self) -> dict[str, object]:
        """What another process needs to watch it, as JSON: the fields of `of_event`."""
        return {"name": self.name, "address": self.address, "pid": self.process.pid}


def of_event(fields: Mapping[str, object]) -> RayProcess:
    """The process that an `event` describes. Raises psutil.NoSuchProcess if it has ended."""
    pid = int(str(fields["pid"]))
    return RayProcess(str(fields["name"]), str(fields["address"]), psutil.Process(pid))


def among(children: Sequence[psutil.Process], addresses: Mapping[str, str]) -> list[RayProcess]:
    """Ray's own processes among `children` of the process that started Ray. `addresses`: by the
    name that the kernel knows a process by (gcs_server, raylet)."""
    named = [(name, each) for each in children if (name := _name(each)) in _NAMES]
    return [RayProcess(_NAMES[name], addresses[name], each) for name, each in named]


def ended(processes: Sequence[RayProcess]) -> RayProcess | None:
    """The first that does not run any more; None if all run."""
    return next((each for each in processes if not runs(each.process)), None)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""
