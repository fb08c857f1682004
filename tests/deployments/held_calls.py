"""Requests to the stand's model `device` whose calls are held on their way, and their answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from in_process import Answer, Stand, ask

from deployments.contract.channel.frames import BatchReply

SYNTHETIC: dict[str, Any] = {
    "runtime": "synthetic",
    "options": {"base_ms": 0},
    "slo": {"latency_ms": 2000},
    "crashes": {"hold_s": 0},  # no replica comes in place of a lost one
}
INFER = "/v2/models/device/infer"


def body_of(values: list[int], name: str = "ids") -> bytes:
    shape = [len(values), 1]
    tensor = {"name": name, "datatype": "INT64", "shape": shape, "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


def send(stand: Stand, *values: int, headers: Any = (), **more: Any) -> asyncio.Task[Answer]:
    call = ask(stand.app, "POST", INFER, headers, body_of(list(values)), **more)
    return asyncio.create_task(call)


def data(answer: Answer) -> list[float]:
    assert answer.status == 200, answer.body
    return list(json.loads(answer.body)["outputs"][0]["data"])


async def fill(stand: Stand) -> list[asyncio.Task[Answer]]:
    """Takes every slot of both replicas with held calls of one row each."""
    channel = stand.channels["device"]
    channel.hold()
    calls = []
    for count in range(1, 5):
        calls.append(send(stand, 100 + count))
        await channel.sent(count)
    return calls


def busy(retry_in_s: float = 0.001) -> BatchReply:
    stages = (0.0, 0.0, 0.0, 0.0, 0.0)
    return BatchReply(True, {}, (), 0.0, 0.0, 0, stages, 2, 0, 0, retry_in_s, 0.0)
