"""Hands a listening socket from the process that holds it to the one that accepts from it.

The holder outlives whoever accepts: connections that come while nobody does wait in the socket's
queue. The Unix socket by which it is handed over stays open for as long as it is used, so that each
side sees the other's end at once.
Source: unix(7), SCM_RIGHTS.
"""

from __future__ import annotations

import os
import socket

INGRESS_SOCKET = "HEADRACE_INGRESS_SOCKET"
"""The environment variable with the Unix socket's path; unset where HAProxy takes the callers."""


def path_of_holder() -> str | None:
    return os.environ.get(INGRESS_SOCKET) or None


def received(path: str, limit_s: float) -> tuple[socket.socket, socket.socket]:
    """The connection to the holder, and the listening socket. Raises OSError."""
    holder = socket.socket(socket.AF_UNIX)
    holder.settimeout(limit_s)
    try:
        holder.connect(path)
        _, files, _, _ = socket.recv_fds(holder, 1, 1)
        if not files:
            raise ConnectionError(f"{path} handed over no socket")
    except OSError:
        holder.close()
        raise
    return holder, socket.socket(fileno=files[0])


def hand_over(receiver: socket.socket, listening: socket.socket) -> None:
    """Raises OSError."""
    socket.send_fds(receiver, [b"\0"], [listening.fileno()])
