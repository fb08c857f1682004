"""What a gateway keeps of one model's traffic, and when it is written.

`offer` is called for every request: it keeps time, length and tenant, and gives rows to the
reservoir; files are written by a thread, some seconds later, and at the end. Each gateway writes a
folder of its own (`parts/NAME`), which `headrace record` puts together. Files are their owner's
alone (0600): they hold what callers sent.

It never fails a request: a disk that is full is said once in the log, and ends the recording.
"""

from __future__ import annotations

import contextlib
import csv
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from deployments.contract.description import Recording
from deployments.gateway.recording.reservoir import Reservoir
from deployments.gateway.rows.types import Rows
from runtimes import ragged_file

EVERY_S = 5.0
HEADER = ("time", "length", "tenant")
TRACE = "trace.csv"
PARTS = "parts"
logger = logging.getLogger("headrace.record")


class Recorder:
    """`part`: a folder of its own. `clock`: seconds since the epoch; requests are replayed by
    their differences. Thread-safe."""

    def __init__(
        self,
        recording: Recording,
        gateway: str,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # A start's or a change's own: what was kept before stays whole.
        self.part = Path(recording.folder) / PARTS / f"{gateway}-{secrets.token_hex(4)}"
        self._recording = recording
        self._clock = clock
        self._reservoir = Reservoir(
            recording.edges, recording.max_rows, recording.max_bytes, rng or random.Random()
        )
        self._lines: list[tuple[str, int, str]] = []
        self._requests = 0
        self._changed = self._failed = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="record", daemon=True)
        self._thread.start()

    def offer(self, tenant: str, rows: Rows) -> None:
        """One request's rows, before they queue."""
        if self._failed:
            return
        with self._lock:
            if self._requests < self._recording.max_requests:
                self._requests += 1
                self._lines.append((f"{self._clock():.6f}", max(rows.lengths), tenant))
            self._changed = self._reservoir.offer(rows) or self._changed

    def close(self) -> None:
        """Writes what is left."""
        self._over.set()
        self._thread.join(timeout=EVERY_S)

    def _write_on(self) -> None:
        over = False
        while not over and not self._failed:
            over = self._over.wait(EVERY_S)
            try:
                self.write()
            except OSError as error:
                self._failed = True
                logger.error("recording ends: %s cannot be written: %s", self.part, error)
            except Exception:
                self._failed = True
                logger.exception("recording ends: %s cannot be written", self.part)

    def write(self) -> None:
        """What came since the last time. Raises OSError."""
        with self._lock:
            lines, self._lines = self._lines, []
            changed, self._changed = self._changed, False
            columns = self._reservoir.columns() if changed else {}
        if not lines and not changed:
            return
        self.part.mkdir(parents=True, exist_ok=True, mode=0o700)
        if lines:
            trace = self.part / TRACE
            fresh = not trace.exists()
            with open(trace, "a", opener=_private, newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream)
                writer.writerows([HEADER, *lines] if fresh else lines)
        if changed:
            self._replace(columns)

    def _replace(self, columns: dict[str, list[ragged_file.Array]]) -> None:
        """Whole or not at all: a reader may come at any time."""
        made = self.part / f".{ragged_file.FILE}"
        try:
            with open(made, "wb", opener=_private) as stream:
                ragged_file.write(stream, columns)
            os.replace(made, self.part / ragged_file.FILE)
        finally:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    """Opened so that only its owner may read it."""
    return os.open(path, flags, 0o600)
