"""One end of a mixed pair, in a process of its own: `python ends.py replica|gateway`.

It runs the code of the checkout that PYTHONPATH names, with that checkout's own test stands, so it
uses only what both checkouts have. The replica serves a model that runs batches and one that
generates; it writes where they listen, and drains at the end of its input. The gateway reads that,
sends requests over the real channel, and writes what came of them as JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from conftest import described
from generating import COMPLETIONS, Played, add
from in_process import ask
from replica_apart import FarReplica, StandApart, replica_of

import deployments
from deployments.replica.channel_server import ChannelServer
from deployments.replica.stream_core import StreamCore
from runtimes.synthetic.stream import SyntheticStreamRuntime
from runtimes.types import RuntimeSettings

try:
    from deployments.gateway.queues.connections import RunningReplica, TcpReplicaChannel
except ImportError:  # of a version before
    from deployments.gateway.queues.replica_channel import RunningReplica, TcpReplicaChannel

MODEL = {"runtime": "synthetic", "options": {"base_ms": 2}}
REQUESTS = 200
STREAMS = 20


async def replica() -> None:
    folder = Path(tempfile.mkdtemp())
    engine = SyntheticStreamRuntime(
        RuntimeSettings("chat", "synthetic", None, folder, task="generate")
    )
    await engine.load()
    core = StreamCore(engine, room=64, on_death=lambda reason: None)
    server = ChannelServer(core, "chat-0")
    await server.listen("127.0.0.1")
    async with replica_of("device", MODEL, folder) as batches:
        print(batches, server.address, server.key.hex(), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.drain()
        await server.close()


class StreamChannel(TcpReplicaChannel):
    """To the replica that generates. `cores`: the stand looks for those of this process."""

    def __init__(self, replica: FarReplica) -> None:
        known = inspect.signature(TcpReplicaChannel.__init__).parameters
        flag = "sends_heartbeats" if "sends_heartbeats" in known else "speaks"
        super().__init__("g0", replica.key_of, **{flag: True})
        self.cores: dict[str, Any] = {}


def infer(*lengths: int) -> bytes:
    longest = max(lengths)
    rows = [[1] * length + [0] * (longest - length) for length in lengths]
    shape = [len(lengths), longest]
    data = [value for row in rows for value in row]
    return json.dumps(
        {"inputs": [{"name": "ids", "datatype": "INT64", "shape": shape, "data": data}]}
    ).encode()


async def one(stand: StandApart, number: int) -> str:
    """The outcome of one request: of a row, of several, or of one whose caller leaves."""
    leave = asyncio.Event()
    if number % 10 == 9:
        asyncio.get_running_loop().call_later(0.001, leave.set)
    lengths = (1 + number % 7,) * (1 + number % 3)
    answer = await ask(
        stand.app, "POST", "/v2/models/device/infer", body=infer(*lengths), leave=leave
    )
    if leave.is_set():
        return "left"
    said = json.loads(answer.body)
    sums = [float(lengths[0])] * len(lengths)
    right = "outputs" in said and said["outputs"][0]["data"] == sums
    return "right" if right else f"{answer.status} {answer.body[:200]!r}"


async def generated(stand: StandApart, number: int) -> str:
    """The outcome of a completion that is sent whole and streamed."""
    asked = {"model": "chat", "prompt": f"prompt {number}", "max_tokens": 12}
    whole = await ask(stand.app, "POST", COMPLETIONS, body=json.dumps(asked).encode())
    body = json.dumps({**asked, "stream": True}).encode()
    streamed = await ask(stand.app, "POST", COMPLETIONS, body=body, pieces=True)
    events = [event for event in streamed.body.split(b"\n\n") if event.startswith(b"data: {")]
    texts = [json.loads(event[6:])["choices"][0]["text"] for event in events]
    same = json.loads(whole.body)["choices"][0]["text"] == "".join(texts)
    return "right" if same and texts else f"{whole.body[:200]!r} {streamed.body[:200]!r}"


async def gateway(line: str) -> None:
    batches, address, key = line.rsplit(maxsplit=2)
    stand = StandApart("device", MODEL, Path(tempfile.mkdtemp()), FarReplica.read(batches))
    streams: Any = StreamChannel(FarReplica(address, bytes.fromhex(key)))
    engines: Played = streams
    add(stand, described, engines=engines, replicas=0)
    stand.books["chat"].update(
        [RunningReplica("chat-0", (("digest", "digest"), ("channel", address)))]
    )
    await stand.reached("device")
    await stand.reached("chat")
    found = await asyncio.gather(
        *[one(stand, number) for number in range(REQUESTS)],
        *[generated(stand, number) for number in range(STREAMS)],
    )
    lost = [stand.channels[name].counts.disconnects for name in ("device", "chat")]
    versions = [
        getattr(stand.channels[name], "version", lambda replica_id: 3)(f"{name}-0")
        for name in ("device", "chat")
    ]
    said = {"wrong": sorted(set(found) - {"right", "left"}), "right": found.count("right"),
            "lost": lost, "versions": versions, "code": deployments.__file__}  # fmt: skip
    print(json.dumps(said), flush=True)
    stand.close()


if __name__ == "__main__":
    if sys.argv[1] == "replica":
        asyncio.run(replica())
    else:
        asyncio.run(gateway(sys.argv[2]))
