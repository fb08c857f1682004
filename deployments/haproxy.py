"""Serve's HAProxy: where its files are, and how what it leaves behind is found and ended.

It outlives Ray's end and keeps its port with port sharing, so the next server on that port would
lose connections to it. Ours are told by the configuration's path on their command line, which lies
in a folder of ours; nobody else's process is ever touched. The folder's name is short because a
Unix socket's path may have 97 characters there, 68 of which Serve takes (the node's id).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import psutil

_TERM_WAIT_S = 2.0


def folder_of(port: int) -> str:
    """HAProxy's folder for the server on `port`, made for its owner alone.

    Raises PermissionError when somebody else made it first.
    """
    path = Path("/tmp") / f"headrace-{os.getuid()}-{port}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.lstat().st_uid != os.getuid() or path.is_symlink():
        raise PermissionError(f"{path} belongs to somebody else; remove it")
    return str(path)


def find(folder: str) -> list[psutil.Process]:
    """HAProxy processes whose command line names a file below `folder`."""
    prefix = folder.rstrip("/") + "/"
    ours = []
    for process in psutil.process_iter(["name", "cmdline"]):
        line = process.info["cmdline"] or []
        if "haproxy" in (process.info["name"] or "") and any(a.startswith(prefix) for a in line):
            ours.append(process)
    return ours


def end(folder: str) -> int:
    """Ends them (terminate, then kill), removes the folder, returns how many there were."""
    left = find(folder)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(left, timeout=_TERM_WAIT_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_TERM_WAIT_S)
    shutil.rmtree(folder, ignore_errors=True)
    return len(left)
