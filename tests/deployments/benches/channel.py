"""`python tests/deployments/benches/channel.py`: what a message of the data channel costs, in µs.

Each line is the median of `--rounds` rounds: made, written and read, for a batch of eight rows, its
answer, and a step of 32 requests that generate; then whole batches from a gateway's end of a real
connection to a replica and back, both in this process, one at a time and 16 at once, on uvloop:
processor time of all threads. `--json` is for comparing
two checkouts: run it alternately, with each one's root as PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import uvloop
from channel_peers import Peer
from channel_stand import Stand, batch

from deployments.contract.channel.frames import (
    BatchCall,
    BatchReply,
    Column,
    Kind,
    decode_call,
    decode_reply,
    encode_call,
    encode_reply,
)
from deployments.contract.channel.stream_messages import (
    Piece,
    StepMessage,
    decode_steps,
    encode_steps,
)
from runtimes.types import EngineLoad

WORK = tuple((1, f"tenant-{n}", 0.25) for n in range(4))
LENGTHS = np.full(8, 16, dtype=np.int32).tobytes()
IDS = Column("INT64", np.arange(128, dtype=np.int64).tobytes(), None)
VECTORS = Column("FP32", np.zeros(8 * 384, np.float32).tobytes(), ((384,),) * 8)


def call() -> BatchCall:
    return BatchCall(1.0, LENGTHS, {"ids": IDS}, None, (0, 1, 2.5), 0.01, WORK, WORK, False)


def reply() -> BatchReply:
    return BatchReply(
        False, {"y": VECTORS}, (), 0.001, 0.01, 128, (0.0,) * 5, 1, 1, 7, 0.0, 0.5, 0.0,
        (1.0, 2.0), WORK, None,
    )  # fmt: skip


def steps() -> StepMessage:
    pieces = tuple([Piece(n, b"data: {}\n\n", 100, 0, n, 128, 0.5) for n in range(32)])
    return StepMessage(pieces, 32, 99, 64, EngineLoad(1, 2, 0.5, 3, 4, 5, 6), None, 1000, 200)


def timed(act: Callable[[], Any], seconds: float = 0.15) -> float:
    """µs of one call."""
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        for _ in range(100):
            act()
        count += 100
    return spent / count * 1e6


async def batches(at_once: int, count: int) -> float:
    """µs of processor time per batch, over a real connection."""
    stand = Stand()
    await stand.server.listen("127.0.0.1")
    peer = await Peer.welcome(stand.server)
    body = b"".join(batch(1, 2, 3))

    async def one_after_another(first: int) -> None:
        for lease_id in range(first, first + count):
            peer.send(Kind.BATCH, lease_id, [body])
            decode_reply(memoryview(await peer.take(Kind.REPLY, lease_id)))

    await one_after_another(1)
    began = time.process_time()
    await asyncio.gather(*[one_after_another(at * count) for at in range(2, 2 + at_once)])
    spent = time.process_time() - began
    peer.leave()
    await stand.close()
    return spent / (at_once * count) * 1e6


def measure() -> dict[str, float]:
    found: dict[str, float] = {}
    for name, make, write, read in (
        ("batch", call, encode_call, decode_call),
        ("answer", reply, encode_reply, decode_reply),
        ("steps of 32", steps, encode_steps, decode_steps),
    ):
        message: Any = make()
        writes: Any = write
        body = memoryview(b"".join(writes(message)))
        found[f"{name}: make"] = timed(make)
        found[f"{name}: write"] = timed(lambda w=writes, m=message: w(m))
        found[f"{name}: read"] = timed(lambda r=read, b=body: r(b))
    found["a batch and back, 1 at a time"] = uvloop.run(batches(1, 1000))
    found["a batch and back, 16 at once"] = uvloop.run(batches(16, 150))
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    rounds = [measure() for _ in range(asked.rounds)]
    found = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    if asked.json:
        print(json.dumps(found))
        return
    for name, spent in found.items():
        print(f"{name:32} {spent:8.2f}")


if __name__ == "__main__":
    main()
