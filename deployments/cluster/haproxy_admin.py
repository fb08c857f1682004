"""HAProxy's admin socket: one command, one answer. Standard library alone, like `haproxy_wrapper`.

Source: HAProxy 2.8's management guide, "Unix Socket commands": it closes after the answer.
"""

from __future__ import annotations

import socket


def command(admin_socket: str, words: str, limit_s: float) -> str:
    """The answer. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(limit_s)
        conn.connect(admin_socket)
        conn.sendall(words.encode())
        with conn.makefile("rb") as answer:
            return answer.read().decode("utf-8", "replace")
