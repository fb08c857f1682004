"""How does a gateway keep one connection to each replica of a model?

- A connection is opened as soon as Serve lists the replica. Serve tells which replicas run, where
  they listen (in their metadata) and, when asked, a replica's key (`ServeChannel`).
- A connection (`ReplicaLink`) ends, with a reason, with a frame that may not come now or stays
  incomplete, a replica that is silent, a machine that does not answer, or `close`. What was out on
  it is lost, and nothing else. It is opened again at once if it stood for a while, else after
  growing, jittered pauses, for as long as Serve lists the replica (`TcpReplicaChannel`).
- A replica that is no longer listed, or says GOAWAY, gets nothing new. Its connection stays until
  everything that is out there has come back.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from ssl import SSLContext
from time import monotonic
from typing import Any, Protocol, cast

from ray import serve

from deployments.contract.app_names import POOL_APP, POOL_DEPLOYMENT, model_deployment
from deployments.contract.channel.frames import (
    MAX_FRAME_BYTES,
    REPLICA_KINDS,
    STALLED_S,
    Buffer,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    StallWatch,
    framed,
)
from deployments.contract.channel.handshake import (
    HANDSHAKE_LIMIT_S,
    GatewayHandshake,
    Refused,
    reason_of,
)
from deployments.contract.codec import SPOKEN, WIRE
from deployments.gateway.queues.pool_replicas import pool_replica_of
from deployments.process.replica_directory import RunningReplica
from deployments.process.sockets import FOUND_DEAD_S, find_dead_peers, host_and_port, is_dead

SILENCE_S = 10.0  # after which a replica that should send something every second counts as dead
CREDIT_EVERY_BYTES = 1 << 16
_HANDSHAKE_KINDS = frozenset({Kind.CHALLENGE, Kind.WELCOME, Kind.REFUSED})


@dataclass(slots=True)
class LinkCounts:
    """Counters of all connections of one model's channel, ever."""

    connects: int = 0
    disconnects: int = 0
    sent_frames: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0


class LinkOwner(Protocol):
    """Who is told what becomes of a connection."""

    def link_up(self, link: ReplicaLink) -> None:
        """The handshake is done: leases may be sent."""

    def link_down(self, link: ReplicaLink, reason: str) -> None:
        """A connection that was up has ended."""

    def link_leaving(self, link: ReplicaLink) -> None:
        """The replica has announced that it goes: it takes no new lease."""

    def received(self, replica_id: str, frame: Frame) -> None:
        """A frame has come. Raises FrameError if the connection must be closed."""


