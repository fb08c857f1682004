"""What a process says to the one that started it: JSON lines that nobody waits for.

The reader may be a terminal that was stopped, a pipe that nobody empties, or gone. Lines are
written by a thread of their own, past Python's buffers, whose locks a blocked writer would hold at
exit.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from typing import Any

MOST_LINES = 10_000  # that wait; later ones are lost


class EventLines:
    """`descriptor`: of an open file, which stays open."""

    def __init__(self, descriptor: int, most: int = MOST_LINES) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[bytes | None] = queue.Queue(most)
        self._writer = threading.Thread(target=self._write, name="event-lines", daemon=True)
        self._writer.start()

    def say(self, event: str, **fields: Any) -> None:
        """Returns at once, from any thread."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(json.dumps({"event": event, **fields}).encode() + b"\n")

    def close(self, limit_s: float = 1.0) -> None:
        """When all is written, or after the limit: who does not read does not keep us."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._writer.join(limit_s)

    def _write(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            while (line := self._waiting.get()) is not None:
                while line:
                    line = line[os.write(self._descriptor, line) :]
