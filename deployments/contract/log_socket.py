"""How do log lines of the cluster's processes reach the terminal of whoever started it?

Ray sends its workers' output to files of its own, mixed with its own lines. On a local cluster the
host opens a Unix datagram socket and names it in the environment; workers write each line of ours
to it, one datagram a line. Writing never waits: when nobody reads fast enough, or the host is gone,
the line is dropped. Without the variable (on Kubernetes) lines go to stderr as anywhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

VARIABLE = "HEADRACE_LOG_SOCKET"
_LONGEST_BYTES = 128 * 1024


class _Datagrams(io.TextIOBase):
    """A stream whose every `write` is one datagram."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._socket.sendto(text.encode("utf-8", "replace")[:_LONGEST_BYTES], self._path)
        return len(text)


def stream() -> TextIO | None:
    """Where this process's lines go, None: to stderr."""
    path = os.environ.get(VARIABLE)
    return _Datagrams(path) if path else None  # type: ignore[return-value]


class LogSocket:
    """The host's end: calls `take(line)` on a thread of its own, until closed."""

    def __init__(self, path: Path, take: Callable[[str], None]) -> None:
        self.path = path
        self._take = take
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._take(self._socket.recv(_LONGEST_BYTES).decode("utf-8", "replace").rstrip())

    def close(self) -> None:
        """Lines still on their way are lost."""
        self._socket.close()
        self.path.unlink(missing_ok=True)
