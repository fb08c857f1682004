"""How are answers cached by row? The least recently used are evicted; bytes and age are bounded.

A row's key is a 256-bit hash of the model's version, the wanted outputs, and each input's name,
datatype, shape and elements as the model gets them, so a text and its tokens have the same key. It
is keyed with a secret of this process: nobody can prepare inputs that collide. Holders (tenants, or
one for all where a model's answers are public) are kept apart and share the bytes fairly: one with
less than an equal share takes room from the holder that has most, any other from itself. Only
answers are kept, never errors, and none larger than a sixteenth of the cache.
Source: RFC 7693 (BLAKE2).
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from deployments.gateway.rows import Array, RowAnswer

# What Python takes besides an output's elements, measured with tracemalloc: for an entry with its
# key and its slot in a dictionary that has just grown, and for each output.
_ENTRY_BYTES = 640
_OUTPUT_BYTES = 176
_LARGEST_SHARE = 16  # no entry is larger than the cache divided by this


@dataclass(frozen=True, slots=True)
class ResponseCacheStatistics:
    """Counted in rows."""

    entries: int
    bytes: int
    hits_total: int
    misses_total: int
    evictions_total: int  # dropped to make room, not for their age or an earlier version


@dataclass(slots=True)
class _Entry:
    answer: RowAnswer
    bytes: int
    until: float  # when it is too old, on the caller's clock


@dataclass(slots=True)
class _Holder:
    entries: OrderedDict[bytes, _Entry] = field(default_factory=OrderedDict)
    bytes: int = 0


class ResponseCache:
    """One model's cached answers. For the event loop's thread alone."""

    def __init__(self, limit_bytes: int, ttl_s: float) -> None:
        self._limit_bytes, self._ttl_s = limit_bytes, ttl_s
        self._holders: dict[str, _Holder] = {}
        self._bytes = self._hits = self._misses = self._evictions = 0

    def get(self, holder: str, key: bytes, now: float) -> RowAnswer | None:
        """The cached answer, which others share and nobody may write to; None: there is none."""
        held = self._holders.get(holder)
        entry = None if held is None else held.entries.get(key)
        if held is None or entry is None:
            self._misses += 1
            return None
        if entry.until <= now:
            self._drop(holder, held, key)
            self._misses += 1
            return None
        held.entries.move_to_end(key)
        self._hits += 1
        return entry.answer

    def put(
        self, holder: str, key: bytes, answer: RowAnswer, outputs: Collection[str], now: float
    ) -> None:
        """Keep a copy of these outputs. A copy, because an answer's arrays are views into those of
        its whole batch."""
        assert answer.error is None
        size = _ENTRY_BYTES + sum(_size(answer.outputs[name][1]) for name in outputs)
        if size * _LARGEST_SHARE > self._limit_bytes:
            return
        held = self._holders.get(holder)
        if held is not None and key in held.entries:
            self._drop(holder, held, key)
        held = self._holders.setdefault(holder, _Holder())
        held.entries[key] = _Entry(_copy(answer, outputs), size, now + self._ttl_s)
        held.bytes += size
        self._bytes += size
        while self._bytes > self._limit_bytes:
            self._evict_for(holder)

    def adopt(self, limit_bytes: int, ttl_s: float) -> None:
        """Forget everything, and adopt other bounds."""
        self._limit_bytes, self._ttl_s = limit_bytes, ttl_s
        self._holders.clear()
        self._bytes = 0

    def statistics(self) -> ResponseCacheStatistics:
        entries = sum(len(held.entries) for held in self._holders.values())
        return ResponseCacheStatistics(
            entries, self._bytes, self._hits, self._misses, self._evictions
        )

    def _evict_for(self, newcomer: str) -> None:
        """Drop the oldest entry of the holder that has to make room for `newcomer`'s."""
        name, held = newcomer, self._holders[newcomer]
        if held.bytes * len(self._holders) < self._limit_bytes:
            # The newcomer has less than an equal share, so another holder has more than that. All
            # holders are scanned, but only as often as the newcomer's share has room for entries.
            name, held = max(self._holders.items(), key=_held_bytes)
        self._drop(name, held, next(iter(held.entries)))
        self._evictions += 1

    def _drop(self, holder: str, held: _Holder, key: bytes) -> None:
        size = held.entries.pop(key).bytes
        held.bytes -= size
        self._bytes -= size
        if not held.entries:
            del self._holders[holder]


def _held_bytes(item: tuple[str, _Holder]) -> int:
    return item[1].bytes


def _size(array: Array) -> int:
    if array.dtype != object:
        return _OUTPUT_BYTES + array.nbytes
    return _OUTPUT_BYTES + array.nbytes + sum(map(sys.getsizeof, array.reshape(-1).tolist()))


def _copy(answer: RowAnswer, outputs: Collection[str]) -> RowAnswer:
    kept = {}
    for name in outputs:
        datatype, array = answer.outputs[name]
        own = array.copy()
        own.flags.writeable = False
        kept[name] = (datatype, own)
    return RowAnswer(kept, version=answer.version)
