"""What engines hold is known to every gateway, over the real messages and without sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_engines import until
from in_process import LocalChannel, LocalSession

from deployments.contract.channel import stream_messages
from deployments.contract.channel.frames import Kind
from deployments.contract.channel.stream_messages import decode_steps, encode_steps
from deployments.contract.description import (
    GatewayIdentity,
    Generating,
    ModelDescription,
    dispatcher_settings,
)
from deployments.gateway.models.served_model import terms
from deployments.gateway.prompts import pseudo_ids
from deployments.gateway.queues import stream_queue
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.queues.pending_requests import Prompt
from deployments.gateway.queues.stream_queue import StreamQueue
from deployments.process.replica_directory import RunningReplica
from deployments.replica import told_blocks
from deployments.replica.block_index import BlockIndex
from deployments.replica.stream_core import StreamCore
from routers.api.requests import Generation
from routers.api.settings import GenerationParameters
from routers.estimates.prefix_tree import PrefixTree, blocks_of
from runtimes import catalog
from runtimes.types import RuntimeSettings

Describe = Callable[..., ModelDescription]
BLOCK = 16
SHAPE = Generating(context_tokens=400, cache_tokens=640, max_sequences=8, block_tokens=BLOCK)
OPTIONS = {"base_ms": 0.0, "cache_tokens": SHAPE.cache_tokens, "max_sequences": 8}


def text(beginning: int, blocks: int) -> str:
    """Of so many blocks and a token."""
    return f"<{beginning:06d}>".ljust(4 * (BLOCK * blocks + 1), ".")


def blocks(said: str) -> tuple[int, ...]:
    (ids,) = pseudo_ids([said])
    return blocks_of(list(ids), BLOCK)


class Stand:
    """Two gateways before two replicas with small caches."""

    def __init__(self) -> None:
        self.engines: list[Any] = []
        self.queues: list[StreamQueue] = []
        self.channels: list[LocalChannel] = []

    async def start(self, description: ModelDescription, folder: Path) -> None:
        cores = {}
        for name in ("r0", "r1"):
            index = BlockIndex()
            settings = RuntimeSettings(
                "chat",
                "synthetic",
                None,
                folder,
                task="generate",
                max_length=400,
                options=OPTIONS,
                blocks=index,
            )
            engine = catalog.create_stream(settings)
            await engine.load()
            self.engines.append(engine)
            cores[name] = StreamCore(engine, 16, on_death=pytest.fail, blocks=index)
        self.cores = cores
        for name in ("g0", "g1"):
            channel = LocalChannel(name)
            channel.cores.update(cores)
            told = dispatcher_settings(description, GatewayIdentity(name))
            told = replace(told, generation=GenerationParameters(block_tokens=BLOCK))
            queue = StreamQueue(told, terms(description), channel)
            self.channels.append(channel)
            self.queues.append(queue)
            self.list(queue)
        self.terms = terms(description)
        await until(lambda: all(self.tree(n).told_replicas == 2 for n in (0, 1)))

    def list(self, queue: StreamQueue) -> None:
        queue.set_replicas([RunningReplica(name) for name in self.cores], {"": SHAPE})

    def tree(self, gateway: int) -> PrefixTree:
        found = self.queues[gateway]._dispatcher._requests.generations
        assert found is not None
        return found.tree

    def engine_knows(self, said: str) -> dict[str, int]:
        """Blocks of the text, by the engines' own account."""
        from runtimes.synthetic.stream import _blocks

        engines = {f"r{n}": each._engine for n, each in enumerate(self.engines)}
        tokens = tuple(int(each) for each in pseudo_ids([said])[0])
        found = {name: each.known(_blocks(tokens, BLOCK, "")) for name, each in engines.items()}
        return {name: known for name, known in found.items() if known}

    async def ask(self, gateway: int, said: str) -> str:
        """Where it was answered."""
        body = json.dumps({"model": "chat", "prompt": said, "max_tokens": 2}).encode()
        hashes = blocks(said)
        tokens = -(-len(said) // 4)
        prompt = Prompt(
            "completions", body, tokens, Generation(2, 1, hashes), False, hashed_tokens=tokens
        )
        demand = QueueRequest("acme", 0, 500.0, 600.0, 1.0)
        pending = self.queues[gateway].submit(prompt, self.terms, demand)
        while await pending.next():
            pass
        assert pending.status == 200
        return pending.replica_id

    async def close(self) -> None:
        for queue in self.queues:
            queue.close()
        for core in self.cores.values():
            await core.close()
        for engine in self.engines:
            await engine.close()


@pytest.fixture
async def stand(
    description: Describe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stand]:
    generating = description(
        task="generate", generating=SHAPE, max_length=400, bucket_edges=(16, 100, 400)
    )
    monkeypatch.setattr(told_blocks, "COALESCE_S", 0.001)
    made = Stand()
    await made.start(generating, tmp_path)
    yield made
    await made.close()


async def test_a_gateway_knows_what_another_one_has_sent(stand: Stand) -> None:
    said = text(1, 4)
    replica = await stand.ask(0, said)
    await until(lambda: stand.tree(1).matches(blocks(said)) == {replica: 4})
    assert await stand.ask(1, said) == replica


async def test_of_a_prompt_with_more_hashes_than_a_message_takes_the_first_are_sent(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_messages, "MAX_HASHES", 3)  # what a replica refuses
    monkeypatch.setattr(stream_queue, "MAX_HASHES", 3)
    said = text(1, 4)
    replica = await stand.ask(0, said)
    await until(lambda: stand.tree(1).matches(blocks(said)) == {replica: 3})


async def test_a_gateway_knows_what_an_engine_has_dropped(stand: Stand) -> None:
    said = text(1, 4)
    replica = await stand.ask(0, said)
    for number in range(2, 30):
        await stand.ask(number % 2, text(number, 10))
    assert stand.engine_knows(said) == {}
    await until(lambda: not stand.tree(0).matches(blocks(said)))
    assert replica in ("r0", "r1")


async def test_each_gateways_tree_is_what_the_engines_hold_after_random_load(stand: Stand) -> None:
    rng = Random(1)
    texts = [text(number, rng.randint(1, 12)) for number in range(24)]
    for _ in range(150):
        await stand.ask(rng.randrange(2), rng.choice(texts))

    def agree() -> bool:
        return all(
            stand.tree(gateway).matches(blocks(said)) == stand.engine_knows(said)
            for gateway in (0, 1)
            for said in texts
        )

    await until(agree)
    assert sum(map(len, map(stand.engine_knows, texts))) < 24  # some were dropped
    found = stand.queues[0].snapshot().generation
    assert found is not None
    assert found.told_replicas == 2
    assert found.told.predicted > 0
    assert found.estimated.predicted == 0


async def test_where_a_message_is_missing_everything_is_asked_for(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, other = text(1, 4), text(2, 4)
    replica = await stand.ask(0, said)
    await until(lambda: stand.tree(1).matches(blocks(said)) == {replica: 4})
    dropped: list[int] = []
    asked: list[str] = []
    session = stand.channels[1]._sessions[replica]
    send, ask_again = session.send, stand.channels[1].send

    def without_one(kind: Kind, lease_id: int, body: Any = ()) -> None:
        message = decode_steps(memoryview(b"".join(body))) if kind is Kind.STEPS else None
        if message is not None and message.blocks is not None and not dropped:
            dropped.append(message.blocks.number)
            body = encode_steps(type(message)(*_fields(message)[:-1]))
        send(kind, lease_id, body)

    def heard(replica_id: str, kind: Kind, lease_id: int, body: Any = ()) -> bool:
        if kind is Kind.BLOCKS:
            asked.append(replica_id)
            assert not stand.tree(1).is_told(replica_id)
            assert stand.tree(1).match(replica_id, blocks(said)) == 4  # what was known
        return ask_again(replica_id, kind, lease_id, body)

    monkeypatch.setattr(LocalSession, "send", lambda self, *what: (
        without_one(*what) if self is session else _send(self, *what)))  # fmt: skip
    monkeypatch.setattr(stand.channels[1], "send", heard)
    for number in range(3, 60):
        await stand.ask(0, text(number, 2))
        if asked:
            break
    assert dropped
    assert asked == [replica]
    await stand.ask(0, other)
    await until(lambda: stand.tree(1).is_told(replica))
    await until(lambda: stand.tree(1).matches(blocks(other)) == stand.engine_knows(other))
    assert asked == [replica]


_send = LocalSession.send


def _fields(message: Any) -> tuple[Any, ...]:
    return tuple(getattr(message, name) for name in message.__struct_fields__)


async def test_behind_a_broken_connection_everything_is_told_anew(stand: Stand) -> None:
    said = text(1, 4)
    replica = await stand.ask(0, said)
    await until(lambda: stand.tree(1).matches(blocks(said)) == {replica: 4})
    stand.channels[1].lose(replica)
    assert not stand.tree(1).is_told(replica)
    stand.list(stand.queues[1])
    await until(lambda: stand.tree(1).is_told(replica))
    assert stand.tree(1).matches(blocks(said)) == {replica: 4}


async def test_a_request_that_is_never_read_is_not_thought_to_be_there(stand: Stand) -> None:
    said = text(1, 4)
    body = json.dumps({"model": "chat", "prompt": said, "max_tokens": 300}).encode()
    prompt = Prompt(
        "completions", body, 65, Generation(300, 1, blocks(said)), True, hashed_tokens=65
    )
    demand = QueueRequest("acme", 0, 500.0, 600.0, 1.0)
    for channel in stand.channels:
        channel.hold()
    pending = stand.queues[0].submit(prompt, stand.terms, demand)
    await until(lambda: bool(stand.tree(0).matches(blocks(said))))
    stand.queues[0].cancel(pending)
    for channel in stand.channels:
        channel.let_go()
    await until(lambda: not stand.queues[0].calls.count)
    assert stand.tree(0).matches(blocks(said)) == stand.engine_knows(said)
