"""What need not run for this request: rows that were answered before, a run that is under way.

One model's cache and shared runs, as its settings have them. Each version starts them anew: an
answer is looked for under the live version, and kept only if that version is still live when it
comes.
Rows are answered from the cache one by one; those left are one run, which an identical request may
share. Whether the queue takes it, and what else may happen, is not known here.

`Cache-Control: no-cache` (RFC 9111 §5.2.1) makes a request run by itself, as does `x-idempotent:
false`; with the latter or `no-store` its answer is not kept either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from deployments.contract.description import ModelDescription
from deployments.gateway.queues.pending_requests import PendingBatchRequest
from deployments.gateway.reuse.response_cache import (
    ResponseCache,
    ResponseCacheStatistics,
    joint_key,
)
from deployments.gateway.reuse.single_flight import Answers, Follower, SingleFlight
from deployments.gateway.rows.types import RowAnswer, Rows

clock = time.monotonic
_EVERYBODY = ""


@dataclass(frozen=True, slots=True)
class ReuseLevels:
    """`cache`: None where the model keeps no answers. `following_rows` wait for others' runs."""

    cache: ResponseCacheStatistics | None
    coalesced_total: int
    following_rows: int


@dataclass(frozen=True, slots=True)
class ReuseQuery:
    """One request's rows and their keys. `share`: it may be given what another's run made; `keep`:
    another may be given what its own makes."""

    tenant: str
    description: ModelDescription
    rows: Rows
    keys: Sequence[bytes]
    share: bool
    keep: bool


@dataclass(frozen=True, slots=True)
class ReusedAnswers:
    """All rows' answers. `kept`: how many came from the cache, None where it was not asked; the
    rest came from a run of another's if `coalesced`, else from one of its own."""

    answers: Answers
    kept: int | None
    coalesced: bool = False

    @property
    def ran_alone(self) -> bool:
        """Whether all rows were run for it and for nobody else."""
        return not self.kept and not self.coalesced

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What an answer says of it."""
        head = []
        if self.kept is not None:
            part = b"partial" if self.kept else b"miss"
            head.append((b"x-cache", b"hit" if self.kept == len(self.answers) else part))
        if self.coalesced:
            head.append((b"x-coalesced", b"true"))
        return head


def sharing(headers: Mapping[bytes, bytes], repeatable: bool) -> tuple[bool, bool]:
    """`ReuseQuery.share` and `ReuseQuery.keep` of a request; `repeatable` as of `x-idempotent`."""
    given = headers.get(b"cache-control")
    if given is None:
        return repeatable, repeatable
    directives = {part.strip().lower() for part in given.split(b",")}
    keep = repeatable and b"no-store" not in directives
    return keep and b"no-cache" not in directives, keep


class AnswerReuse:
    """`cancel` ends a request that nobody waits for. For the event loop's thread alone."""

    def __init__(
        self, description: ModelDescription, cancel: Callable[[PendingBatchRequest], None]
    ) -> None:
        self._cache: ResponseCache | None = None
        self._single_flight = SingleFlight(cancel, description.scheduling.core.max_queue_rows)
        self._begin(description)

    def adopt(self, description: ModelDescription) -> None:
        """A version is live: unless it is the same model announced again, nothing that another
        made is given for it."""
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
        self, query: ReuseQuery, follower: Follower, submit: Callable[[Rows], PendingBatchRequest]
    ) -> ReusedAnswers:
        """By the cache, by another's run, or by a new request for what is left. Raises as
        `SingleFlight.answers`."""
        cacheable = self._cache is not None and query.share
        known = self._known(query)
        left = [row for row, answer in enumerate(known) if answer is None]
        kept = len(known) - len(left)
        if left:
            rows = query.rows.only(left) if kept else query.rows
            keys = [query.keys[row] for row in left]
            ran = await self._single_flight.answers(
                self._key(query, keys), follower, lambda: self._kept_from(submit(rows), query, keys)
            )
            for row, answer in zip(left, ran, strict=True):
                known[row] = answer
        answers = tuple([answer for answer in known if answer is not None])
        return ReusedAnswers(answers, kept if cacheable else None, bool(left) and follower.followed)

    def _known(self, query: ReuseQuery) -> list[RowAnswer | None]:
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
        """What nobody may share has a key that nobody else has."""
        description = query.description
        if not query.share or not description.reuse.coalesce or not self._is_live(description):
            return object()
        return query.tenant, joint_key(keys)

    def _kept_from(
        self, pending: PendingBatchRequest, query: ReuseQuery, keys: Sequence[bytes]
    ) -> PendingBatchRequest:
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
    """What stays when a model is announced again, with another replica's measurements."""
    return description.generation, description.version, description.digest, description.reuse


def _holder(query: ReuseQuery) -> str:
    return _EVERYBODY if query.description.reuse.cache_public else query.tenant
