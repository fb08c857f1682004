"""Tenants that reach two gateways unevenly get their shares of a replica that generates."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import pytest
from fake_engines import until
from in_process import LocalChannel

from deployments.contract.description import (
    GatewayIdentity,
    Generating,
    ModelDescription,
    dispatcher_settings,
)
from deployments.gateway.models.served_model import terms
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.queues.pending_requests import Prompt
from deployments.gateway.queues.stream_queue import StreamQueue
from deployments.process.replica_directory import RunningReplica
from deployments.replica.stream_core import StreamCore
from routers.api.requests import Generation
from routers.api.settings import GenerationParameters
from routers.stream.staging import WAITING_SHARE
from runtimes.types import Chunk, EngineLoad, StreamRequest

Describe = Callable[..., ModelDescription]
SHAPE = Generating(context_tokens=100, cache_tokens=1000, max_sequences=16)
WEIGHTS = {"gold": 4.0, "bronze": 1.0}
_REFILL_TURNS = 40  # of the loop, in which gateways send what takes the place of what has ended
PROMPT, OUTPUT = 10, {"gold": 10, "bronze": 10}


class Stepped:
    """An engine in which the request that began first ends when the test says so. `began`: the
    tenants of all that did; a request's body is its tenant."""

    def __init__(self, outputs: dict[str, int]) -> None:
        self.outputs = outputs
        self.began: list[str] = []
        self.ends: deque[asyncio.Event] = deque()

    async def run(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        tenant, ends = request.body.decode(), asyncio.Event()
        self.began.append(tenant)
        self.ends.append(ends)
        await ends.wait()
        yield Chunk(b"x", PROMPT, 0, self.outputs[tenant], PROMPT)

    async def health(self) -> EngineLoad:
        return EngineLoad()


class Gateways:
    """Two of them before one replica, each with as many requests as it has to have waiting."""

    def __init__(self, description: ModelDescription, engine: Stepped) -> None:
        self.engine = engine
        most = SHAPE.max_sequences
        self.core = StreamCore(engine, WAITING_SHARE * most, most, on_death=pytest.fail)  # type: ignore[arg-type]
        self.terms = terms(description)
        self.queues = [self._gateway(description, name) for name in ("g0", "g1")]
        self.submitted: list[object] = []

    def _gateway(self, description: ModelDescription, name: str) -> StreamQueue:
        channel = LocalChannel(name)
        channel.cores["r"] = self.core
        settings = dispatcher_settings(description, GatewayIdentity(name))
        queue = StreamQueue(settings, self.terms, channel)
        queue.set_replicas([RunningReplica("r")], {"": SHAPE})
        return queue

    def submit(self, gateway: int, tenants: Sequence[str], count: int) -> None:
        for tenant in [*tenants] * count:
            prompt = Prompt("chat", tenant.encode(), PROMPT, Generation(20), True)
            demand = QueueRequest(tenant, 0, 500.0, 600.0, WEIGHTS[tenant])
            self.submitted.append(self.queues[gateway].submit(prompt, self.terms, demand))

    async def serve(self, count: int) -> Counter[str]:
        """So many requests one after another; who began meanwhile."""
        before = len(self.engine.began)
        for ended in range(1, count + 1):
            self.engine.ends.popleft().set()
            await until(lambda so_far=ended: len(self.engine.began) >= before + so_far)
        return Counter(self.engine.began[before:])

    async def serve_together(self, count: int) -> Counter[str]:
        """All that run at once, so many times; who began meanwhile."""
        before = len(self.engine.began)
        for _ in range(count):
            running = len(self.engine.ends)
            began = len(self.engine.began)
            for _ in range(running):
                self.engine.ends.popleft().set()
            await until(lambda least=began + running: len(self.engine.began) >= least)
            for _ in range(_REFILL_TURNS):
                await asyncio.sleep(0)
        return Counter(self.engine.began[before:])

    async def close(self) -> None:
        for queue in self.queues:
            queue.calls.close()
        await self.core.close()


@pytest.fixture
def generating(description: Describe) -> ModelDescription:
    described = description(
        task="generate", generating=SHAPE, max_length=100, bucket_edges=(16, 100)
    )
    learns = GenerationParameters(tokens_per_s=1000.0, output_tokens=10)
    core = replace(described.scheduling.core, max_queue_rows=1000, generation=learns)
    return replace(described, scheduling=replace(described.scheduling, core=core))


async def shares(
    generating: ModelDescription,
    tenants: tuple[Sequence[str], Sequence[str]],
    outputs: dict[str, int] = OUTPUT,
    served: int = 200,
) -> Counter[str]:
    gateways = Gateways(generating, Stepped(outputs))
    for gateway, names in enumerate(tenants):
        gateways.submit(gateway, names, 300)
    await until(lambda: len(gateways.engine.began) == SHAPE.max_sequences)
    await gateways.serve(40)
    found = await gateways.serve(served)
    await gateways.close()
    return found


async def test_tenants_at_a_gateway_each_share_by_weight(generating: ModelDescription) -> None:
    found = await shares(generating, (["gold"], ["bronze"]))
    assert found["gold"] / found["bronze"] == pytest.approx(4.0, rel=0.15)


async def test_shares_hold_where_all_that_run_end_together(generating: ModelDescription) -> None:
    gateways = Gateways(generating, Stepped(OUTPUT))
    gateways.submit(0, ["gold"], 500)
    gateways.submit(1, ["bronze"], 500)
    await until(lambda: len(gateways.engine.began) == SHAPE.max_sequences)
    await gateways.serve_together(12)
    found = await gateways.serve_together(15)
    await gateways.close()
    assert found["gold"] / found["bronze"] == pytest.approx(4.0, rel=0.15)


async def test_a_tenant_at_both_gateways_gets_no_more_than_its_share(
    generating: ModelDescription,
) -> None:
    found = await shares(generating, (["gold", "bronze"], ["bronze"]))
    assert found["gold"] / found["bronze"] == pytest.approx(4.0, rel=0.15)


async def test_outputs_that_are_longer_than_expected_are_paid_for_at_both_gateways(
    generating: ModelDescription,
) -> None:
    """With four times the work in each, as many requests of it, for four times the weight."""
    found = await shares(generating, (["gold"], ["bronze"]), {"gold": 55, "bronze": 10})
    assert found["gold"] / found["bronze"] == pytest.approx(1.0, rel=0.15)


async def test_a_gateway_that_comes_later_is_served_beside_the_others_of_its_flow(
    generating: ModelDescription,
) -> None:
    gateways = Gateways(generating, Stepped(OUTPUT))
    gateways.submit(0, ["gold"], 200)
    await until(lambda: len(gateways.engine.began) == SHAPE.max_sequences)
    await gateways.serve(50)
    gateways.submit(1, ["gold"], 200)
    await gateways.serve(20)
    before = [queue.waiting_rows for queue in gateways.queues]
    await gateways.serve(100)
    served = [was - queue.waiting_rows for was, queue in zip(before, gateways.queues, strict=True)]
    await gateways.close()
    assert sum(served) == pytest.approx(100, abs=10)
    assert served[0] == pytest.approx(served[1], abs=10)
