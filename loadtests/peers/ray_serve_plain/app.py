"""The fake device, served by Ray Serve with its default settings.

An ingress deployment parses the Open Inference request and calls a model deployment whose
`@serve.batch` method is the device: 2 ms a batch of at most 32, one batch at a time, the row's sum
as the answer. Every setting is Ray Serve's default: one replica each, its Python proxy, its batch
wait, one batch at a time. Its default of 5 ongoing requests a replica never lets a batch of 32
form; `--max-ongoing` raises it for both deployments, as its documentation on batching advises. It
starts a Ray of its own and ends it on SIGTERM.

`python -m loadtests.peers.ray_serve_plain.app --port 8100` in Headrace's own environment.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request

from loadtests.peers.ray_serve.running import serve_until_ended

MAX_BATCH = 32


@serve.deployment
class Device:
    def __init__(self, batch_s: float) -> None:
        self._batch_s = batch_s

    @serve.batch(max_batch_size=MAX_BATCH)
    async def __call__(self, rows: list[list[int]]) -> list[float]:
        await asyncio.sleep(self._batch_s)
        return [float(sum(row)) for row in rows]


@serve.deployment
class Ingress:
    def __init__(self, device: DeploymentHandle) -> None:
        self._device = device

    async def __call__(self, request: Request) -> dict[str, Any]:
        if request.method == "GET":  # a check whether the server is ready
            return {}
        body = await request.json()
        total = await self._device.remote(body["inputs"][0]["data"])
        output = {"name": "sum", "datatype": "FP32", "shape": [1, 1], "data": [total]}
        return {"model_name": "device", "model_version": "1", "outputs": [output]}


def application(batch_s: float, max_ongoing: int | None) -> Application:
    changed = {} if max_ongoing is None else {"max_ongoing_requests": max_ongoing}
    return Ingress.options(**changed).bind(Device.options(**changed).bind(batch_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch-ms", type=float, default=2.0)
    parser.add_argument("--max-ongoing", type=int, help="max_ongoing_requests (Ray Serve's own)")
    asked = parser.parse_args()
    serve_until_ended(application(asked.batch_ms / 1000.0, asked.max_ongoing), asked.port)


if __name__ == "__main__":
    main()
