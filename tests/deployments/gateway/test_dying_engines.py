"""Engines that die again and again under load, whatever their requests are doing: nothing is lost
that had shown nothing, no caller is given a wrong token, every answer says what is paid, and every
lease is accounted. The whole gateway, replicas' cores, and engines that are nothing but time."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_engines import until
from generating import Client
from in_process import LocalChannel, Stand, ask, standing
from local_frames import to_replica

from deployments.contract.channel.frames import Buffer, Frame, Kind
from deployments.contract.channel.stream_messages import decode_generate, decode_steps
from deployments.gateway.models.served_model import ServedModel
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica
from deployments.replica import describe
from deployments.replica.stream_core import StreamCore
from deployments.settings.model import ModelSettings
from runtimes.errors import Unhealthy
from runtimes.synthetic.stream import SyntheticStreamRuntime
from runtimes.types import Adapter, Chunk, RuntimeSettings, StreamRequest

DEATHS, ENDS = 24, 5  # the least of deaths, and of each end of a request
MAX_DEATHS = 150  # in which all that has to be seen is seen
REPLICAS, CALLERS = 3, 20
AT_ONCE, LONGEST = 3, 24
MODEL = {
    "runtime": "synthetic",
    "task": "generate",
    "lengths": {"max": 400},
    "slo": {"ttft_ms": 20_000, "timeout_ms": 30_000},
    "options": {
        "base_ms": 1,
        "max_sequences": AT_ONCE + 1,  # as the gateway knows it: one waits at the replica
        "per_prefill_token_us": 200,
        "step_tokens": 24,  # a prompt is read in several steps
        "adapter_load_ms": 4,
        "engine_die_words": ["deadly"],
    },
}
LEFT = "a caller has just left"
NUMBER = re.compile(rb"number-(\d+)-")
PATHS = {
    "chat": "/v1/chat/completions", "completions": "/v1/completions", "messages": "/v1/messages",
    "responses": "/v1/responses",
}  # fmt: skip


def number_of(body: bytes) -> int:
    found = NUMBER.search(body)
    assert found
    return int(found[1])


class Mortal(SyntheticStreamRuntime):
    """`running`: tokens of each request that it was given, None while that waits for its
    adapter."""

    def __init__(self, settings: RuntimeSettings) -> None:
        super().__init__(settings)
        self.running: dict[int, int | None] = {}

    async def run(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        number = number_of(request.body)
        self.running[number] = None if b"chat:law" in request.body else 0
        try:
            async with aclosing(super().run(request)) as chunks:
                async for chunk in chunks:
                    self.running[number] = chunk.output_tokens
                    yield chunk
        finally:
            del self.running[number]

    @property
    def dead(self) -> bool:
        return self._dead

    async def die(self) -> None:
        body = json.dumps({"prompt": "deadly", "max_tokens": 1}).encode()
        with suppress(Unhealthy):
            async with aclosing(super().run(StreamRequest("d", "completions", body))) as chunks:
                await anext(chunks)


@dataclass
class Asked:
    """One request. `died`: engines that it had been given to, as replicas said."""

    number: int
    endpoint: str
    body: dict[str, Any]
    repeats: bool
    client: Client | None = None
    left: bool = False
    died: int = 0


class Watched(LocalChannel):
    """`there`: the number of each request that a replica was sent and has not ended, by replica and
    lease; `begun`: of those, what it has said that it began. `on_end` is called with these when it
    says that it ends."""

    def __init__(self, on_end: Callable[[list[int]], None]) -> None:
        super().__init__("g0")
        self.begun: dict[tuple[str, int], int] = {}
        self.there: dict[tuple[str, int], int] = {}
        self._on_end = on_end

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        if kind is Kind.BEGIN:
            call = decode_generate(to_replica(kind, lease_id, body).body)
            self.there[replica_id, lease_id] = number_of(call.body)
        return super().send(replica_id, kind, lease_id, body)

    def arrives(self, replica_id: str, frame: Frame) -> None:
        if frame.kind is Kind.STARTED:
            here = replica_id, frame.lease_id
            self.begun[here] = self.there[here]
        elif frame.kind is Kind.STEPS:
            for piece in decode_steps(frame.body).pieces:
                if piece.end is not None:
                    self.begun.pop((replica_id, piece.lease_id), None)
                    del self.there[replica_id, piece.lease_id]
        elif frame.kind is Kind.ENDED:
            lost = [here for here in self.begun if here[0] == replica_id]
            self._on_end([self.begun.pop(here) for here in lost])
            self.there = {h: n for h, n in self.there.items() if h[0] != replica_id}


class Fleet:
    """Replicas whose engines die, in the place of each Serve starts another. `leaves`: the share of
    deaths just before which a caller leaves; `once`: no engine dies with a request that was on
    another that died. `states`: of what was at an engine when that died."""

    def __init__(
        self, stand: Stand, folder: Path, random: Random, *, leaves: float, once: bool
    ) -> None:
        self.stand, self.random, self._leaves, self._once = stand, random, leaves, once
        law = Adapter("law", lambda: (folder, "digest of law"))
        model = ModelSettings.model_validate(MODEL)
        made = describe.runtime_settings("chat", model, folder, lambda phase, share: None)
        self.settings = replace(made, adapters={"law": law}, adapters_resident=1)
        self.channel, self.directory = Watched(self._lost), ReplicaDirectory()
        self.engines: dict[str, Mortal] = {}
        self.asked: dict[int, Asked] = {}
        self.deaths: list[str] = []
        self.states: Counter[str] = Counter()
        self.starting = self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        for _ in range(REPLICAS):
            await self._start()
        model = ModelSettings.model_validate(MODEL)
        (engine, *_) = self.engines.values()
        described, _ = describe.describe_stream("chat", model, "digest", engine)
        assert described.generating is not None
        knows = replace(described.generating, adapters=("law",), adapter_digests=("1",))
        described = replace(described, generating=knows)
        served = ServedModel(
            described, None, self.channel, self.directory, self.stand.identity,
            self.stand.telemetry.batch,
        )  # fmt: skip
        self.stand.models._served["chat"], self.stand.models._live["chat"] = served, described
        self.stand.channels["chat"], self.stand.books["chat"] = self.channel, self.directory
        self.queue = served.streams
        self._list()
        self.stand.telemetry.refresh()

    async def _start(self) -> None:
        name = f"chat-{self._numbers}"
        self._numbers += 1
        engine = Mortal(self.settings)
        await engine.load()
        self.channel.cores[name] = StreamCore(
            engine, 8, AT_ONCE, on_death=partial(self._ended, name)
        )
        self.engines[name] = engine

    def _list(self) -> None:
        listed = [RunningReplica(name, (("digest", "digest"),)) for name in self.engines]
        self.directory.update(listed)

    async def _replace(self, delay_s: float) -> None:
        self.starting += 1
        await asyncio.sleep(delay_s)
        await self._start()
        self.starting -= 1
        self._list()

    def _ended(self, name: str, reason: str) -> None:
        """Its process would have."""
        self.deaths.append(reason)
        del self.engines[name]
        self._list()
        task = asyncio.create_task(self._replace(self.random.uniform(0.0, 0.02)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def kill_one(self) -> None:
        names = [name for name in self.engines if self._may_die(name)]
        if not names:
            return
        name = self.random.choice(names)
        engine, core = self.engines[name], self.channel.cores[name]
        running = [self.asked[number] for number in engine.running]
        if running and self.random.random() < self._leaves:
            leaves = self.random.choice(running)
            assert leaves.client is not None
            leaves.left = True
            leaves.client.leave.set()
            for _ in range(self.random.randrange(6)):  # the abort is somewhere on its way
                await asyncio.sleep(0)
            self.states[LEFT] += 1
            if not self._may_die(name):
                return
        self.states["it waits at the replica"] += core.inflight - core.begun
        self.states["it waits at the gateway"] += self.queue.waiting_rows
        self.states["another replica is loading"] += self.starting
        for number, tokens in engine.running.items():
            asked = self.asked[number]
            self.states[_state(tokens, asked.body[_most(asked.endpoint)])] += 1
        await engine.die()
        if self._once:  # nothing may begin there meanwhile
            with suppress(Unhealthy):
                await core.health()

    def _may_die(self, name: str) -> bool:
        there = [number for (at, _), number in self.channel.there.items() if at == name]
        spared = self._once and any(self.asked[number].died for number in there)
        return not (self.engines[name].dead or spared)

    def _lost(self, numbers: list[int]) -> None:
        for number in numbers:
            self.asked[number].died += 1

    async def end(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        await until(lambda: not sum(core.inflight for core in self.channel.cores.values()))
        for core in self.channel.cores.values():
            await core.close()
        for engine in self.engines.values():
            await engine.close()


def _state(tokens: int | None, most: int) -> str:
    if tokens is None:
        return "its adapter is loading"
    if tokens == 0:
        return "its prompt is being read"
    if tokens >= most - 1:
        return "its last token is next"
    return "its first token has come" if tokens == 1 else "it is in the middle"


def _most(endpoint: str) -> str:
    return "max_output_tokens" if endpoint == "responses" else "max_tokens"


def body_of(endpoint: str, number: int, random: Random) -> dict[str, Any]:
    text = f"number-{number}- " + "x" * random.randrange(200)
    said = [{"role": "user", "content": text}]
    prompt = {"completions": {"prompt": text}, "responses": {"input": text}}
    return {
        "model": random.choice(["chat", "chat", "chat:law"]),
        "stream": random.random() < 0.7,
        _most(endpoint): random.choice([2, *[random.randrange(1, LONGEST)] * 3]),
        **prompt.get(endpoint, {"messages": said}),
    }


class Heard:
    """What a caller was given. `error`: that ended it, of its API's shape."""

    def __init__(self, endpoint: str, body: bytes, *, streamed: bool) -> None:
        self.text, self.whole, self.error = "", False, dict[str, Any]()
        if streamed:
            for event in body.split(b"\n\n"):
                self._take(endpoint, event.rpartition(b"data: ")[2])
        else:
            self.text, self.whole = _whole(endpoint, json.loads(body)), True

    def _take(self, endpoint: str, data: bytes) -> None:
        assert not data or not self.error, "something came behind an error"
        if data == b"[DONE]":
            self.whole = True
        if not data.startswith(b"{"):
            return
        page = json.loads(data)
        kind = page.get("type", "")
        if "error" in page:
            self.error = page["error"]
        elif kind == "response.failed":
            assert page["response"]["status"] == "failed"
            assert page["response"]["id"].startswith("resp_")
            self.error = page["response"]["error"] | {"usage": page["response"]["usage"]}
        elif kind in ("message_stop", "response.completed", "response.incomplete"):
            self.whole = True
        elif kind == "response.output_text.delta":
            self.text += page["delta"]
        elif kind == "content_block_delta":
            self.text += page["delta"]["text"]
        elif "choices" in page:
            for choice in page["choices"]:
                self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""

    @property
    def paid(self) -> int:
        usage = self.error["usage"]
        count: int = usage["completion_tokens" if "completion_tokens" in usage else "output_tokens"]
        return count


