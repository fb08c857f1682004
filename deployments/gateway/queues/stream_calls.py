"""Leases of streams as requests at replicas, and what comes back of them.

One stream a replica, kept open; its messages bring what all of this gateway's requests there have
had since the last one. A request begins and is aborted by short calls beside it. A replica is
`up`, and may be given work, only while its stream stands: what ran on a stream that breaks is lost
at once. One that is no longer listed keeps its stream until what runs there has ended. Tasks run in
an empty context, since they belong to no request.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, Set
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol, cast

from deployments.contract.wire import GenerateCall, Piece, StepMessage, StreamEnd
from deployments.gateway.queues.pending_requests import (
    LEASE_COUNTS,
    BatchEnd,
    PendingStreamRequest,
)
from deployments.gateway.queues.transport import (
    UNREACHED_RETRY_S,
    LeaseTasks,
    ReplicaDied,
    ReplicaFault,
    StreamTransport,
    Unreached,
)
from routers.types import Dispatch, LeaseEnd, Report, Tokens
from runtimes.types import EngineLoad

_AGAIN_S = 0.2
_BUSY_RETRY_S = 0.05  # another gateway has filled it; a stream there ends now and then
_BROKEN = (Unreached, ReplicaDied, ReplicaFault)
logger = logging.getLogger("headrace.queue")


@dataclass(slots=True, eq=False)
class StreamRun:
    """A lease that is out. `begun`: its call has come back; `aborted`: it is to be."""

    lease: Dispatch
    pending: PendingStreamRequest
    begun: bool = False
    aborted: bool = False


@dataclass(slots=True, eq=False)
class _Link:
    replica_id: str
    listed: bool = True
    up: bool = False
    runs: dict[int, StreamRun] = field(default_factory=dict)
    load: EngineLoad = field(default_factory=EngineLoad)
    task: asyncio.Task[None] | None = None


class StreamCallsOwner(Protocol):
    """The queue, as far as its requests' runs need it."""

    def may_begin(self, run: StreamRun) -> bool: ...
    def call_of(self, run: StreamRun) -> GenerateCall: ...
    def opened(self, run: StreamRun) -> None: ...
    def progressed(self, run: StreamRun, piece: Piece) -> None: ...

    def ended(self, run: StreamRun, piece: Piece, report: Report) -> LeaseEnd:
        """Its last piece; the dispatcher is told by this. How the lease ended."""

    def closed(self, run: StreamRun, end: LeaseEnd, report: Report) -> None:
        """It ended without one."""

    def links_changed(self) -> None: ...


