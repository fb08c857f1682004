"""Who tells the truth about a server that stands still for half of the time?

A closed loop stands still with it, so that one request of thousands is slow: its p99 is a lie. A
generator that counts from when each request was meant to be sent shows what callers would have met.
The margins are wide: what is told apart is a thousandth of a second and half of one.
"""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtests.benches.trivial_server import Manner, TrivialServer
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, run_async
from loadtests.client.player import Player, PlayerSettings
from loadtests.results.record import TenantLengthStats, merged
from loadtests.results.recorder import RecordingRules, RunRecorder
from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario_file import check

RUN_S, STALL_FROM_S, STALL_S = 1.5, 0.3, 0.8


@asynccontextmanager
async def stalling():
    manner = Manner(stall_from_s=STALL_FROM_S, stall_for_s=STALL_S)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: TrivialServer(manner), "127.0.0.1", 0)
    try:
        yield Target(*server.sockets[0].getsockname(), "/")
    finally:
        server.close()


async def played(target: Target, slo_s: float = 0.1) -> TenantLengthStats:
    scenario = check({"duration_s": RUN_S, "arrivals": {"rate": 100}, "lengths": {"fixed": 8}})
    recorder = RunRecorder(RecordingRules({"default": slo_s}, (8,), 0.0, RUN_S))
    request = render(target, b"x")
    await Player(
        TrafficPlan(scenario, Path()), PlayerSettings(target, lambda _: request), recorder.ended
    ).run()
    return merged(recorder.cells["default"].values())


@pytest.mark.slow
async def test_stall_is_seen_by_an_open_loop_and_hidden_by_a_closed_one():
    async with stalling() as target:
        closed = await run_async(Load(target, (Call(render(target, b"x")),), seconds=RUN_S))
    async with stalling() as target:
        ours = await played(target)
    assert closed.latency_ms(99) < 100
    assert closed.latency_ms(100) > 500  # it met the stall, once
    assert closed.within(100) > 0.99
    assert ours.latency.percentile_s(90) > 0.3
    assert ours.in_slo / ours.offered < 0.8


@pytest.mark.slow
async def test_server_that_does_not_stall_is_the_same_to_both():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: TrivialServer(Manner()), "127.0.0.1", 0)
    try:
        target = Target(*server.sockets[0].getsockname(), "/")
        # Well below a stall, and far above what a busy machine adds.
        ours = await played(target, slo_s=0.75 * STALL_S)
    finally:
        server.close()
    assert ours.in_slo / ours.offered > 0.95
