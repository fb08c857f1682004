"""The rows that are kept of all that came: as many of each length bucket, drawn evenly.

Vitter's algorithm R within a bucket: the n-th row replaces a kept one with probability room / n, so
that what is kept is an even sample of all that came, however many did. Bytes are bounded too: a row
for which there is no room is passed over. A row's arrays are copied when it is kept and not before,
for they are views of a request's body.

Source: J. S. Vitter, "Random sampling with a reservoir" (1985).
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deployments.gateway.rows import Rows

Array = np.ndarray[Any, Any]
StoredRow = dict[str, Array]


@dataclass(slots=True)
class _Bucket:
    seen: int = 0
    rows: list[StoredRow] = field(default_factory=list)


class Reservoir:
    """`edges`: ascending, tokens, the last one for whatever is longer. Not thread-safe."""

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