def _whole(endpoint: str, page: dict[str, Any]) -> str:
    if endpoint == "messages":
        return str(page["content"][0]["text"])
    if endpoint == "responses":
        return str(page["output"][0]["content"][0]["text"])
    (choice,) = page["choices"]
    return str(choice["text"] if endpoint == "completions" else choice["message"]["content"])


class Load:
    """Callers, and what became of their requests, of which the share `repeats` may run twice.
    `paid`: tokens that they were given, of those who did not leave; `wanted`: states and ends that
    have to come about."""

    def __init__(self, fleet: Fleet, random: Random, repeats: float, wanted: Set[str]) -> None:
        self.fleet, self.random, self._repeats, self._wanted = fleet, random, repeats, wanted
        self.ends: Counter[str] = Counter()
        self.paid = self._numbers = 0
        self.over = False
        self._one_ended = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(self._caller())
            while not self.seen() and len(self.fleet.deaths) < MAX_DEATHS:
                await self._progress()
                await self.fleet.kill_one()
            self.over = True

    def seen(self) -> bool:
        counts, deaths = self.fleet.states + self.ends, len(self.fleet.deaths)
        return deaths >= DEATHS and all(
            counts[each] >= (ENDS if each in ENDED else 1) for each in self._wanted
        )

    async def _progress(self) -> None:
        """Waits for some requests to end, and for a moment, so that how fast the machine is does
        not say how many deaths a request meets."""
        goal = self.ends.total() + self.random.randrange(7)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while self.ends.total() < goal:
                    self._one_ended.clear()
                    await self._one_ended.wait()
        await asyncio.sleep(self.random.uniform(0.0, 0.005))

    async def _caller(self) -> None:
        while not self.over:
            self._numbers += 1
            endpoint = self.random.choice(list(PATHS))
            body = body_of(endpoint, self._numbers, self.random)
            asked = Asked(self._numbers, endpoint, body, self.random.random() < self._repeats)
            self.fleet.asked[asked.number] = asked
            headers = [] if asked.repeats else [(b"x-idempotent", b"false")]
            asked.client = Client(self.fleet.stand, PATHS[endpoint], body, headers)
            await asyncio.wait_for(asked.client.task, 30)
            await self._judge(asked, asked.client)
            self._one_ended.set()

    async def _judge(self, asked: Asked, client: Client) -> None:
        body = b"".join(client.heard)
        if asked.left:
            self.ends["left"] += 1
            return
        if client.status != 200:
            error = json.loads(body)["error"]
            assert client.status in (503, 529), (client.status, error)
            assert "lost" in error["message"], error
            assert b"retry-after" in client.headers
            # Nothing of it was shown: so it ran on as many engines that died as it may.
            assert asked.died == (2 if asked.repeats else 1), asked
            self.ends[REFUSED] += 1
            return
        heard = Heard(asked.endpoint, body, streamed=asked.body["stream"])
        expected = await self._expected(asked)
        self.paid += heard.text.count(" w")
        if heard.whole:
            assert heard.text == expected
            assert not heard.error
            self.ends["answered, and moved before" if asked.died else "answered"] += 1
        else:
            assert expected.startswith(heard.text)
            assert heard.error["message"].startswith("the replica that generated"), heard.error
            assert heard.paid == heard.text.count(" w"), heard.error
            assert f"and {heard.paid} of the answer are charged" in heard.error["message"]
            assert asked.died
            self.ends["ended with what it had shown"] += 1

    async def _expected(self, asked: Asked) -> str:
        """As an engine that nobody disturbs answers."""
        engine = SyntheticStreamRuntime(
            replace(self.fleet.settings, options={"base_ms": 0, "adapter_load_ms": 0})
        )
        await engine.load()
        said = b""
        sent = json.dumps({**asked.body, "stream": False}).encode()
        async with aclosing(engine.run(StreamRequest("r", asked.endpoint, sent))) as chunks:
            async for chunk in chunks:
                said += chunk.data
        await engine.close()
        return _whole(asked.endpoint, json.loads(said))


