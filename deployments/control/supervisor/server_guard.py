"""Ends what the host process cannot end: a part of Ray that hangs, the host itself when it does not
notice that Ray is gone, and what a host that was killed left behind.

Runs in the process that started the host (`headrace serve`), which has not imported Ray. In the
host a call into Ray may hold Python's interpreter lock until Ray gives up, a minute after its
control store ended, and then Ray ends the process before it could clean up (seen once in about a
hundred times). Requests are served while a part of Ray hangs, so a short hang is waited out.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from deployments.control.supervisor import orphaned_processes, ray_processes, server_files
from deployments.control.supervisor.orphaned_processes import runs
from deployments.control.supervisor.ray_processes import RayProcess, ended
from deployments.process.loop_watch import Heartbeat

HANG_S = 90.0  # without an answer, while this process was on time, until a part of Ray is hung
HOST_ENDS_S = 10.0  # the host has this long to end when a part of Ray has ended; it needs about 4
_CHECK_S = 3.0  # a health check's limit, and the time between two
_POLL_S = 0.5


class ServerGuard:
    """Guards the server of the process `host`, which serves on `port`. `say` shows a sentence.
    `answers(address, limit_s)`: whether a process there answers a health check."""

    def __init__(
        self,
        host: subprocess.Popen[str],
        port: int,
        say: Callable[[str], None],
        answers: Callable[[str, float], bool] = ray_processes.answers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._port = port
        self._say = say
        self._answers = answers
        self._clock = clock
        self._lost_at: float | None = None
        self._clearing = threading.Lock()
        self._cleared: str | None = None

    def watch(self, processes: Sequence[RayProcess]) -> None:
        """Watch these parts of Ray, on threads of their own, until the host ends."""
        _in_background(self._until_host_ends, processes)
        for each in processes:
            if each.checked:
                _in_background(self._until_it_hangs, each)

    def clear(self) -> str | None:
        """End what the host left behind, once it has ended. Returns a sentence on it; None if there
        was nothing. Every call returns when all is done, with the same sentence."""
        with self._clearing:
            self._cleared = self._cleared or self._clear()
            return self._cleared

    def _clear(self) -> str | None:
        folder = server_files.state_folder()
        known = server_files.known(self._port, folder)
        left = [s for s in known if s.server.pid == self._host.pid and not s.alive]
        try:
            said = [orphaned_processes.clear(each, folder) for each in left]
        except TimeoutError as error:
            return f"{error}; `headrace stop --port {self._port}` tries again"
        return next((sentence for sentence in said if sentence), None)

    def _until_host_ends(self, processes: Sequence[RayProcess]) -> None:
        while self._host.poll() is None:
            self.check_host(processes)
            time.sleep(_POLL_S)

    def check_host(self, processes: Sequence[RayProcess]) -> None:
        """Kill the host if a part of Ray ended `HOST_ENDS_S` ago and the host is still there."""
        lost = ended(processes)
        if lost is None:
            return
        if self._lost_at is None:
            self._lost_at = self._clock()
        elif self._clock() - self._lost_at > HOST_ENDS_S and self._host.poll() is None:
            self._host.kill()
            self._say(
                f"Ray's {lost}, has ended, and the server's own process {self._host.pid} had not "
                f"ended {HOST_ENDS_S:g} s later: it was killed"
            )

    def _until_it_hangs(self, watched: RayProcess) -> None:
        heartbeat, answers = Heartbeat(2 * _CHECK_S), 0
        while self._host.poll() is None and runs(watched.process):
            answers += self._answers(watched.address, _CHECK_S)
            if heartbeat.look(answers, self._clock()) >= HANG_S:
                with contextlib.suppress(psutil.NoSuchProcess):
                    watched.process.kill()
                self._say(f"Ray's {watched}, had not answered for {HANG_S:g} s: it was killed")
                return
            time.sleep(_CHECK_S)


def _in_background(run: Callable[[Any], None], argument: Any) -> None:
    threading.Thread(target=run, args=(argument,), name="server-guard", daemon=True).start()
