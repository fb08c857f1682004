"""Folders of a server on small disks of their own, which fill up while it serves.

Each is a tmpfs in a mount namespace of the server's alone, gone with its last process. Only root
may make one; files are put there from outside through `/proc/PID/root`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from served import Server

_MOUNTED = """
while [ "$1" != -- ]; do
  mkdir -p "$2" && mount -t tmpfs -o "size=$1,mode=700" chaos "$2" || exit 3
  shift 2
done
shift
exec "$@"
"""
_BLOCK = b"\0" * 4096


class SmallDisks:
    """`folders`: their sizes, as mount(8) takes them. For a server that has not been started."""

    def __init__(self, server: Server, folders: Mapping[Path, str]) -> None:
        self._server = server
        words = [word for path, size in folders.items() for word in (size, str(path))]
        server.before = ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh", *words, "--"]

    def started(self) -> None:
        """Other commands see the same disks from now on."""
        self._server.beside = ["nsenter", "--mount", f"--target={self._server.process.pid}"]

    def fill(self, folder: Path) -> None:
        """To the last block."""
        with self._filler(folder).open("wb", buffering=0) as file:
            try:
                while file.write(_BLOCK):
                    pass
            except OSError as full:
                if full.errno != errno.ENOSPC:
                    raise

    def free(self, folder: Path) -> None:
        self._filler(folder).unlink(missing_ok=True)

    def lacks_room(self, folder: Path) -> bool:
        found = os.statvfs(self._seen(folder))
        return found.f_bavail == 0

    def found(self, folder: Path, pattern: str) -> list[Path]:
        """Files there, as this process may read them."""
        return list(self._seen(folder).glob(pattern))

    def _filler(self, folder: Path) -> Path:
        return self._seen(folder) / "filler"

    def _seen(self, folder: Path) -> Path:
        return Path(f"/proc/{self._server.process.pid}/root{folder}")
