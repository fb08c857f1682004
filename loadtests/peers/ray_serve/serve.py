"""The work, served by Ray Serve with its defaults or with its throughput settings.

One deployment's `__call__` parses the request and awaits a `@serve.batch` method, as Serve's guide
shows; one replica owns the device. It ends the Ray that it starts on SIGTERM. Variants:

`defaults`    all defaults: Python proxy, 5 ongoing requests a replica.
`raised`      `max_ongoing_requests` above the batch size, as the guide asks.
`throughput`  that, HAProxy and the throughput settings in the environment (`catalogue`), a bounded
              queue against overload, and batches bounded by rows x longest (`batch_size_fn`), which
              the guide advises for items of different sizes.
Source: Ray Serve guides "Dynamic request batching", "Performance tuning", "High throughput".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.requests import Request

from loadtests.peers import options as peer_options
from loadtests.peers.options import PeerOptions
from loadtests.peers.ray_serve.running import serve_until_ended

PADDED_TOKENS = 1024  # a batch's bound in the throughput variant; the longest row alone has 512
WAIT_S = 0.02  # Serve forms batches without knowing whether the device is free
ONGOING = {"defaults": None, "raised": 256, "throughput": 40}
QUEUED = {"throughput": 8}


def padded(items: Sequence[Sequence[Any]]) -> int:
    return len(items) * max(map(len, items))


def batching(asked: PeerOptions) -> dict[str, Any]:
    if asked.variant == "throughput" and asked.work == peer_options.DEVICE:
        bound = {"max_batch_size": PADDED_TOKENS, "batch_size_fn": padded}
        return {**bound, "batch_wait_timeout_s": WAIT_S}
    return {"max_batch_size": asked.batch}


def options(variant: str) -> dict[str, Any]:
    found = {"max_ongoing_requests": ONGOING[variant], "max_queued_requests": QUEUED.get(variant)}
    return {name: value for name, value in found.items() if value is not None}


def application(asked: PeerOptions) -> Application:
    @serve.deployment(**options(asked.variant))
    class Model:
        def __init__(self) -> None:
            self._run = peer_options.work_of(asked.work)
            self._device = ThreadPoolExecutor(1)

        @serve.batch(**batching(asked))
        async def batched(self, items: list[Any]) -> list[Any]:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._device, self._run, items)

        async def __call__(self, request: Request) -> dict[str, Any]:
            if request.method == "GET":  # a check whether the server is ready
                return {}
            body = await request.json()
            return {"answer": await self.batched(body["item"])}

    return Model.bind()


def main() -> None:
    asked = peer_options.parse(__doc__)
    serve_until_ended(application(asked), asked.port)


if __name__ == "__main__":
    main()
