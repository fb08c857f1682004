"""HAProxy's admin socket: sends one command and reads the answer.

Uses the standard library only, like `haproxy_wrapper`.
Source: HAProxy 2.8's management guide, "Unix Socket commands": it closes after the answer.
"""

from __future__ import annotations

import socket


def command(admin_socket: str, words: str, limit_s: float) -> str:
    """The answer to a command. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(limit_s)
        conn.connect(admin_socket)
        conn.sendall(words.encode())
        with conn.makefile("rb") as answer:
            return answer.read().decode("utf-8", "replace")
