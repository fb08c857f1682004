"""Finds and ends the processes that a killed server left behind.

Every process of a server's cluster inherits the environment variable `VARIABLE`: an id that the
server draws at random when it starts, and keeps in its state files. A process that carries the id
of a server whose host is dead is an orphan of that server: raylet, GCS, agents, replicas, HAProxy
and its manager. A name, a port or a path proves too little, so no other process is ever ended.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path

import psutil

from deployments.control.supervisor import server_files
from deployments.control.supervisor.server_files import ServerState

VARIABLE = "HEADRACE_SERVER_ID"
TERM_S = 5.0  # a raylet and its workers need a second or two to end in order
_KILL_S = 30.0  # for all rounds: ending processes may have started others meanwhile
_POLL_S = 0.05


def find(server_id: str) -> list[psutil.Process]:
    """All living processes that carry the id, except this process and its ancestors."""
    if not server_id:
        return []
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [p for p in psutil.process_iter() if p.pid not in own and _carried(p) == server_id]


def _carried(process: psutil.Process) -> str:
    """The id in a process's environment; "" if there is none, or it may not be read."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return process.environ().get(VARIABLE, "")
    except (psutil.Error, OSError):
        return ""


def end(server_id: str, term_s: float = TERM_S, kill_s: float = _KILL_S) -> list[str]:
    """End all processes that carry the id: SIGTERM once, then SIGKILL until none is left. Returns
    their names. Raises TimeoutError if some remain after `term_s + kill_s`."""
    names: dict[int, str] = {}
    deadline = time.monotonic() + term_s + kill_s
    signal_one, wait_s = psutil.Process.terminate, term_s
    while met := find(server_id):
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in met)
            raise TimeoutError(f"processes {pids} of a killed server do not end")
        for process in met:
            with contextlib.suppress(psutil.Error):
                names[process.pid] = process.name()
                signal_one(process)
        waits_until = time.monotonic() + wait_s
        while any(map(runs, met)) and time.monotonic() < waits_until:
            time.sleep(_POLL_S)
        signal_one, wait_s = psutil.Process.kill, 1.0
    return sorted(names.values())


def runs(process: psutil.Process) -> bool:
    """Whether the process runs. A zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def clear(dead: ServerState, folder: Path) -> str | None:
    """End what a dead server left, and remove its files from the state folder and its run folder.
    Returns a sentence on it; None if no process was left.

    Raises TimeoutError, and keeps the files, if a process does not end.
    """
    names = end(dead.server_id)
    if dead.server.of_this_boot:  # else it may be alive on another machine with the same home
        server_files.remove_run_folder(dead.port, dead.server_id)
        server_files.remove(dead.port, folder, dead.server_id)
    if not names:
        return None
    counted = [f"{count} {name}" for name, count in sorted(Counter(names).items())]
    what = f"{len(names)} processes" if len(names) > 1 else "a process"
    return f"ended {what} that a killed server left on port {dead.port}: {', '.join(counted)}"
