"""A replica core as a Serve deployment and the transport to it, tried out in a cluster of its own.

Run in a process of its own with Serve's environment; prints one JSON object of what was seen.
Leases' ids are spoken of as numbers; the device takes `BATCH_S` a batch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

BATCH_S = 4.0


def application() -> Any:
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from deployments.contract.app_names import MODEL_DEPLOYMENT, directory_key

    class Held:
        async def __init__(self) -> None:
            from deployments.contract.loopback import keep_replica_calls_local
            from deployments.replica.device import DeviceWorker
            from deployments.replica.replica_core import ReplicaCore
            from runtimes import catalog
            from runtimes.types import RuntimeSettings

            keep_replica_calls_local()
            settings = RuntimeSettings(
                "device", "synthetic", None, Path(), options={"base_ms": BATCH_S * 1e3}
            )
            runtime = catalog.create(settings)
            runtime.load()
            worker = DeviceWorker(runtime, 2, hang_limit_s=30.0, on_hang=lambda: None)
            self.core = ReplicaCore(worker)

        async def infer(self, call: Any) -> Any:
            return await self.core.infer(call)

        async def drop(self, gateway: str, lease_id: int) -> bool:
            return self.core.drop(gateway, lease_id)

        async def opened(self, gateway: str, lease_id: int) -> bool:
            return await self.core.opened(gateway, lease_id)

        async def describe(self) -> int:
            return self.core.inflight

    class Root:
        def __init__(self, held: Any) -> None:
            self.held = held

    router: Any = {"request_router_class": "deployments.contract.pin_router:PinRouter"}
    held: Any = serve.deployment(
        Held,
        name=MODEL_DEPLOYMENT,
        max_ongoing_requests=14,
        request_router_config=RequestRouterConfig(
            **router, request_router_kwargs={"key": directory_key("held")}
        ),
    )
    root: Any = serve.deployment(Root, name="root", ray_actor_options={"num_cpus": 0})
    return root.bind(held.bind())


def call(lease_id: int) -> Any:
    import numpy as np

    from deployments.contract.wire import BatchCall, pack

    ids = pack("INT64", [np.array([lease_id])], None)
    return BatchCall("g", lease_id, 60.0, np.array([1], np.int32).tobytes(), {"ids": ids}, None)


async def seen() -> dict[str, Any]:
    from deployments.contract.app_names import directory_key, model_app
    from deployments.contract.replica_directory import directory_for
    from deployments.gateway.queues.transport import ServeTransport

    transport = ServeTransport(model_app("held"))
    await transport.seed(30.0)
    (replica,) = [r.replica_id for r in directory_for(directory_key("held")).replicas]

    def send(lease_id: int) -> asyncio.Task[Any]:
        return asyncio.create_task(transport.call(replica, call(lease_id), 30.0))

    def start(lease_id: int) -> asyncio.Task[bool]:
        return asyncio.create_task(transport.opened(replica, "g", lease_id, 30.0))

    async def inflight(count: int) -> bool:
        end = time.monotonic() + BATCH_S
        while await transport._base.options(method_name="describe").remote() != count:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.01)
        return True

    found: dict[str, Any] = {}
    running = send(1)
    found["the running batch has started"] = await start(1)
    dropped = send(2)
    found["a second one is staged"] = await inflight(2)
    start_of_dropped = start(2)
    found["it is dropped"] = await transport.drop(replica, "g", 2)
    found["its call is answered busy"] = (await dropped).busy
    found["its start is told never to come"] = not await start_of_dropped
    found["the running one cannot be dropped"] = not await transport.drop(replica, "g", 1)
    abandoned = send(3)
    await inflight(2)
    abandoned.cancel()
    found["an abandoned call's batch leaves"] = await inflight(1)
    staged, start_of_staged = send(4), start(4)
    await asyncio.sleep(0.1)
    found["a staged batch has not started"] = not start_of_staged.done()
    found["the running one is answered"] = not (await running).busy
    began = time.monotonic()
    found["then the staged one starts"] = await start_of_staged
    found["at once"] = time.monotonic() - began < BATCH_S / 2
    found["and is answered"] = not (await staged).busy
    found["nothing is left"] = await inflight(0)
    return found


def main() -> None:
    import ray
    from ray import serve

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(proxy_location="Disabled")
        serve.run(application(), name="model-held", route_prefix=None)
        print("SEEN " + json.dumps(asyncio.run(seen())))
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
