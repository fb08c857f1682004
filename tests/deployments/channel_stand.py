"""A replica that takes batches, with its server but without Ray, and what it is asked."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import numpy as np
from channel_peers import Peer, until
from device_jobs import worker_of
from fake_runtimes import Gated, Moody
from ragged_rows import ragged

from deployments.contract.channel.frames import (
    BatchCall,
    BatchReply,
    Kind,
    decode_reply,
    encode_call,
)
from deployments.replica.channel_server import ChannelServer
from deployments.replica.replica_core import ReplicaCore


class Stand:
    """Answers at once; `gated`: once `let`."""

    def __init__(self, *, gated: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.runtime: Any = Gated() if gated else Moody(lambda value: None)
        self.worker = worker_of(self.runtime)
        self.core = ReplicaCore(self.worker)
        self.server = ChannelServer(self.core, "rep", tls=tls)

    def let(self) -> None:
        self.runtime.let.set()

    async def close(self) -> None:
        """Whatever was done to it, nothing is left of it."""
        if isinstance(self.runtime, Gated):
            self.let()
        await self.server.close()
        await until(lambda: not self.server._connections)
        await asyncio.wait_for(self.core.until_idle(), 5.0)
        assert len(self.server.unauthenticated) == 0
        assert self.server._links == {}
        assert self.core._held == {}
        self.worker.close()


def batch(*values: int, **more: Any) -> list[Any]:
    """A batch of one row, whose answer it is."""
    column = ragged("INT64", [np.array(values)])
    lengths = np.array([len(values)], dtype=np.int32).tobytes()
    return encode_call(BatchCall(60.0, lengths, {"x": column}, None, **more))


async def answer(peer: Peer, lease_id: int) -> BatchReply:
    return decode_reply(memoryview(await peer.take(Kind.REPLY, lease_id)))


async def is_served(peer: Peer, lease_id: int) -> bool:
    peer.send(Kind.BATCH, lease_id, batch(lease_id))
    reply = await answer(peer, lease_id)
    return reply.outputs["y"].data.tolist() == [lease_id]
