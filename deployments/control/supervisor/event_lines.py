"""Events from a process to the one that started it, as JSON lines that are never waited for.

The reader may be a stopped terminal, a pipe that nobody empties, or gone. A thread of its own
writes the lines, without Python's buffers: a blocked writer would hold their locks at exit.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from typing import Any

MAX_LINES = 10_000  # that wait to be written; further ones are lost


class EventLines:
    """Writes to `descriptor`, an open file, which stays open."""

    def __init__(self, descriptor: int, most: int = MAX_LINES) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[bytes | None] = queue.Queue(most)
        self._writer = threading.Thread(target=self._write, name="event-lines", daemon=True)
        self._writer.start()

    def say(self, event: str, **fields: Any) -> None:
        """Queue an event. Returns at once; any thread may call it."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(json.dumps({"event": event, **fields}).encode() + b"\n")

    def close(self, limit_s: float = 1.0) -> None:
        """Return when all is written, or after the limit: a reader that does not read delays no
        exit."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._writer.join(limit_s)

    def _write(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            while (line := self._waiting.get()) is not None:
                while line:
                    line = line[os.write(self._descriptor, line) :]
