"""Have these texts been tokenised before? A least-recently-used cache, bounded in bytes.

Keyed by the whole text, never by a hash of it alone: two texts are never confused. Values are
read-only arrays that callers share. A hit costs about half a microsecond, so it is looked up on the
event loop; texts that would fill a large part of the cache are not kept. It does not know
whose text it holds: equal texts of two tenants give equal tokens, and no answer is kept here.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

IdArray = np.ndarray[Any, np.dtype[np.int64]]

_ENTRY_BYTES = 200  # dictionary slot, array header and links, measured with tracemalloc
_LARGEST_SHARE = 16  # a text may take a sixteenth of the cache


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    entries: int
    bytes: int
    limit_bytes: int
    hits_total: int
    misses_total: int


class TextCache:
    """Thread-safe: threads fill it while the event loop looks texts up."""

    def __init__(self, limit_bytes: int):
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[IdArray, int]] = OrderedDict()
        self._bytes = self._hits = self._misses = 0

    def get(self, text: str) -> IdArray | None:
        with self._lock:
            entry = self._entries.get(text)
            if entry is None:
                self._misses += 1
                return None
            self._entries.move_to_end(text)
            self._hits += 1
            return entry[0]

    def put(self, text: str, ids: IdArray) -> None:
        size = sys.getsizeof(text) + ids.nbytes + _ENTRY_BYTES
        if size * _LARGEST_SHARE > self._limit_bytes:
            return
        with self._lock:
            old = self._entries.pop(text, None)
            self._bytes += size - (old[1] if old else 0)
            self._entries[text] = (ids, size)
            while self._bytes > self._limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed

    def statistics(self) -> CacheStatistics:
        with self._lock:
            return CacheStatistics(
                len(self._entries), self._bytes, self._limit_bytes, self._hits, self._misses
            )
