"""May this request be worked on, after gateways have ended while they worked on requests?

A gateway notes what it works on (`request_journal`). What a gateway had when it ended is suspect:
here it is parsed, tokenised and encoded while no other suspect is. One that a second gateway ends
with while it runs so, and nothing else beside it, is refused, by every gateway, as long as an input
that ends replicas would be. Where something new ran beside it, that may have been the cause, so
that a third gateway has to end with it: who sends what ends gateways, each time with other bytes,
has nobody else's request refused.
One that a gateway has answered or refused is suspect no more. So a gateway that is killed with a
hundred requests delays them when they come again, and has none refused.

Requests are known by their path and body, whoever sends them. For the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from deployments.contract.description import CrashTerms
from deployments.gateway.queues.crash_records import CrashRecords
from deployments.gateway.queues.suspect_permits import Permit, SuspectPermits
from deployments.gateway.request_journal import (
    NO_SLOT,
    Note,
    RequestJournal,
    Siblings,
    key_of,
)

TERMS = CrashTerms(refuse_s=600, tenant_budget=0, hold_s=1.0)
"""As of replicas. A suspect waits for its turn for `hold_s` at most: a turn takes milliseconds."""
_SURE_GATEWAYS = 3  # of which each ended with the same request
_TOLD_S = 0.05
"""HAProxy sends a request on as soon as a gateway's sockets are closed, which on a busy machine may
be milliseconds before the kernel tells of its end: a suspect that just ended one waits so long."""
logger = logging.getLogger("headrace.gateway")


class SuspectedRequests:
    """What this gateway works on, and what it knows of gateways that have ended."""

    def __init__(self) -> None:
        self.records = CrashRecords(TERMS, "gateways")
        self.permits = SuspectPermits()
        self.journal: RequestJournal | None = None
        self._siblings: Siblings | None = None

    def watch(self, folder: Path, name: str, slots: int) -> None:
        """Note requests in this folder, and follow the other gateways that do. `slots`: requests
        at once. Without a folder that can be used, nothing is noted."""
        try:
            self.journal = RequestJournal(folder, name, slots)
            self._siblings = Siblings(folder, name, self.gateway_ended)
            self._siblings.start()
        except OSError as error:
            logger.warning("what ends gateways cannot be told: %s: %s", folder, error)

    def look(self) -> None:
        """Find gateways of this node that are new."""
        if self._siblings is not None:
            self._siblings.look()

    def close(self) -> None:
        if self._siblings is not None:
            self._siblings.close()
        if self.journal is not None:
            journal, self.journal = self.journal, None
            journal.close()

    def begin(self, path: str, body: bytes) -> Work | None:
        """A request is worked on from now on; None: nothing is noted here. If it `is_suspect`, it
        must `take_turn` first. Raises RowConvicted."""
        if self.journal is None:
            return None
        if self._siblings is not None:
            self._siblings.check()
        key = key_of(path, body)
        suspect = bool(self.records) and self.records.check([key], "", monotonic())
        work = Work(self, self.journal, key, suspect)
        if not suspect:
            work.go_on()
        return work

    def gateway_ended(self, name: str, notes: Sequence[Note]) -> None:
        """Another gateway has ended while it worked on these."""
        now = monotonic()
        for key, alone in notes:
            lost = self.records.note(key, "", name, now)
            # It ran alone because another gateway had ended with it before.
            sure = alone and (len(notes) == 1 or len(lost) >= _SURE_GATEWAYS)
            if sure and not self.records.is_convicted(key):
                self.records.convict(key, "", now)
                logger.error(
                    "gateway %s is not the first that has ended with request %s; such requests "
                    "are refused for %g s", name, key.hex(), TERMS.refuse_s,
                )  # fmt: skip
        logger.warning("gateway %s has ended while it worked on %d requests", name, len(notes))


class Work:
    """One request that this gateway works on, but for the time that it waits in a queue."""

    __slots__ = ("_at", "_journal", "_key", "_permit", "_suspected", "is_suspect")

    def __init__(
        self, suspected: SuspectedRequests, journal: RequestJournal, key: bytes, suspect: bool
    ) -> None:
        self.is_suspect = suspect
        self._suspected, self._journal, self._key = suspected, journal, key
        self._at = NO_SLOT
        self._permit: Permit | None = None

    async def take_turn(self, tenant: str) -> None:
        """Of a suspect: wait until no other one is worked on, then go on. Raises RowConvicted for
        what has become known meanwhile."""
        await asyncio.sleep(_TOLD_S)
        permits = self._suspected.permits
        self._permit = permit = await permits.acquire(tenant, TERMS.hold_s)
        self._suspected.records.check([self._key], "", monotonic())
        self._note(alone=permits.holds(permit))

    def go_on(self) -> None:
        """It is worked on, after it was begun or has waited in a queue."""
        self._note(alone=False)

    def pause(self) -> None:
        """It waits in a queue: nothing that happens here is its doing."""
        self._journal.clear(self._at)
        self._at = NO_SLOT
        if self._permit is not None:
            self._permit.release()
            self._permit = None

    def end(self, *, answered: bool) -> None:
        """`answered`: or refused for what it is."""
        self.pause()
        if answered and self.is_suspect:
            self._suspected.records.acquit(self._key)

    def _note(self, *, alone: bool) -> None:
        if self._at == NO_SLOT:
            self._at = self._journal.note(self._key, alone=alone)
