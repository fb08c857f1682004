"""The dashboard that this process's own Ray has, through which lists of applications are put.

`ray.init` starts it as a child, and nothing of Ray starts it again: without it no model could be
changed any more, though requests are served. It is started again where it is asked and missing, or
hangs, with the command, the environment and so the address that it had. No Ray is imported.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import psutil

from deployments.control.supervisor.orphaned_processes import runs

_PROGRAM = "dashboard.py"
_STARTS_S = 60.0  # its imports take 3 to 6 s on a busy machine
_LOOKS_S = 0.2
logger = logging.getLogger("headrace.host")


class DashboardProcess:
    """`found`: the process as Ray started it."""

    def __init__(self, found: psutil.Process) -> None:
        self._process = found
        self._command, self._environ, self._folder = found.cmdline(), found.environ(), found.cwd()

    def start_again(self, answers: Callable[[], bool]) -> None:
        """End it, if it hangs, and start another; returns once that answers, has ended too, or a
        minute is over. `answers` has a limit of its own."""
        self._start()
        end = time.monotonic() + _STARTS_S
        while not answers() and runs(self._process) and time.monotonic() < end:
            time.sleep(_LOOKS_S)

    def _start(self) -> None:
        why = "hangs and is ended" if runs(self._process) else "has ended"
        logger.warning("Ray's dashboard, process %d, %s; another starts", self._process.pid, why)
        if runs(self._process):
            self._process.kill()
            psutil.wait_procs([self._process], timeout=_STARTS_S)
        self._process = psutil.Popen(
            self._command,
            env=self._environ,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def own(address: str, children: Sequence[psutil.Process] | None = None) -> DashboardProcess | None:
    """The dashboard at this address among this process's children; None where it is another's."""
    port = f"--port={urlsplit(address).port}"
    for child in psutil.Process().children() if children is None else children:
        try:
            command = child.cmdline()
            if port in command and any(word.endswith(_PROGRAM) for word in command):
                return DashboardProcess(child)
        except psutil.Error:
            continue
    return None
