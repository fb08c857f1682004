"""How does a gateway keep one connection to each replica of a model?

- A connection is opened as soon as Serve lists the replica. Serve tells which replicas run, where
  they listen (in their metadata) and, when asked, a replica's key.
- A connection that breaks loses what was out on it and nothing else. It is opened again at once if
  it stood for a while, else after growing, jittered pauses, for as long as Serve lists the replica.
- A replica that is no longer listed, or has announced that it goes (GOAWAY), gets nothing new. Its
  connection stays until everything that is out there has come back.
- A send to a replica without a connection returns False: then nothing was started.

`TcpReplicaChannel` owns the connections (`ReplicaLink`), the queue's `LeaseCalls` listens.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from ssl import SSLContext
from time import monotonic
from typing import Protocol

from deployments.contract.channel.frames import Buffer, Frame, Kind
from deployments.contract.channel.handshake import HANDSHAKE_LIMIT_S, GatewayHandshake
from deployments.contract.version import SPOKEN, WIRE
from deployments.gateway.queues.replica_link import LinkCounts, ReplicaLink
from deployments.process.replica_directory import RunningReplica
from deployments.process.sockets import host_and_port

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
        speaks: bool = False,  # see `ReplicaLink`
        tls: SSLContext | None = None,
    ) -> None:
        self.counts = LinkCounts()
        self._gateway = gateway
        self._key_of = key_of
        self._speaks = speaks
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
        if not peer.replica.speaks() & set(SPOKEN):
            logger.error(
                "replica %s speaks version %s of the channel and this gateway %s: they cannot work "
                "together, and it gets no requests from here", peer.replica.replica_id,
                sorted(peer.replica.speaks()), sorted(SPOKEN),
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
                    replica.replica_id, handshake, self, self.counts, speaks=self._speaks
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
