"""A stream core as a Serve deployment and the transport to it, tried out in a cluster of its own.

Run in a process of its own with Serve's environment; prints one JSON object of what was seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any


def application() -> Any:
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from deployments.contract.app_names import MODEL_DEPLOYMENT, directory_key

    class Streaming:
        async def __init__(self) -> None:
            from deployments.contract.loopback import keep_replica_calls_local
            from deployments.replica.stream_core import StreamCore
            from runtimes import catalog
            from runtimes.types import RuntimeSettings

            keep_replica_calls_local()
            settings = RuntimeSettings("llm", "synthetic", None, Path(), task="generate")
            self.engine = catalog.create_stream(settings)
            await self.engine.load()
            self.core = StreamCore(self.engine, room=2)

        async def begin(self, call: Any) -> bool:
            return self.core.begin(call)

        async def abort(self, gateway: str, lease_ids: list[int]) -> int:
            return sum(self.core.abort(gateway, lease_id) for lease_id in lease_ids)

        async def messages(self, gateway: str) -> Any:
            stream = self.core.messages(gateway)
            try:
                async for message in stream:
                    yield message
            finally:
                await stream.aclose()

        async def describe(self) -> tuple[int, int]:
            return self.core.inflight, os.getpid()

    class Root:
        def __init__(self, streaming: Any) -> None:
            self.streaming = streaming

    router: Any = {"request_router_class": "deployments.contract.pin_router:PinRouter"}
    streaming: Any = serve.deployment(
        Streaming,
        name=MODEL_DEPLOYMENT,
        max_ongoing_requests=100,
        request_router_config=RequestRouterConfig(
            **router, request_router_kwargs={"key": directory_key("llm")}
        ),
    )
    root: Any = serve.deployment(Root, name="root", ray_actor_options={"num_cpus": 0})
    return root.bind(streaming.bind())


def call(lease_id: int, tokens: int) -> Any:
    from deployments.contract.wire import GenerateCall

    body = {"model": "llm", "prompt": "a b c", "max_tokens": tokens, "stream": True}
    return GenerateCall("g", lease_id, "completions", json.dumps(body).encode(), 60.0)


class Gateway:
    """Its side of one stream."""

    def __init__(self, transport: Any, replica: str) -> None:
        self.messages: list[Any] = []
        self.fault: Exception | None = None
        self.task = asyncio.create_task(self._read(transport, replica))

    async def _read(self, transport: Any, replica: str) -> None:
        try:
            async with aclosing(transport.messages(replica)) as messages:
                async for message in messages:
                    self.messages.append(message)
        except Exception as fault:
            self.fault = fault

    def pieces(self, lease_id: int) -> list[Any]:
        return [p for m in self.messages for p in m.pieces if p.lease_id == lease_id]

    async def until(self, condition: Any, within_s: float = 40.0) -> bool:
        end = time.monotonic() + within_s
        while not condition() and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        return bool(condition())

    async def end_of(self, lease_id: int) -> str:
        await self.until(lambda: any(p.end for p in self.pieces(lease_id)))
        return next((p.end.value for p in self.pieces(lease_id) if p.end), "never")


async def seen() -> dict[str, Any]:
    from deployments.contract.app_names import directory_key, model_app
    from deployments.contract.replica_directory import directory_for
    from deployments.gateway.queues.transport import ReplicaDied, ServeStreamTransport, Unreached

    transport = ServeStreamTransport(model_app("llm"), "g")
    await transport.seed(30.0)
    (replica,) = [r.replica_id for r in directory_for(directory_key("llm")).replicas]
    found: dict[str, Any] = {}

    async def begun(lease_id: int) -> bool:
        try:
            await transport.begin(replica, call(lease_id, 3))
        except Unreached:
            return False
        return True

    async def describe() -> tuple[int, int]:
        answer: tuple[int, int] = await transport.ask(replica, "describe", 5.0)
        return answer

    found["without a stream nothing is begun"] = not await begun(1)
    gateway = Gateway(transport, replica)
    found["a stream says that it is open"] = await gateway.until(lambda: gateway.messages)
    await transport.begin(replica, call(2, 50))
    found["a request ends done"] = await gateway.end_of(2) == "done"
    pieces = gateway.pieces(2)
    found["its answer came in parts"] = len(pieces) > 20
    found["the answer is whole"] = b"".join(p.data for p in pieces).endswith(b"data: [DONE]\n\n")
    found["a step a message"] = pieces[-1].output_tokens == 50
    await transport.begin(replica, call(3, 2000))
    await transport.begin(replica, call(4, 2000))
    await transport.begin(replica, call(5, 2000))
    found["more than there is room for is busy"] = await gateway.end_of(5) == "busy"
    await transport.abort(replica, [3])
    found["an abort ends a request"] = await gateway.end_of(3) == "aborted"
    gateway.task.cancel()
    await asyncio.gather(gateway.task, return_exceptions=True)
    end = time.monotonic() + 40.0
    while (running := (await describe())[0]) and time.monotonic() < end:
        pass
    found["a closed stream aborts what ran on it"] = running == 0
    second = Gateway(transport, replica)
    await second.until(lambda: second.messages)
    found["a sign of life comes"] = await second.until(lambda: len(second.messages) > 1)
    third = Gateway(transport, replica)
    found["a second stream takes the place"] = await second.until(lambda: second.task.done())
    await third.until(lambda: third.messages)
    os.kill((await describe())[1], signal.SIGKILL)
    await third.until(lambda: third.task.done())
    found["a killed replica ends its stream"] = isinstance(third.fault, ReplicaDied)
    return found


def main() -> None:
    import ray
    from ray import serve

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(proxy_location="Disabled")
        serve.run(application(), name="model-llm", route_prefix=None)
        print("SEEN " + json.dumps(asyncio.run(seen())), flush=True)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
