"""Which rows of a request need not run, because an answer is cached or is being computed already?

`AnswerReuse` owns one model's response cache and shared runs. Rows are answered from the cache one
by one; the remaining rows are one run, which identical requests share. Both start anew with each
version: an answer is looked up for the live version, and kept only if its version is still live
when it comes. Whether the queue takes a run, and fallbacks, are decided elsewhere.

`Cache-Control: no-cache` (RFC 9111 §5.2.1) makes a request run by itself, and so does
`x-idempotent: false`. With `x-idempotent: false` or `no-store` its answer is not kept either.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from deployments.contract.description import ModelDescription
from deployments.gateway.reuse.single_flight import Answers, Follower, SingleFlight, SubmittedRun
from deployments.gateway.rows import Array, RowAnswer, Rows, joint_key

clock = time.monotonic
_EVERYBODY = ""  # the holder of public answers


@dataclass(frozen=True, slots=True)
class ReuseLevels:
    """A model's reuse, as metrics show it."""

    cache: ResponseCacheStatistics | None  # None: the model keeps no answers
    coalesced_total: int  # requests that were answered by another request's run
    following_rows: int  # rows that wait for another request's run now


@dataclass(frozen=True, slots=True)
class ReuseQuery:
    """One request, as far as reuse is concerned."""

    tenant: str
    description: ModelDescription  # by which the rows were parsed
    rows: Rows
    keys: Sequence[bytes]  # of the rows, in order
    share: bool  # it may be given what another request's run has made
    keep: bool  # others may be given what its own run makes


@dataclass(frozen=True, slots=True)
class ReusedAnswers:
    """The answers of all rows, and where they came from."""

    answers: Answers
    kept: int | None  # how many came from the cache; None: the cache was not asked
    coalesced: bool = False  # the rest came from another request's run, not from one of its own

    @property
    def ran_alone(self) -> bool:
        """Whether all rows were run, by a run that this request began."""
        return not self.kept and not self.coalesced

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The reply's headers that tell of reuse."""
        head = []
        if self.kept is not None:
            part = b"partial" if self.kept else b"miss"
            head.append((b"x-cache", b"hit" if self.kept == len(self.answers) else part))
        if self.coalesced:
            head.append((b"x-coalesced", b"true"))
        return head


def sharing(headers: Mapping[bytes, bytes], repeatable: bool) -> tuple[bool, bool]:
    """`ReuseQuery.share` and `ReuseQuery.keep`, by a request's headers. `repeatable`: by
    `x-idempotent`."""
    given = headers.get(b"cache-control")
    if given is None:
        return repeatable, repeatable
    directives = {part.strip().lower() for part in given.split(b",")}
    keep = repeatable and b"no-store" not in directives
    return keep and b"no-cache" not in directives, keep


class AnswerReuse:
    """One model's cache and shared runs. For the event loop's thread alone."""

    def __init__(
        self,
        description: ModelDescription,
        cancel: Callable[[Any], None],  # ends a run that nobody waits for
    ) -> None:
        self._cache: ResponseCache | None = None
        self._single_flight = SingleFlight(cancel, description.scheduling.core.max_queue_rows)
        self._begin(description)

    def adopt(self, description: ModelDescription) -> None:
        """Another description is live. If it is another version, nothing that an earlier version
        made is given out for it."""
        if self._is_live(description):
            self._description = description
        else:
            self._begin(description)

    def _begin(self, description: ModelDescription) -> None:
        self._description, reuse = description, description.reuse
        self._single_flight.adopt(description.scheduling.core.max_queue_rows)
        if not reuse.cache_bytes:
            self._cache = None
        elif self._cache is None:
            self._cache = ResponseCache(reuse.cache_bytes, reuse.cache_ttl_s)
        else:
            self._cache.adopt(reuse.cache_bytes, reuse.cache_ttl_s)

    def levels(self) -> ReuseLevels:
        cache = None if self._cache is None else self._cache.statistics()
        return ReuseLevels(
            cache, self._single_flight.coalesced_total, self._single_flight.following_rows
        )

    async def answers(
        self, query: ReuseQuery, follower: Follower, submit: Callable[[Rows], SubmittedRun]
    ) -> ReusedAnswers:
        """The answers of all rows: from the cache, and the rest from another request's run or a new
        one (`submit`). Raises as `SingleFlight.answers`."""
        cacheable = self._cache is not None and query.share
        known = self._known(query)
        left = [row for row, answer in enumerate(known) if answer is None]
        kept = len(known) - len(left)
        if left:
            rows = query.rows.only(left) if kept else query.rows
            keys = [query.keys[row] for row in left]
            ran = await self._single_flight.answers(
                self._key(query, keys), follower, lambda: self._to_keep(submit(rows), query, keys)
            )
            for row, answer in zip(left, ran, strict=True):
                known[row] = answer
        answers = tuple([answer for answer in known if answer is not None])
        return ReusedAnswers(answers, kept if cacheable else None, bool(left) and follower.followed)

    def _known(self, query: ReuseQuery) -> list[RowAnswer | None]:
        """The cached answer of each row; None: there is none."""
        cache = self._cache
        if cache is None or not query.share or not self._is_live(query.description):
            return [None] * query.rows.count
        holder, now = _holder(query), clock()
        return [cache.get(holder, key, now) for key in query.keys]

    def _is_live(self, description: ModelDescription) -> bool:
        return description is self._description or _identity(description) == _identity(
            self._description
        )

    def _key(self, query: ReuseQuery, keys: Sequence[bytes]) -> object:
        """The key by which runs are shared; a unique one for a run that nobody may share."""
        description = query.description
        if not query.share or not description.reuse.coalesce or not self._is_live(description):
            return object()
        return query.tenant, joint_key(keys)

    def _to_keep(
        self, pending: SubmittedRun, query: ReuseQuery, keys: Sequence[bytes]
    ) -> SubmittedRun:
        """The run, whose answers are kept when they come."""
        if self._cache is not None and query.keep:
            pending.future.add_done_callback(partial(self._keep, query, keys))
        return pending

    def _keep(
        self, query: ReuseQuery, keys: Sequence[bytes], ended: asyncio.Future[Answers]
    ) -> None:
        cache, description = self._cache, query.description
        if cache is None or ended.exception() is not None or not self._is_live(description):
            return
        holder, now = _holder(query), clock()
        for key, answer in zip(keys, ended.result(), strict=True):
            if answer.version == description.version:
                cache.put(holder, key, answer, query.rows.outputs or answer.outputs, now)


def _identity(description: ModelDescription) -> tuple[object, ...]:
    """What is equal when the same version is announced again, with another replica's
    measurements."""
    return description.generation, description.version, description.digest, description.reuse


def _holder(query: ReuseQuery) -> str:
    return _EVERYBODY if query.description.reuse.cache_public else query.tenant


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
    """One model's cached answers, by row. For the event loop's thread alone.

    The least recently used are evicted; bytes and age are bounded. A row's key is a 256-bit hash of
    the model's version, the wanted outputs, and each input's name, datatype, shape and elements as
    the model gets them, so a text and its tokens have the same key. It is keyed with a secret of
    this process: nobody can prepare inputs that collide. Holders (tenants, or one for all where a
    model's answers are public) are kept apart and share the bytes fairly: one with less than an
    equal share takes room from the holder that has most, any other from itself. Only answers are
    kept, never errors, and none larger than a sixteenth of the cache.
    Source: RFC 7693 (BLAKE2).
    """

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
