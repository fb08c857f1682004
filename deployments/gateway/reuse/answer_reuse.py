"""What need not run for this request: rows that were answered before, a run that is under way.

One model's cache and flights, as its settings have them. Each version starts them anew: an answer
is looked for under the live version, and kept only if that very page is still live when it comes.
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
from deployments.gateway.queues.pending_requests import Ticket
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
class RungLevels:
    """`cache`: None where the model keeps no answers. `following_rows` wait for others' runs."""

    cache: ResponseCacheStatistics | None
    coalesced_total: int
    following_rows: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request's rows and their keys. `share`: it may be given what another's run made; `keep`:
    another may be given what its own makes."""

    tenant: str
    page: ModelDescription
    rows: Rows
    keys: Sequence[bytes]
    share: bool
    keep: bool


@dataclass(frozen=True, slots=True)
class Found:
    """All rows' answers. `kept`: how many came from the cache, None where it was not asked; the
    rest came from a run of another's if `coalesced`, else from one of its own."""

    answers: Answers
    kept: int | None
    coalesced: bool = False

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
    """`Wanted.share` and `Wanted.keep` of a request; `repeatable` as of `x-idempotent`."""
    given = headers.get(b"cache-control")
    if given is None:
        return repeatable, repeatable
    directives = {part.strip().lower() for part in given.split(b",")}
    keep = repeatable and b"no-store" not in directives
    return keep and b"no-cache" not in directives, keep


class AnswerReuse:
    """`cancel` ends a ticket that nobody waits for. For the event loop's thread alone."""

    def __init__(self, page: ModelDescription, cancel: Callable[[Ticket], None]) -> None:
        self._cache: ResponseCache | None = None
        self._flights = SingleFlight(cancel, page.scheduling.core.max_queue_rows)
        self._begin(page)

    def adopt(self, page: ModelDescription) -> None:
        """A page is live: unless it is the same model announced again, nothing that another made
        is given for it."""
        if self._is_live(page):
            self._page = page
        else:
            self._begin(page)

    def _begin(self, page: ModelDescription) -> None:
        self._page, ladder = page, page.ladder
        self._flights.adopt(page.scheduling.core.max_queue_rows)
        if not ladder.cache_bytes:
            self._cache = None
        elif self._cache is None:
            self._cache = ResponseCache(ladder.cache_bytes, ladder.cache_ttl_s)
        else:
            self._cache.adopt(ladder.cache_bytes, ladder.cache_ttl_s)

    def levels(self) -> RungLevels:
        cache = None if self._cache is None else self._cache.statistics()
        return RungLevels(cache, self._flights.coalesced_total, self._flights.following_rows)

    async def answers(
        self, wanted: Wanted, seat: Follower, submit: Callable[[Rows], Ticket]
    ) -> Found:
        """By the cache, by another's run, or by a ticket for what is left. Raises as
        `SingleFlight.answers`."""
        asks = self._cache is not None and wanted.share
        known = self._known(wanted)
        left = [row for row, answer in enumerate(known) if answer is None]
        kept = len(known) - len(left)
        if left:
            rows = wanted.rows.only(left) if kept else wanted.rows
            keys = [wanted.keys[row] for row in left]
            ran = await self._flights.answers(
                self._key(wanted, keys), seat, lambda: self._kept_from(submit(rows), wanted, keys)
            )
            for row, answer in zip(left, ran, strict=True):
                known[row] = answer
        answers = tuple([answer for answer in known if answer is not None])
        return Found(answers, kept if asks else None, bool(left) and seat.followed)

    def _known(self, wanted: Wanted) -> list[RowAnswer | None]:
        cache = self._cache
        if cache is None or not wanted.share or not self._is_live(wanted.page):
            return [None] * wanted.rows.count
        holder, now = _holder(wanted), clock()
        return [cache.get(holder, key, now) for key in wanted.keys]

    def _is_live(self, page: ModelDescription) -> bool:
        return page is self._page or _identity(page) == _identity(self._page)

    def _key(self, wanted: Wanted, keys: Sequence[bytes]) -> object:
        """What nobody may share has a key that nobody else has."""
        page = wanted.page
        if not wanted.share or not page.ladder.coalesce or not self._is_live(page):
            return object()
        return wanted.tenant, joint_key(keys)

    def _kept_from(self, ticket: Ticket, wanted: Wanted, keys: Sequence[bytes]) -> Ticket:
        if self._cache is not None and wanted.keep:
            ticket.future.add_done_callback(partial(self._keep, wanted, keys))
        return ticket

    def _keep(self, wanted: Wanted, keys: Sequence[bytes], ended: asyncio.Future[Answers]) -> None:
        cache, page = self._cache, wanted.page
        if cache is None or ended.exception() is not None or not self._is_live(page):
            return
        holder, now = _holder(wanted), clock()
        for key, answer in zip(keys, ended.result(), strict=True):
            if answer.version == page.version:
                cache.put(holder, key, answer, wanted.rows.outputs or answer.outputs, now)


def _identity(page: ModelDescription) -> tuple[object, ...]:
    """What stays when a model is announced again, with another replica's measurements."""
    return page.generation, page.version, page.digest, page.ladder


def _holder(wanted: Wanted) -> str:
    return _EVERYBODY if wanted.page.ladder.cache_public else wanted.tenant
