"""The log of the servers on a port: the lines that their processes write, in `PORT.log`.

It outlives its servers. When it is full it becomes `PORT.log.1`, and a new one begins, so the last
lines of `_MAX_BYTES` are always there. A full disk costs lines, never a server.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from deployments.process import line_files

_MAX_BYTES = 8 << 20


class ServerLog:
    """Appends lines to the file at `path`. Belongs to one thread."""

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._path, self._most = path, max_bytes

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError):
            if self._size() >= self._most:
                os.replace(self._path, older(self._path))
            line_files.append(self._path, line.encode("utf-8", "replace") + b"\n")

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0


def older(path: Path) -> Path:
    """The file with the lines before those at `path`."""
    return path.with_name(f"{path.name}.1")
