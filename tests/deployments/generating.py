"""A model that generates on the in-process stand, and a client that sees its answer as it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from fake_engines import Engines, until
from in_process import Stand

from deployments.contract.channel.frames import Buffer, Kind
from deployments.contract.channel.stream_messages import Piece, StreamEnd
from deployments.contract.description import Generating, ModelDescription
from deployments.contract.rollout.terms import is_canary
from deployments.gateway.models.catalogue import _public_description
from deployments.gateway.models.served_model import ServedModel
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica
from deployments.replica.scheduling import scheduling
from deployments.settings.model import ModelSettings
from runtimes.errors import RuntimeFault
from runtimes.types import StreamRequest, StreamRuntime

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SHAPE = Generating(
    context_tokens=100, cache_tokens=400, max_sequences=8, block_tokens=4,
    adapters=("sql", "law"), adapter_digests=("1", "2"),
)  # fmt: skip


class Played(Engines):
    """`cores`: the stand looks for those of batch replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.cores: dict[str, Any] = {}


class Generated(Played):
    """A replica that runs a real stream runtime, one piece for each of its chunks."""

    def __init__(self, runtime: StreamRuntime) -> None:
        super().__init__()
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        sent = super().send(replica_id, kind, lease_id, body)
        if kind is Kind.BEGIN and lease_id in self.engine(replica_id).calls:
            task = asyncio.get_running_loop().create_task(self._run(replica_id, lease_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return sent

    async def _run(self, replica_id: str, lease_id: int) -> None:
        call = self.engine(replica_id).calls[lease_id]
        request = StreamRequest(f"r{lease_id}", call.endpoint, call.body, call.priority, call.salt)
        last, end = Piece(lease_id, b"", 0, 0, 0, 0, 0.0), StreamEnd.FAILED
        try:
            async with aclosing(self._runtime.run(request)) as chunks:
                async for c in chunks:
                    counts = c.input_tokens, c.cached_tokens, c.output_tokens, c.held_tokens
                    last = Piece(lease_id, c.data, *counts, 0.01, c.status)
                    self.tell(replica_id, last)
            end = StreamEnd.DONE
        except RuntimeFault:
            pass
        if lease_id in self.engine(replica_id).calls:
            self.tell(replica_id, msgspec.structs.replace(last, data=b"", end=end))


def add(
    stand: Stand,
    description: Callable[..., ModelDescription],
    name: str = "chat",
    replicas: int = 1,
    shape: Generating = SHAPE,
    tokenizer: TextTokenizer | None = None,
    engines: Played | None = None,
    **settings: Any,
) -> Played:
    """Serves `name` from played replicas, `engines`; without a tokeniser four bytes are a token."""
    model = ModelSettings.model_validate(
        {"runtime": "synthetic", "task": "generate", "lengths": {"max": 100}, **settings}
    )
    described = description(
        name=name, task="generate", generating=shape, max_length=100, bucket_edges=(16, 100),
        inputs=(), outputs=(), scheduling=scheduling(model), digest="digest",
        version=model.version or "1",
    )  # fmt: skip
    if model.fallback:
        reuse = replace(described.reuse, fallback=model.fallback)
        described = replace(described, reuse=reuse)
    engines, directory = engines or Played(), ReplicaDirectory()
    served = ServedModel(
        _public_description(described),
        tokenizer,
        engines,
        directory,
        stand.identity,
        stand.telemetry.batch,
    )
    served.queue.keeps_unreached = not is_canary(name)
    stand.models._table_of(name)[name] = served
    stand.models._live[name] = described
    if not is_canary(name):
        stand.models._declared |= {name}
    stand.channels[name], stand.books[name] = engines, directory  # type: ignore[assignment]
    ids = tuple(RunningReplica(f"{name}-{n}", (("digest", "digest"),)) for n in range(replicas))
    directory.update(list(ids))
    stand.telemetry.refresh()
    return engines


class Client:
    """One request, sent at once. `heard`: chunks of the body as they came; `leave` disconnects;
    `reads` cleared: it takes nothing in."""

    def __init__(self, stand: Stand, path: str, body: Any, headers: Any = ()) -> None:
        self.heard: list[bytes] = []
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.over = False
        self.leave = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._body: list[bytes] = [raw]
        scope = {"type": "http", "method": "POST", "raw_path": path.encode(),
                 "headers": list(headers)}  # fmt: skip
        self.task = asyncio.create_task(stand.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        await self.reads.wait()
        if message.get("body"):
            self.heard.append(message["body"])
        self.over = not message.get("more_body", False)

    async def hears(self, count: int) -> bytes:
        """The latest chunk, once so many came."""
        await until(lambda: len(self.heard) >= count)
        return self.heard[count - 1]

    async def end(self) -> bytes:
        await asyncio.wait_for(self.task, 5.0)
        return b"".join(self.heard)

    async def error(self) -> dict[str, Any]:
        """The error of an answer that is one."""
        body: dict[str, Any] = json.loads(await self.end())
        assert list(body) == ["error"]
        found: dict[str, Any] = body["error"]
        return found


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}], **more}


def streamed(text: str = "hello", **more: Any) -> dict[str, Any]:
    return chat(text, stream=True, **more)
