"""A gateway's channel over real sockets, the replicas that it finds, and what Serve knows of them.

Replicas are their own servers with a core that keeps what it is told, or strangers: whatever else
may listen at a replica's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from ssl import SSLContext
from typing import Any

from fake_engines import until

from deployments.contract.channel.frames import (
    GATEWAY_KINDS,
    MAX_FRAME_BYTES,
    Frame,
    FrameReader,
    Kind,
    framed,
)
from deployments.contract.channel.handshake import ReplicaHandshake, new_key
from deployments.gateway.queues.connections import TcpReplicaChannel
from deployments.process.replica_directory import RunningReplica
from deployments.process.sockets import address_of, host_and_port
from deployments.replica.channel_server import ChannelServer, GatewayConnection

CALLER: ContextVar[str] = ContextVar("CALLER", default="")
Say = Callable[["Stranger"], None]


class Core:
    """A `LeaseCore` that runs nothing. `got`: kinds and leases, in order."""

    def __init__(self) -> None:
        self.links: list[GatewayConnection] = []
        self.got: list[tuple[Kind, int]] = []
        self.bodies: list[bytes] = []
        self.idle = asyncio.Event()
        self.idle.set()

    def joined(self, link: GatewayConnection) -> None:
        self.links.append(link)

    def left(self, link: GatewayConnection) -> None:
        self.links.remove(link)

    def received(self, link: GatewayConnection, frame: Frame) -> None:
        self.got.append((frame.kind, frame.lease_id))
        self.bodies.append(bytes(frame.body))

    def leave(self) -> None: ...

    async def until_idle(self) -> None:
        await self.idle.wait()


class Listener:
    """`told`: what the channel said, in order, with who could be reached at each change.
    `callers`: in whose context. `fault`: what it raises for each frame."""

    def __init__(self, channel: TcpReplicaChannel) -> None:
        self.told: list[Any] = []
        self.reasons: list[str] = []
        self.frames: list[tuple[str, Kind, int, bytes]] = []
        self.callers: set[str] = set()
        self.fault: Exception | None = None
        self._channel = channel
        channel.listener = self

    def links_changed(self) -> None:
        self.callers.add(CALLER.get())
        self.told.append(sorted(self._channel.reached))

    def link_lost(self, replica_id: str, reason: str) -> None:
        self.callers.add(CALLER.get())
        self.told.append(f"lost {replica_id}")
        self.reasons.append(reason)

    def received(self, replica_id: str, frame: Frame) -> None:
        self.callers.add(CALLER.get())
        self.frames.append((replica_id, frame.kind, frame.lease_id, bytes(frame.body)))
        if self.fault is not None:
            raise self.fault

    @property
    def lost(self) -> list[str]:
        return [each[5:] for each in self.told if isinstance(each, str)]


class Net:
    """A channel, replicas by name, and what Serve knows of them: addresses and keys."""

    def __init__(self, **channel: Any) -> None:
        self.keys: dict[str, bytes] = {}
        self.addresses: dict[str, str] = {}
        self.cores: dict[str, Core] = {}
        self.servers: dict[str, ChannelServer] = {}
        self.strangers: list[Stranger] = []
        self.channel = TcpReplicaChannel("g", self.key_of, **channel)
        self.listener = Listener(self.channel)

    async def key_of(self, replica_id: str) -> bytes:
        """As Serve does: late, and with an error of its own where the replica is gone."""
        await asyncio.sleep(0)
        return self.keys[replica_id]

    async def start(self, name: str, port: int = 0, tls: SSLContext | None = None) -> Core:
        core = self.cores[name] = Core()
        server = self.servers[name] = ChannelServer(core, name, tls=tls)
        await server.listen("127.0.0.1", (port,))
        self.keys[name], self.addresses[name] = server.key, server.address
        return core

    async def stop(self, name: str) -> int:
        """Its port, for whoever takes it over."""
        server = self.servers.pop(name)
        await server.close()
        return host_and_port(server.address)[1]

    async def stranger(self, name: str, say: Say, *, mute: bool = False) -> Stranger:
        """`say`: once the handshake is done, or at once where it is `mute`."""
        found = Stranger(name, say, mute)
        await found.listen()
        self.strangers.append(found)
        self.keys[name], self.addresses[name] = found.key, found.address
        return found

    def list(self, *names: str) -> None:
        self.channel.follow(
            [RunningReplica(name, (("channel", self.addresses[name]),)) for name in names]
        )

    async def reaches(self, *names: str) -> None:
        await until(lambda: sorted(self.channel.reached) == sorted(names))

    async def link(self, name: str) -> Any:
        await until(lambda: bool(self.cores[name].links))
        return self.cores[name].links[-1]

    async def close(self) -> None:
        """Nothing of the channel is left."""
        self.channel.close()
        for name in list(self.servers):
            await self.stop(name)
        for stranger in self.strangers:
            stranger.close()
        await until(lambda: not ours(asyncio.all_tasks() - {asyncio.current_task()}))
        assert self.channel._timer is None
        assert self.channel.reached == []


def ours(tasks: Any) -> list[Any]:
    return [task for task in tasks if "TcpReplicaChannel" in repr(task.get_coro())]


@asynccontextmanager
async def net(**channel: Any) -> AsyncIterator[Net]:
    made = Net(**channel)
    try:
        yield made
    finally:
        await made.close()


class Stranger:
    """Listens like a replica, and shakes hands like one unless it is mute; everything else is the
    test's to `write`. `got`: what came once it was up."""

    def __init__(self, name: str, say: Say, mute: bool) -> None:
        self.name, self.say, self.mute = name, say, mute
        self.key = new_key()
        self.address = ""
        self.connections = 0
        self.got: list[Frame] = []
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.address = address_of(*self._server.sockets[0].getsockname()[:2])

    def write(self, data: bytes) -> None:
        self._writers[-1].write(data)

    def send(self, kind: Kind, lease_id: int = 0, body: Sequence[bytes] = ()) -> None:
        self.write(b"".join(framed(kind, lease_id, body)))

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        if self.mute:
            self.say(self)
        shaking = ReplicaHandshake(self.key, self.name)
        frames = FrameReader(frozenset({Kind.HELLO, Kind.PROOF}) | GATEWAY_KINDS, MAX_FRAME_BYTES)
        try:
            while data := await reader.read(1 << 16):
                for frame in frames.feed(data):
                    if not self.mute:
                        self._take(frame, shaking)
        except OSError:
            pass
        writer.close()

    def _take(self, frame: Frame, shaking: ReplicaHandshake) -> None:
        if frame.kind is Kind.HELLO:
            self.send(Kind.CHALLENGE, 0, [shaking.challenge(frame.body)])
        elif frame.kind is Kind.PROOF:
            shaking.check(frame.body)
            self.send(Kind.WELCOME)
            self.say(self)
        else:
            self.got.append(frame)


def nothing(stranger: Stranger) -> None:
    pass
