"""Prompts that end the engine's process, through the whole gateway: who sends them is refused, and
who ran beside them is answered, or told what happened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from fake_engines import until
from generating import CHAT, Client, Played, add, chat
from in_process import Stand, standing

from deployments.contract.channel.frames import Buffer, Kind
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.contract.registry import CrashedInput, CrashReport
from deployments.gateway.http.protocols.openai_generation import decode_chat, fingerprint
from deployments.gateway.queues.stream_queue import StreamQueue
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica

Describe = Callable[..., ModelDescription]
SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}}
FATAL = "fatal"


class Frail(Played):
    """Engines that are lost with each prompt that is fatal, and answer others unless `slow`.
    `lost`: in order. In the place of each Serve lists another one."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.lost: list[str] = []
        self.names: list[str] = []
        self.directory = ReplicaDirectory()

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        sent = super().send(replica_id, kind, lease_id, body)
        call = self.engine(replica_id).calls.get(lease_id)
        if kind is Kind.BEGIN and call is not None:
            if FATAL.encode() in call.body:
                self.end(replica_id)
            elif not self.slow:
                self.answer(lease_id)
        return sent

    def answer(self, lease_id: int) -> None:
        self.say(lease_id, b"{}", tokens=(1, 0, 1), end=StreamEnd.DONE)

    def end(self, replica_id: str) -> None:
        if replica_id not in self.dead:
            self.lost.append(replica_id)
            self.kill(replica_id)
            others = [name for name in self.names if name != replica_id]
            another = f"another-{len(self.lost)}"
            asyncio.get_running_loop().call_soon(self.list, *others, another)

    def list(self, *names: str) -> None:
        """Serve lists these."""
        self.names = [*names]
        self.directory.update([RunningReplica(name, (("digest", "digest"),)) for name in names])


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(
        {"device": SYNTHETIC}, tmp_path, tenants={"acme": {}, "other": {}}
    ) as stand:
        yield stand


@pytest.fixture
async def engines(stand: Stand, description: Describe) -> Frail:
    """Two at a time; this gateway is the only one, and knows it."""
    frail = Frail()
    add(stand, description, engines=frail, crashes={"tenant_budget": 4})
    frail.directory = stand.books["chat"]
    frail.list("chat-0", "chat-1")
    queue_of(stand).crashes.on_report([], 0, monotonic())
    return frail


def queue_of(stand: Stand) -> StreamQueue:
    return stand.models.queued["chat"].streams


def another_gateway(stand: Stand, *inputs: CrashedInput) -> None:
    """There is one, and it has said this."""
    queue = queue_of(stand)
    quarantined = queue.crashes.on_report([CrashReport(inputs)], 1, monotonic())
    queue.end_quarantined(quarantined)


def sends(stand: Stand, text: str, tenant: str = "acme", **more: Any) -> Client:
    return Client(stand, CHAT, chat(text, **more), [(b"x-tenant", tenant.encode())])


async def status(stand: Stand, text: str, tenant: str = "acme", **more: Any) -> int:
    client = sends(stand, text, tenant, **more)
    await client.end()
    return client.status


async def test_a_prompt_that_ends_its_engine_twice_alone_is_refused_and_not_asked_back(
    stand: Stand, engines: Frail
) -> None:
    client = sends(stand, FATAL)
    error = await client.error()
    assert (client.status, error["code"]) == (422, "input_ends_replicas")
    assert b"retry-after" not in client.headers
    assert engines.lost == ["chat-0", "chat-1"]
    assert [await status(stand, FATAL, tenant) for tenant in ("acme", "other")] == [422, 422]
    assert len(engines.lost) == 2
    assert await status(stand, "hello") == 200


@pytest.mark.parametrize("more", [{"seed": 7}, {"user": "somebody"}, {"stream": True}])
async def test_how_it_is_sent_does_not_make_it_another_prompt(
    stand: Stand, engines: Frail, more: dict[str, Any]
) -> None:
    assert [await status(stand, FATAL), await status(stand, FATAL, **more)] == [422, 422]
    assert len(engines.lost) == 2


async def test_all_that_send_it_at_once_are_refused_with_the_first(
    stand: Stand, engines: Frail
) -> None:
    clients = [sends(stand, FATAL) for _ in range(6)]
    for client in clients:
        await client.end()
    assert [client.status for client in clients] == [422] * 6
    assert len(engines.lost) <= 3


async def test_while_other_gateways_may_have_sent_something_there_the_third_replica_quarantines(
    stand: Stand, engines: Frail
) -> None:
    another_gateway(stand)
    first = sends(stand, FATAL)
    await first.end()
    assert (first.status, first.headers[b"retry-after"]) == (503, b"1")
    assert [await status(stand, FATAL), await status(stand, FATAL)] == [422, 422]
    assert len(engines.lost) == 3


