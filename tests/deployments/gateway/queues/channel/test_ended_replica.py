"""An engine dies at a replica, over real sockets: its gateway knows why before the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest
from fake_engines import until
from stream_bench import SHAPE, Bench, read
from told_engine import Told

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.gateway.queues.connections import TcpReplicaChannel
from deployments.process.replica_directory import RunningReplica
from deployments.replica.channel_server import ChannelServer
from deployments.replica.stream_core import ENDS_S, StreamCore

Describe = Callable[..., ModelDescription]
WHY = "the engine died, and 2 requests with it"


async def test_a_gateway_hears_all_that_had_come_and_why_and_lets_the_process_end(
    description: Describe,
) -> None:
    engine, deaths = Told(), list[str]()
    core = StreamCore(engine, room=8, at_once=1, on_death=deaths.append)
    server = ChannelServer(core, "rep")
    await server.listen("127.0.0.1")

    async def key_of(replica_id: str) -> bytes:
        return server.key

    channel = TcpReplicaChannel("g", key_of, sends_heartbeats=True)
    b = Bench(description, 1, channel=channel)
    replica = RunningReplica("rep", (("channel", server.address),))
    b.queue.set_replicas([replica], {"": SHAPE})
    await b.up()
    shown = b.submit(expires_s=30)
    await until(lambda: bool(engine.queues))
    waits = b.submit(expires_s=30)
    await until(lambda: core.inflight == 2)
    engine.give(b"{}", b"part ", count=1)
    assert await shown.next() == b"part "

    engine.give(b"{}", b"and more", count=2)
    for _ in range(4):  # it is on its way, no more
        await asyncio.sleep(0)
    died_at = monotonic()
    engine.die()
    assert await shown.next() == b"and more"
    with pytest.raises(errors.ReplicaLost):
        await read(shown)
    assert shown.tokens.output == 2
    ((_, why),) = b.queue.calls.ended.values()
    assert why == WHY
    await until(lambda: deaths == [WHY])
    assert monotonic() - died_at < ENDS_S / 2
    assert not waits.done
    assert b.queue.waiting_rows == 1
    assert b.queue.snapshot().leases == 0
    b.queue.cancel(waits)
    b.queue.calls.close()
    await core.close()
    await server.close()
