"""A server whose output nobody reads, until its test reads it again (`Server.reads`)."""

from __future__ import annotations

import errno
import os

from served import Server


def block(server: Server) -> None:
    """Whoever writes a line from now on waits until somebody reads."""
    server.reads.clear()
    there = os.open(f"/proc/{server.process.pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        while os.write(there, b"." * 64):
            pass
    except OSError as full:
        if full.errno != errno.EAGAIN:
            raise
    finally:
        os.close(there)
