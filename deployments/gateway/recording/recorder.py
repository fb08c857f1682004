"""What a gateway keeps of one model's traffic, and when it is written.

`offer` is called for every request of rows: it keeps time, length and tenant, and gives rows to the
reservoir. Of a request to generate `generated` keeps lengths alone, once its output is known. A
thread writes, some seconds later, and at the end. Each gateway writes a part of its
own (`parts/NAME`, see `part.py`), which `headrace record` puts together.

It never fails a request: a disk that is full, or a store that stays away, is said once in the log
and ends the recording.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deployments.contract.description import Recording
from deployments.gateway.recording.part import GENERATED, HEADER, Line, part_of
from deployments.gateway.rows import Rows
from deployments.settings.remote_source import SourceError

_LAST_WRITE_S = 5.0  # at the end, a part may take this share of its interval, and 5 s at least
logger = logging.getLogger("headrace.record")


def steady_wall_clock() -> Callable[[], float]:
    """Seconds since the epoch as of now, and from then on as they pass, whatever is set."""
    ahead_s = time.time() - time.monotonic()
    return lambda: ahead_s + time.monotonic()


class Recorder:
    """`part`: its own. `clock`: seconds since the epoch; requests are replayed by their
    differences, so a wall clock that is set meanwhile is not followed. Thread-safe."""

    def __init__(
        self,
        recording: Recording,
        gateway: str,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        # A start's or a change's own: what was kept before stays whole.
        header = GENERATED if recording.generates else HEADER
        self.part = part_of(recording.folder, f"{gateway}-{secrets.token_hex(4)}", header)
        self._recording = recording
        self._clock = clock or steady_wall_clock()
        self._reservoir = Reservoir(
            recording.edges, recording.max_rows, recording.max_bytes, rng or random.Random()
        )
        self._lines: list[Line] = []
        self._requests = 0
        self._failures = 0
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
            self._keep(f"{self._clock():.6f}", max(rows.lengths), tenant)
            self._changed = self._reservoir.offer(rows) or self._changed

    def now(self) -> float:
        """When a request to generate comes, as `generated` is to be told."""
        return self._clock()

    def generated(self, tenant: str, at: float, prompt: int, output: int) -> None:
        """A request that came `at` that time has ended, after so many tokens of output."""
        if not self._failed:
            with self._lock:
                self._keep(f"{at:.6f}", prompt, output, tenant)

    def _keep(self, *line: str | int) -> None:
        if self._requests < self._recording.max_requests:
            self._requests += 1
            self._lines.append(line)

    def close(self) -> None:
        """Writes what is left."""
        self._over.set()
        self._thread.join(timeout=max(_LAST_WRITE_S, self.part.every_s / 2))

    def _write_on(self) -> None:
        over = False
        while not over and not self._failed:
            over = self._over.wait(self.part.every_s)
            try:
                self.write()
            except Exception as error:  # each store's library has errors of its own
                self._failed = over or self._failures >= self.part.failures
                self._say(error)

    def _say(self, error: Exception) -> None:
        expected = isinstance(error, OSError | SourceError)
        says, then = ("recording ends", "") if self._failed else ("not recorded yet", "; later")
        logger.log(
            logging.ERROR if self._failed else logging.WARNING,
            "%s: %s cannot be written: %s%s",
            says, self.part, error, then, exc_info=None if expected else error,
        )  # fmt: skip

    def write(self) -> None:
        """What came since the last time. Raises what the disk or the store says."""
        with self._lock:
            lines, self._lines = self._lines, []
            changed, self._changed = self._changed, False
            columns = self._reservoir.columns() if changed else {}
        again, self._failures = self._failures, self._failures + 1
        try:
            if lines or again:
                self.part.append(lines)
            if changed:
                self.part.replace(columns)
        except BaseException:
            with self._lock:
                self._changed = self._changed or changed
            raise
        self._failures = 0


Array = np.ndarray[Any, Any]
StoredRow = dict[str, Array]


@dataclass(slots=True)
class _Bucket:
    seen: int = 0
    rows: list[StoredRow] = field(default_factory=list)


class Reservoir:
    """Which rows are kept of all that came? As many of each length bucket, drawn evenly.

    Vitter's algorithm R within a bucket: the n-th row replaces a kept one with probability
    room / n. Bytes are bounded too: a row for which there is no room is passed over. A row's arrays
    are copied when it is kept and not before, for they are views of a request's body. `edges`:
    ascending, tokens, the last one for whatever is longer. Not thread-safe.
    Source: J. S. Vitter, "Random sampling with a reservoir" (1985).
    """

    def __init__(
        self, edges: Sequence[int], max_rows: int, max_bytes: int, rng: random.Random
    ) -> None:
        self._edges = tuple(edges)
        self._room = max(1, max_rows // len(self._edges))
        self._max_bytes = max_bytes
        self._rng = rng
        self._buckets = [_Bucket() for _ in self._edges]
        self._bytes = 0

    @property
    def seen(self) -> int:
        return sum(bucket.seen for bucket in self._buckets)

    def offer(self, rows: Rows) -> bool:
        """Whether any row was kept."""
        kept = [self._offer(rows, row) for row in range(rows.count)]
        return any(kept)

    def columns(self) -> dict[str, list[Array]]:
        """What is kept, by input, shortest bucket first; only rows of the same inputs as most."""
        rows = [row for bucket in self._buckets for row in bucket.rows]
        kinds = [tuple(sorted(row)) for row in rows]
        usual = max(set(kinds), key=kinds.count, default=())
        chosen = [row for row, kind in zip(rows, kinds, strict=True) if kind == usual]
        return {name: [row[name] for row in chosen] for name in usual}

    def _offer(self, rows: Rows, row: int) -> bool:
        place = min(bisect_left(self._edges, rows.lengths[row]), len(self._edges) - 1)
        bucket = self._buckets[place]
        bucket.seen += 1
        full = len(bucket.rows) >= self._room
        at = self._rng.randrange(bucket.seen) if full else len(bucket.rows)
        if at >= self._room:
            return False
        freed = _size(bucket.rows[at]) if full else 0
        needed = sum(_bytes(column.rows[row]) for column in rows.inputs.values())
        if self._bytes - freed + needed > self._max_bytes:
            return False
        kept = {
            name: column.rows[row].reshape(column.shapes[row]).copy()
            for name, column in rows.inputs.items()
        }
        if full:
            bucket.rows[at] = kept
        else:
            bucket.rows.append(kept)
        self._bytes += needed - freed
        return True


def _size(row: StoredRow) -> int:
    return sum(_bytes(array) for array in row.values())


def _bytes(array: Array) -> int:
    """Of texts their own, beside the references to them."""
    texts = sum(map(len, array.reshape(-1).tolist())) if array.dtype.kind == "O" else 0
    return array.nbytes + texts
