"""`python kserve_client.py URL HOST:PORT`: KServe's own client, unpatched, asks a server of
`examples/device.yaml` over HTTP and gRPC.

Runs in an environment of its own (`pip install kserve==0.21.0`), which brings too much for this
project's. Ends with 1 where something is not as it should be.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.errors import InvalidInput
from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest

ROWS = [[1, 2, 3], [4, 5, 6]]
SUMS = [6.0, 15.0]


def request(*, raw: bool) -> InferRequest:
    tensor = InferInput("ids", [2, 3], "INT64")
    tensor.set_data_from_numpy(np.array(ROWS, np.int64), binary_data=raw)
    return InferRequest(model_name="device", infer_inputs=[tensor], request_id="one")


def check(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise SystemExit(f"{what}: {found!r}, expected {expected!r}")
    print(f"{what}: as expected")


def summed(answer: Any) -> list[float]:
    (output,) = answer.outputs
    return [float(each) for each in output.as_numpy().reshape(-1)]


async def over_http(url: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0, timeout=10))
    check("HTTP, live", await client.is_server_live(url), True)
    check("HTTP, ready", await client.is_server_ready(url), True)
    check("HTTP, model", await client.is_model_ready(url, "device"), True)
    for raw in (False, True):
        answer = await client.infer(url, request(raw=raw), model_name="device")
        check(f"HTTP, raw {raw}", (answer.id, summed(answer)), ("one", SUMS))


async def over_grpc(target: str) -> None:
    async with InferenceGRPCClient(target, timeout=10, retries=0) as client:
        check("gRPC, live", await client.is_server_live(), True)
        check("gRPC, ready", await client.is_server_ready(), True)
        check("gRPC, model", await client.is_model_ready("device"), True)
        for raw in (False, True):
            answer = await client.infer(request(raw=raw))
            check(f"gRPC, raw {raw}", (answer.id, summed(answer)), ("one", SUMS))
        try:
            await client.infer(ModelInferRequest(model_name="device"))
        except InvalidInput:
            print("gRPC, without inputs: refused")
        else:
            raise SystemExit("a request without inputs was answered")


async def main(url: str, target: str) -> None:
    await over_http(url)
    await over_grpc(target)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