class ReplicaLink(asyncio.Protocol):
    """One connection to one replica."""

    def __init__(
        self,
        replica_id: str,
        handshake: GatewayHandshake,
        owner: LinkOwner,
        counts: LinkCounts,
        *,
        sends_heartbeats: bool,  # every second, as replicas that generate do
    ) -> None:
        self.replica_id = replica_id
        # Resolves to the reason when the connection has ended.
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._handshake = handshake
        self._owner = owner
        self._counts = counts
        self._sends_heartbeats = sends_heartbeats
        self._reader = FrameReader(_HANDSHAKE_KINDS)
        self._stall = StallWatch(self._reader)
        self._transport: asyncio.Transport | None = None
        self._up = False
        self._reason = ""
        self._heard_at = monotonic()
        self._taken_bytes = self._credited_bytes = 0  # of streams, ever

    # ---- what the channel calls ---------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the channel that a connection that is up speaks."""
        return self._handshake.version

    def send(self, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> None:
        """Send a frame over a connection that is up. Raises FrameError for too large a body."""
        assert self._transport is not None
        parts = framed(kind, lease_id, body)
        self._counts.sent_frames += 1
        self._counts.sent_bytes += sum([len(part) for part in parts])
        self._transport.writelines(parts)

    def close(self, reason: str) -> None:
        """End the connection at once; frames on their way are lost. The first reason counts."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> None:
        """End the connection if a frame stays incomplete or the other side is silent or dead; to be
        called every second."""
        if self._stall.stalled(now):
            self.close(f"a frame has not come to its end for {STALLED_S:g} s")
        elif self._sends_heartbeats and now - self._heard_at > SILENCE_S:
            self.close(f"silent for {SILENCE_S:g} s")
        elif self._transport is not None and is_dead(self._transport):
            self.close(f"the replica's machine has not answered for {FOUND_DEAD_S:g} s")

    # ---- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        find_dead_peers(transport)
        self._transport.writelines(framed(Kind.HELLO, 0, [self._handshake.hello()]))

    def data_received(self, data: bytes) -> None:
        self._heard_at = monotonic()
        self._counts.received_bytes += len(data)
        try:
            for frame in self._reader.feed(data):
                self._counts.received_frames += 1
                self._take(frame)
        except (FrameError, Refused) as fault:
            self.close(str(fault))
        except Exception as fault:  # of the scheduler, or of a policy of its settings
            logger.exception("replica %s: what it said was not taken in", self.replica_id)
            self.close(f"{type(fault).__name__}: {fault}")

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason or (str(exc) if exc is not None else "the replica closed it")
        was_up, self._up = self._up, False
        if not self.closed.done():
            self.closed.set_result(reason)
        if was_up:
            self._counts.disconnects += 1
            self._owner.link_down(self, reason)

    def _take(self, frame: Frame) -> None:
        """Take in one frame, of the handshake or after it. Raises FrameError or Refused."""
        if self._up:
            if frame.kind is Kind.GOAWAY:
                self._owner.link_leaving(self)
                self.send(Kind.GOAWAY, 0)  # tells the replica that no lease is on its way any more
                return
            self._owner.received(self.replica_id, frame)
            if frame.kind is Kind.STEPS:
                self._grant_credit(len(frame.body))
        elif frame.kind is Kind.CHALLENGE:
            assert self._transport is not None
            self._transport.writelines(framed(Kind.PROOF, 0, [self._handshake.prove(frame.body)]))
            self._reader.kinds = frozenset({Kind.WELCOME, Kind.REFUSED})
        elif frame.kind is Kind.REFUSED:
            raise Refused(f"refused: {reason_of(frame.body)}")
        elif Kind.CHALLENGE in self._reader.kinds:
            raise Refused("a welcome without a challenge")
        else:
            self._welcomed()

    def _welcomed(self) -> None:
        self._reader.kinds, self._reader.max_bytes = REPLICA_KINDS, MAX_FRAME_BYTES
        self._up = True
        self._counts.connects += 1
        self._owner.link_up(self)

    def _grant_credit(self, size: int) -> None:
        """Count `size` bytes of streams as taken in, and tell the replica the total once it has
        grown by `CREDIT_EVERY_BYTES`."""
        self._taken_bytes += size
        if self._taken_bytes - self._credited_bytes >= CREDIT_EVERY_BYTES:
            self._credited_bytes = self._taken_bytes
            self.send(Kind.CREDIT, self._taken_bytes)


_CHECK_EVERY_S = 1.0
# Between attempts to connect. A connection that stood for longer than the longest pause is opened
# again without one.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
logger = logging.getLogger("headrace.channel")


class ChannelListener(Protocol):
    """The queue's side of a channel: its `LeaseCalls`. Called by the event loop, never from inside
    a call of the channel's own methods."""

    def links_changed(self) -> None:
        """The set of reachable replicas has changed."""

    def link_lost(self, replica_id: str, reason: str) -> None:
        """A connection has ended: what was out there will not be answered."""

    def received(self, replica_id: str, frame: Frame) -> None:
        """A replica has sent a frame. Raises FrameError if the connection must be closed."""


class ReplicaChannel(Protocol):
    """The connections to one model's replicas, for one queue."""

    listener: ChannelListener  # set by the queue's `LeaseCalls`
    counts: LinkCounts

    @property
    def reached(self) -> list[str]:
        """The listed replicas that can be reached and may be given work."""

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        """Serve lists these replicas, and no others."""

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        """Send a frame; False: there is no connection, and nothing was sent."""

    def version(self, replica_id: str) -> int:
        """The version of the channel that the replica is spoken to in."""

    def release(self, replica_id: str) -> None:
        """Nothing is out at this replica any more: close its connection if it is not listed."""

    def close(self) -> None:
        """Close all connections."""


@dataclass(slots=True, eq=False)
class _Peer:
    """A replica, and this gateway's connection to it."""

    replica: RunningReplica
    listed: bool = True  # by Serve
    leaving: bool = False  # it has announced that it goes
    link: ReplicaLink | None = None  # None: no connection is up
    up_at: float = inf  # since when the connection is up; inf: it is not
    task: asyncio.Task[None] | None = None  # keeps it connected


class TcpReplicaChannel:
    """A `ReplicaChannel` over TCP, with or without TLS."""

    listener: ChannelListener

    def __init__(
        self,
        gateway: str,
        key_of: Callable[[str], Awaitable[bytes]],  # asks Serve for a replica's key, by its id
        *,
        sends_heartbeats: bool = False,  # see `ReplicaLink`
        tls: SSLContext | None = None,
    ) -> None:
        self.counts = LinkCounts()
        self._gateway = gateway
        self._key_of = key_of
        self._sends_heartbeats = sends_heartbeats
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, _Peer] = {}  # by replica
        self._timer: asyncio.TimerHandle | None = None

    @property
    def reached(self) -> list[str]:
        return [uid for uid, p in self._peers.items() if p.listed and p.link and not p.leaving]

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        wanted = {replica.replica_id: replica for replica in listed}
        for replica_id, replica in wanted.items():
            if replica_id not in self._peers:
                peer = self._peers[replica_id] = _Peer(replica)
                peer.task = self._start_task(self._keep_connected(peer))
        for replica_id, peer in list(self._peers.items()):
            peer.listed = replica_id in wanted
            if not peer.listed and peer.link is None:
                self._forget(peer, "it is no longer listed")
        if self._timer is None and self._peers:
            self._schedule_check()

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        peer = self._peers.get(replica_id)
        if peer is None or peer.link is None:
            return False
        peer.link.send(kind, lease_id, body)
        return True

    def version(self, replica_id: str) -> int:
        peer = self._peers.get(replica_id)
        return WIRE if peer is None or peer.link is None else peer.link.version

    def release(self, replica_id: str) -> None:
        peer = self._peers.get(replica_id)
        if peer is not None and not peer.listed:
            self._forget(peer, "it is no longer listed")

    def close(self) -> None:
        for peer in list(self._peers.values()):
            self._forget(peer, "the model's queue was closed")

    # ---- connecting ---------------------------------------------------------------------------

    def _start_task(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """A task outside any request's context, whose end would cancel it."""
        return self._loop.create_task(work, context=contextvars.Context())  # type: ignore[arg-type]

    async def _keep_connected(self, peer: _Peer) -> None:
        """Connect, and again after each break, as long as Serve lists the replica. A replica
        without a common version is left alone: it would refuse each time."""
        if not peer.replica.spoken_versions() & set(SPOKEN):
            logger.error(
                "replica %s speaks version %s of the channel and this gateway %s: they cannot work "
                "together, and it gets no requests from here", peer.replica.replica_id,
                sorted(peer.replica.spoken_versions()), sorted(SPOKEN),
            )  # fmt: skip
            return
        pause_s = 0.0
        while peer.listed:
            peer.up_at = inf
            try:
                reason = await self._connect_until_closed(peer)
            except (OSError, TimeoutError, ValueError) as fault:
                reason = str(fault) or "no answer"
            except Exception as fault:
                # What Serve raises for a replica that has just gone.
                reason = f"{type(fault).__name__}: {fault}"
            if not peer.listed:
                break
            logger.warning("replica %s: no connection: %s", peer.replica.replica_id, reason)
            stood = monotonic() - peer.up_at > _LONGEST_PAUSE_S
            pause_s = 0.0 if stood else min(2 * pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        self._forget(peer, "it is no longer listed")

    async def _connect_until_closed(self, peer: _Peer) -> str:
        """Open one connection and wait for its end; the reason why it ended."""
        replica = peer.replica
        async with asyncio.timeout(HANDSHAKE_LIMIT_S):
            key = await self._key_of(replica.replica_id)
            host, port = host_and_port(dict(replica.metadata)["channel"])
            handshake = GatewayHandshake(key, self._gateway, replica.replica_id)
            _, link = await self._loop.create_connection(
                lambda: ReplicaLink(
                    replica.replica_id, handshake, self, self.counts,
                    sends_heartbeats=self._sends_heartbeats,
                ),
                host, port, ssl=self._tls,
            )  # fmt: skip
        unless_up = self._loop.call_later(HANDSHAKE_LIMIT_S, self._close_unless_up, peer, link)
        try:
            return await link.closed
        finally:
            unless_up.cancel()
            link.close("it is no longer wanted")

    def _close_unless_up(self, peer: _Peer, link: ReplicaLink) -> None:
        if peer.link is not link:
            link.close(f"no welcome within {HANDSHAKE_LIMIT_S:g} s")

    def _forget(self, peer: _Peer, reason: str) -> None:
        peer.listed = False  # so that its task ends with its connection
        if self._peers.get(peer.replica.replica_id) is peer:
            del self._peers[peer.replica.replica_id]
        if peer.link is not None:
            peer.link.close(reason)
        if peer.task is not None and peer.link is None:
            peer.task.cancel()
        if not self._peers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_check(self) -> None:
        self._timer = self._loop.call_later(
            _CHECK_EVERY_S, self._check, context=contextvars.Context()
        )

    def _check(self) -> None:
        now = monotonic()
        for peer in list(self._peers.values()):
            if peer.link is not None:
                peer.link.check(now)
        self._schedule_check()

    # ---- what connections report (`LinkOwner`) ------------------------------------------------

    def link_up(self, link: ReplicaLink) -> None:
        peer = self._peers.get(link.replica_id)
        if peer is None:
            link.close("it is no longer listed")
            return
        peer.link, peer.leaving, peer.up_at = link, False, monotonic()
        self.listener.links_changed()

    def link_leaving(self, link: ReplicaLink) -> None:
        peer = self._peers.get(link.replica_id)
        if peer is not None and not peer.leaving:
            peer.leaving = True
            self.listener.links_changed()

    def link_down(self, link: ReplicaLink, reason: str) -> None:
        peer = self._peers.get(link.replica_id)
        if peer is not None and peer.link is link:
            peer.link = None
            if peer.listed and not peer.leaving:
                self.listener.links_changed()
        self.listener.link_lost(link.replica_id, reason)

    def received(self, replica_id: str, frame: Frame) -> None:
        self.listener.received(replica_id, frame)


class ServeChannel(TcpReplicaChannel):
    """The channel to the replicas of all groups of a model's application, in one event loop."""

    def __init__(
        self, app: str, gateway: str, *, sends_heartbeats: bool, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(gateway, self._key_of, sends_heartbeats=sends_heartbeats, tls=tls)
        self._app = app
        self._handles: dict[str, Any] = {}  # by group
        self._groups: dict[str, str] = {}  # by replica
        self._pool_replicas: dict[str, str] = {}  # by replica: the pool replica that it is part of

    async def seed(self, groups: Sequence[str]) -> None:
        """Start the routers of these groups, unless they have been: from then on the directories
        list the running replicas. Setting a handle's options starts its router. A call would too,
        but it would queue at Serve, and Serve would start a replica for it."""
        for group in groups:
            if group not in self._handles:
                handle: Any = serve.get_deployment_handle(
                    model_deployment(group), app_name=self._app
                )
                self._handles[group] = handle.options(method_name="channel_key")

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        self._groups = {replica.replica_id: replica.group() for replica in listed}
        self._pool_replicas = {r.replica_id: uid for r in listed if (uid := pool_replica_of(r))}
        super().follow(listed)

    async def _key_of(self, replica_id: str) -> bytes:
        """The replica's key. Raises what Serve raises where the replica is gone, KeyError where it
        is not listed."""
        inside = self._pool_replicas.get(replica_id)
        if inside is not None:
            return await _pool_key(inside, replica_id)
        pinned = self._handles[self._groups[replica_id]].options(session_id=replica_id)
        key: bytes = await pinned.remote()
        return key


@cache
def _pool() -> Any:
    """The handle of the shared pool's replicas, one for this process."""
    handle: Any = serve.get_deployment_handle(POOL_DEPLOYMENT, app_name=POOL_APP)
    return handle.options(method_name="channel_key")


def follow_pool() -> None:
    """Start the router of the shared pool's replicas: from then on its directory is kept."""
    _pool()


async def _pool_key(replica: str, member: str) -> bytes:
    """The key of a member of a pool replica. Raises what Serve raises where the pool replica is
    gone, or does not serve the member any more."""
    key: bytes = await _pool().options(session_id=replica).remote(member)
    return key
