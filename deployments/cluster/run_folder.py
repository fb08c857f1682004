"""Where does a running server keep its sockets and HAProxy's files?

One folder a port, for its owner alone, gone when the server is. Its name is short because a Unix
socket's path may have 97 characters in HAProxy, 68 of which Serve takes (the node's id); what must
outlive a server stands in the state folder (`state_file`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def path_of(port: int) -> Path:
    return Path("/tmp") / f"headrace-{os.getuid()}-{port}"


def made(port: int) -> Path:
    """The folder, made where there is none. Raises PermissionError when it is somebody else's."""
    path = path_of(port)
    path.mkdir(mode=0o700, exist_ok=True)
    if path.lstat().st_uid != os.getuid() or path.is_symlink():
        raise PermissionError(f"{path} belongs to somebody else; remove it")
    return path


def remove(port: int) -> None:
    shutil.rmtree(path_of(port), ignore_errors=True)


def control_socket(port: int) -> Path:
    """Where the host of the server on `port` answers the command line."""
    return path_of(port) / "control.sock"