STATES = {
    "it waits at the gateway", "it waits at the replica", "its adapter is loading",
    "its prompt is being read", "its first token has come", "it is in the middle",
    "its last token is next", "another replica is loading", LEFT,
}  # fmt: skip
ENDED = {"answered", "answered, and moved before", "ended with what it had shown"}
REFUSED = "refused"


@pytest.mark.slow  # some seconds of a processor each
@pytest.mark.parametrize(("leaves", "once"), [(0.0, True), (0.3, False)], ids=["once", "again"])
async def test_engines_die_in_every_state_and_nothing_is_lost_that_had_shown_nothing(
    tmp_path: Path, leaves: float, once: bool
) -> None:
    random = Random(f"{leaves} {once}")
    async with standing({}, tmp_path) as stand:
        fleet = Fleet(stand, tmp_path, random, leaves=leaves, once=once)
        await fleet.begin()
        wanted = (STATES - {LEFT} if once else STATES | {REFUSED}) | ENDED
        load = Load(fleet, random, 1.0 if once else 0.9, wanted)
        try:
            await asyncio.wait_for(load.run(), 240)
        finally:
            await fleet.end()
        print(len(fleet.deaths), dict(load.ends), dict(fleet.states))
        seen = fleet.states + load.ends
        assert load.seen(), {each: seen[each] for each in wanted}
        assert bool(load.ends[REFUSED]) is not once
        page = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
        counted = [
            float(line.rpartition(" ")[2]) for line in page if "output_tokens_total{" in line
        ]
        assert sum(counted) >= load.paid
        assert leaves or sum(counted) == load.paid, "paid is what callers were shown"