async def test_who_ran_beside_it_is_told_and_answered_when_it_comes_again(
    stand: Stand, engines: Frail
) -> None:
    """Both run again on the one replica that comes, and are lost with it."""
    engines.list("chat-0")
    engines.slow = True
    beside = sends(stand, "hello")
    await engines.until_begun(1)
    fatal = sends(stand, FATAL)
    for client in (beside, fatal):
        await client.end()
        assert (client.status, client.headers[b"retry-after"]) == (503, b"1")
    engines.slow = False
    assert await status(stand, FATAL) == 422
    assert await status(stand, "hello") == 200
    assert len(engines.lost) == 3


async def test_who_ran_beside_it_is_answered_where_that_is_not_tried_again(
    stand: Stand, engines: Frail
) -> None:
    engines.list("chat-0")
    engines.slow = True
    beside = sends(stand, "hello")
    await engines.until_begun(1)
    fatal = sends(stand, FATAL, stream=True)
    await engines.until_begun(2)
    fatal.leave.set()
    engines.slow = False
    await beside.end()
    assert beside.status == 200
    await fatal.end()


async def test_an_answer_clears(stand: Stand, engines: Frail) -> None:
    engines.slow = True
    client = sends(stand, "hello")
    engines.end((await engines.until_begun(1)).replica_id)
    again = await engines.until_begun(2)
    assert queue_of(stand).crashes
    engines.answer(again.lease_id)
    await client.end()
    assert client.status == 200
    assert not queue_of(stand).crashes


async def test_a_tenant_whose_prompts_have_ended_too_many_replicas_is_refused(
    stand: Stand, engines: Frail
) -> None:
    assert [await status(stand, f"{FATAL} {n}") for n in range(2)] == [422, 422]
    assert await status(stand, "hello") == 429
    assert await status(stand, "hello", "other") == 200


# ---- several gateways, and one suspect at a time ------------------------------------------------


def said(text: str, *, quarantined: bool = False) -> CrashedInput:
    """What another gateway says of this prompt."""
    call = decode_chat(json.dumps(chat(text)).encode())
    return CrashedInput(fingerprint(call, "1"), ("x", "y"), 60.0, quarantined)


async def test_suspects_that_come_again_run_one_at_a_time_until_their_first_token(
    stand: Stand, engines: Frail
) -> None:
    engines.slow = True
    another_gateway(stand, said("a"), said("b"))
    first = sends(stand, "a")
    lease = (await engines.until_begun(1)).lease_id
    second, innocent = sends(stand, "b"), sends(stand, "c")
    await engines.until_begun(2)
    assert b'"c"' in engines.begun[1].call.body
    engines.say(lease, tokens=(1, 0, 1))
    await engines.until_begun(3)
    assert b'"b"' in engines.begun[2].call.body
    for asked in engines.begun:
        engines.answer(asked.lease_id)
    for client in (first, second, innocent):
        await client.end()
        assert client.status == 200


async def test_a_suspect_that_leaves_gives_up_acquired(
    stand: Stand, engines: Frail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)
    engines.slow = True
    another_gateway(stand, said("a"), said("b"))
    first = sends(stand, "a")
    await engines.until_begun(1)
    second = sends(stand, "b")
    await until(lambda: bool(queue_of(stand).permits._waiting))
    second.leave.set()
    await second.end()
    assert second.status == 0
    assert not queue_of(stand).permits._waiting
    engines.answer(engines.begun[0].lease_id)
    await first.end()
    assert len(engines.begun) == 1


async def test_what_another_gateway_suspects_is_quarantined_here_by_one_more_loss(
    stand: Stand, engines: Frail
) -> None:
    another_gateway(stand, said(FATAL))
    assert await status(stand, FATAL) == 422
    assert len(engines.lost) == 1


async def test_what_another_gateway_quarantines_ends_here_shown_or_not(
    stand: Stand, engines: Frail
) -> None:
    engines.slow = True
    another_gateway(stand, said("b"))
    shown, hidden = sends(stand, "a", stream=True), sends(stand, "b")
    await engines.until_begun(2)
    lease = next(asked for asked in engines.begun if b'"a"' in asked.call.body).lease_id
    engines.say(lease, b"data: half\n\n", tokens=(1, 0, 1))
    await shown.hears(1)
    another_gateway(stand, said("a", quarantined=True), said("b", quarantined=True))
    assert b"input_ends_replicas" in await shown.end()
    await hidden.end()
    assert hidden.status == 422
    assert await status(stand, "a") == 422
    assert len(engines.begun) == 2


async def test_one_that_waits_for_acquired_is_refused_once_it_is_quarantined(
    stand: Stand, engines: Frail
) -> None:
    engines.slow = True
    another_gateway(stand, said("a"), said("b"))
    first = sends(stand, "a")
    await engines.until_begun(1)
    second = sends(stand, "b")
    await until(lambda: bool(queue_of(stand).permits._waiting))
    another_gateway(stand, said("b", quarantined=True))
    engines.answer(engines.begun[0].lease_id)
    for client in (first, second):
        await client.end()
    assert (first.status, second.status) == (200, 422)
