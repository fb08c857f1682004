"""A replica whose machine is gone without a word is found within seconds, idle or at work.

The replica's side runs in a network namespace of its own, joined by a pair of virtual interfaces;
taking its end down loses every packet and sends none. Needs root, and is left out elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from served import environment, patient

from deployments.contract.channel.frames import Kind
from deployments.gateway.queues.connections import TcpReplicaChannel
from deployments.process.replica_directory import RunningReplica
from deployments.process.sockets import FOUND_DEAD_S

pytestmark = pytest.mark.integration
NAME = f"hr{os.getpid() % 100_000}"
HERE, THERE = f"10.213.{os.getpid() % 250}.1", f"10.213.{os.getpid() % 250}.2"
KEY = b"k" * 32
REPLICA = f"""
import asyncio
from deployments.replica.channel_server import ChannelServer

class Silent:
    "Takes leases in and never answers."
    joined = left = received = lambda self, *of: None

async def main():
    server = ChannelServer(Silent(), "r")
    server.key = {KEY!r}
    await server.listen("{THERE}")
    print(server.address, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def address() -> Iterator[str]:
    """Where a replica listens in a namespace of its own."""
    with contextlib.ExitStack() as stack:
        try:
            ip("netns", "add", NAME)
            stack.callback(ip, "netns", "del", NAME)
            ip("link", "add", f"{NAME}a", "type", "veth", "peer", "name", f"{NAME}b")
            stack.callback(lambda: subprocess.run(["ip", "link", "del", f"{NAME}a"], check=False))
            ip("link", "set", f"{NAME}b", "netns", NAME)
            ip("addr", "add", f"{HERE}/24", "dev", f"{NAME}a")
            ip("link", "set", f"{NAME}a", "up")
            ip("-n", NAME, "addr", "add", f"{THERE}/24", "dev", f"{NAME}b")
            ip("-n", NAME, "link", "set", f"{NAME}b", "up")
        except (OSError, subprocess.CalledProcessError) as fault:
            pytest.skip(f"network namespaces cannot be made here: {fault}")
        command = ["ip", "netns", "exec", NAME, sys.executable, "-c", REPLICA]
        replica = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
        stack.callback(replica.wait)
        stack.callback(replica.kill)
        assert replica.stdout is not None
        yield replica.stdout.readline().strip()


class Listener:
    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def links_changed(self) -> None:
        self.changed.set()

    def link_lost(self, replica_id: str, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)

    def received(self, replica_id, frame) -> None:
        raise AssertionError("this replica never answers")


@pytest.mark.parametrize("at_work", [False, True], ids=["idle", "at work"])
async def test_a_machine_that_is_gone_is_found_within_seconds(address: str, at_work: bool) -> None:
    async def key_of(replica_id: str) -> bytes:
        return KEY

    channel, listener = TcpReplicaChannel("g", key_of), Listener()
    channel.listener = listener
    channel.follow([RunningReplica("r", (("channel", address),))])
    async with asyncio.timeout(patient(10)):
        await listener.changed.wait()
    assert channel.reached == ["r"]
    ip("-n", NAME, "link", "set", f"{NAME}b", "down")
    if at_work:
        assert channel.send("r", Kind.DROP, 1)
    async with asyncio.timeout(patient(FOUND_DEAD_S + 2)):
        await listener.lost
    assert channel.reached == []
    channel.close()