class StreamCalls(LeaseTasks):
    """The streams of one queue. `ends`: how many runs have ended how."""

    def __init__(self, owner: StreamCallsOwner, transport: StreamTransport) -> None:
        super().__init__()
        self._owner = owner
        self._transport = transport
        self._links: dict[str, _Link] = {}
        self._runs: dict[int, StreamRun] = {}
        self._unwanted: dict[str, list[int]] = {}  # leases to abort, by replica
        self.ends = dict.fromkeys(BatchEnd, 0)

    @property
    def up(self) -> list[str]:
        """Listed replicas whose streams stand."""
        return [link.replica_id for link in self._links.values() if link.listed and link.up]

    @property
    def loads(self) -> dict[str, EngineLoad]:
        """Each replica's own account, as of its last message."""
        return {uid: link.load for uid, link in self._links.items() if link.up}

    def run(self, lease_id: int) -> StreamRun | None:
        """None once it has ended."""
        return self._runs.get(lease_id)

    @property
    def count(self) -> int:
        """Runs that are out."""
        return len(self._runs)

    def follow(self, listed: Set[str]) -> None:
        """These replicas run: a stream to each; the others' end with what runs on them."""
        for replica_id in sorted(listed - self._links.keys()):
            link = self._links[replica_id] = _Link(replica_id)
            link.task = self._start_lasting(self._keep(link))
        for replica_id, link in list(self._links.items()):
            link.listed = replica_id in listed
            if not link.listed and not link.runs:
                self._end(link)

    def close(self) -> None:
        """Ends every stream; what still runs there is lost."""
        for link in list(self._links.values()):
            self._end(link)

    def begin(self, lease: Dispatch, pending: PendingStreamRequest) -> None:
        run = StreamRun(lease, pending)
        self._runs[lease.lease_id] = run
        link = self._links.get(lease.replica_id)
        if link is not None:
            link.runs[lease.lease_id] = run
        self._start(self._begin(run))

    def abort(self, lease_id: int) -> None:
        run = self._runs.get(lease_id)
        if run is None or run.aborted:
            return
        run.aborted = True
        if run.begun:
            self._abort_soon(run.lease.replica_id, lease_id)

    # ---- calls beside the stream --------------------------------------------------------------

    async def _begin(self, run: StreamRun) -> None:
        replica_id, lease_id = run.lease.replica_id, run.lease.lease_id
        link = self._links.get(replica_id)
        if lease_id not in self._runs:
            return  # its replica went before anything was sent
        try:
            if run.aborted or link is None or not link.up or not self._owner.may_begin(run):
                self._close(run, LeaseEnd.ABORTED if run.aborted else LeaseEnd.BUSY)
                return
            await self._transport.begin(replica_id, self._owner.call_of(run))
        except Unreached:
            self._close(run, LeaseEnd.BUSY, Report(retry_in_s=UNREACHED_RETRY_S))
            return
        except (ReplicaDied, ReplicaFault) as died:
            logger.warning("replica %s did not take a request: %s", replica_id, died)
            self._close(run, LeaseEnd.LOST)
            self._abort_soon(replica_id, lease_id)  # it may have taken it all the same
            return
        except Exception:
            logger.exception("a request could not be sent")
            self._close(run, LeaseEnd.LOST)
            return
        run.begun = True
        if lease_id not in self._runs:
            return  # it was short: its last piece came first
        self._owner.opened(run)
        if run.aborted:
            self._abort_soon(replica_id, lease_id)

    def _abort_soon(self, replica_id: str, lease_id: int) -> None:
        """Callers leave in crowds, a call costs milliseconds: one for all that left by its turn."""
        if not self._unwanted:
            self._loop.call_soon(self._abort_all, context=contextvars.Context())
        self._unwanted.setdefault(replica_id, []).append(lease_id)

    def _abort_all(self) -> None:
        unwanted, self._unwanted = self._unwanted, {}
        for replica_id, lease_ids in unwanted.items():
            self._start(self._abort(replica_id, lease_ids))

    async def _abort(self, replica_id: str, lease_ids: list[int]) -> None:
        try:
            await self._transport.abort(replica_id, lease_ids)
        except _BROKEN as fault:
            logger.warning("%d requests were not aborted: %s", len(lease_ids), fault)

    # ---- the stream ---------------------------------------------------------------------------

    async def _keep(self, link: _Link) -> None:
        """Opens the stream, and again after it broke, as long as anybody may need it."""
        while link.listed or link.runs:
            try:
                await self._read(link)
            except _BROKEN as broken:
                logger.warning("the stream of replica %s broke: %s", link.replica_id, broken)
            except Exception:
                logger.exception("a message of replica %s could not be read", link.replica_id)
            self._broke(link)
            await asyncio.sleep(_AGAIN_S)
        self._links.pop(link.replica_id, None)

    async def _read(self, link: _Link) -> None:
        stream = cast(AsyncGenerator[StepMessage, None], self._transport.messages(link.replica_id))
        async with aclosing(stream):
            async for message in stream:
                link.load = message.load
                if not link.up:
                    link.up = True
                    self._owner.links_changed()
                self._take(link, message)
                # No call reaches one that is not listed: leaving the stream ends what is aborted.
                if not link.listed and all(run.aborted for run in link.runs.values()):
                    return

    def _take(self, link: _Link, message: StepMessage) -> None:
        for piece in message.pieces:
            run = link.runs.get(piece.lease_id)
            if run is None:
                if piece.end is None:  # of one that was given up for lost
                    self._abort_soon(link.replica_id, piece.lease_id)
            elif piece.end is None:
                self._owner.progressed(run, piece)
            else:
                self._forget(run)
                end = self._owner.ended(run, piece, _report(piece, message))
                self.ends[LEASE_COUNTS[end]] += 1

    def _broke(self, link: _Link) -> None:
        if link.up:
            link.up = False
            self._owner.links_changed()
        for run in list(link.runs.values()):
            self._close(run, LeaseEnd.LOST)

    def _end(self, link: _Link) -> None:
        if link.task is not None:
            link.task.cancel()
        del self._links[link.replica_id]
        self._broke(link)

    # ---- which runs are out -------------------------------------------------------------------

    def _close(self, run: StreamRun, end: LeaseEnd, report: Report | None = None) -> None:
        if run.lease.lease_id not in self._runs:
            return
        self._forget(run)
        self.ends[LEASE_COUNTS[end]] += 1
        self._owner.closed(run, end, report or Report())

    def _forget(self, run: StreamRun) -> None:
        del self._runs[run.lease.lease_id]
        link = self._links.get(run.lease.replica_id)
        if link is not None:
            link.runs.pop(run.lease.lease_id, None)


def _report(piece: Piece, message: StepMessage) -> Report:
    tokens = (piece.input_tokens, piece.cached_tokens, piece.output_tokens)
    return Report(
        service_s=piece.service_s,
        retry_in_s=_BUSY_RETRY_S if piece.end is StreamEnd.BUSY else 0.0,
        padded_tokens=sum(tokens) - piece.cached_tokens,
        inflight=message.inflight,
        held=message.held,
        seen=message.seen,
        tokens=Tokens(*tokens),
    )
