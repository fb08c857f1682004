"""When an engine that makes no step counts as stalled, and whom a breach of memory names."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from device_jobs import job_of, worker_of
from fake_runtimes import Gated
from fake_sessions import FakeSession, frame
from process_ends import Deaths
from told_engine import Told

from deployments.contract.channel.frames import Kind
from deployments.contract.channel.stream_messages import GenerateCall, encode_generate
from deployments.replica import device, watchdogs
from deployments.replica.device import HangLimits
from deployments.replica.stream_core import StreamCore
from deployments.replica.watchdogs import MemoryLimit, StallDetector, watch_memory, watch_stalls
from runtimes.types import AdapterLoad

LIMITS = HangLimits(30.0, 20.0)


class Watched:
    """An engine with one request, looked at once a second on virtual time."""

    def __init__(self, limits: HangLimits = LIMITS) -> None:
        self.detector = StallDetector(limits, 1.0)
        self.now, self.steps = 100.0, 7
        self.look()

    def look(self, *, after_s: float = 1.0, busy: bool = True, unread_s: float | None = 0.0) -> str:
        self.now += after_s
        return self.detector.look(self.steps, self.now, busy=busy, unread_s=unread_s)

    def works(self, looks: int, steps_a_look: int) -> None:
        for _ in range(looks):
            self.steps += steps_a_look
            assert self.look() == ""

    def found_after_s(self, unread_s: float | None = 0.0) -> int:
        """Seconds from the last step to the look that finds the stall."""
        return next(n for n in range(1, 100) if self.look(unread_s=unread_s))


def test_a_fast_engine_that_stalls_is_found_soon() -> None:
    watched = Watched()
    watched.works(looks=10, steps_a_look=20)  # 50 ms each: 10 s + 20 x 0.05 s
    assert watched.found_after_s() == 12
    assert watched.look() == (
        "the engine has made no step for 13.0 s, 11.0 s allowed (hang_limit_s, hang_factor)"
    )


def test_a_slow_engine_has_as_long_as_a_batch_at_most() -> None:
    watched = Watched()
    watched.works(looks=100, steps_a_look=1)
    assert watched.found_after_s() == 31


@pytest.mark.parametrize(("steps", "found_s"), [(33, 31), (34, 11)])
def test_before_an_engine_has_made_a_hundred_steps_only_the_fixed_limit_counts(
    steps: int, found_s: int
) -> None:
    watched = Watched()
    watched.works(looks=3, steps_a_look=steps)
    assert watched.found_after_s() == found_s


def test_what_an_engine_did_before_it_was_watched_is_no_step_of_its_callers() -> None:
    watched = Watched()
    assert watched.steps == 7
    watched.steps = 500  # a profile's, say, while nobody asked
    watched.look(busy=False)
    watched.look()
    assert watched.found_after_s() == 31


def test_the_factor_0_leaves_the_fixed_limit_alone() -> None:
    watched = Watched(HangLimits(30.0))
    watched.works(looks=10, steps_a_look=20)
    assert watched.found_after_s() == 31


@pytest.mark.parametrize(("unread_s", "found_s"), [(0.3, 18), (5.0, 31), (None, 31)])
def test_prompts_that_are_yet_to_be_read_have_their_time(
    unread_s: float | None, found_s: int
) -> None:
    watched = Watched()
    watched.works(looks=10, steps_a_look=20)
    assert watched.found_after_s(unread_s) == found_s


def test_a_long_step_counts_for_a_while() -> None:
    watched = Watched()
    watched.works(looks=10, steps_a_look=20)
    for _ in range(4):
        assert watched.look() == ""
    watched.works(looks=1, steps_a_look=1)  # took 5 s
    assert watched.detector.limit_s(0.0) == 30.0
    watched.works(looks=300, steps_a_look=20)  # five half-lives: 5 s / 32
    assert watched.detector.limit_s(0.0) == pytest.approx(10.0 + 20.0 * 5.0 / 32)


def test_an_idle_engine_does_not_stall_and_keeps_its_pace() -> None:
    watched = Watched()
    watched.works(looks=10, steps_a_look=20)
    for _ in range(100):
        assert watched.look(busy=False) == ""
    assert watched.look() == ""
    assert watched.found_after_s() == 12


def test_a_process_that_was_stopped_has_not_shown_that_its_engine_hangs() -> None:
    watched = Watched()
    watched.works(looks=10, steps_a_look=20)
    assert watched.look(after_s=600.0) == ""
    assert watched.found_after_s() == 12


async def begun(core: StreamCore) -> FakeSession:
    gateway = FakeSession("g")
    core.joined(gateway)
    call = encode_generate(GenerateCall(endpoint="completions", body=b"a", budget_s=30.0))
    core.received(gateway, frame(Kind.BEGIN, 1, call))
    await asyncio.sleep(0.01)
    return gateway


async def test_a_stall_is_noticed_and_steps_or_idleness_are_none() -> None:
    engine, limits = Told(), HangLimits(0.03)
    core = StreamCore(engine, room=3, on_death=pytest.fail)
    stalled: asyncio.Queue[str] = asyncio.Queue()
    watch = asyncio.create_task(watch_stalls(core, limits, stalled.put_nowait, 0.005))
    await asyncio.sleep(0.05)
    assert stalled.empty()
    await begun(core)
    for _ in range(10):
        await asyncio.sleep(0.005)
        engine.give(b"a", b"x")
    assert stalled.empty()
    async with asyncio.timeout(1):
        assert "made no step for 0.0 s, 0.0 s allowed" in await stalled.get()
    watch.cancel()
    await core.close()


async def test_a_request_that_waits_for_its_adapter_is_no_stall() -> None:
    """However long that takes to fetch; beside it the engine is watched as ever."""
    engine, stalled = Told(), asyncio.Queue[str]()
    core = StreamCore(engine, room=3, on_death=pytest.fail)
    engine.adapters = AdapterLoad(waiting=1)
    watch = asyncio.create_task(
        watch_stalls(core, HangLimits(0.03), stalled.put_nowait, every_s=0.005)
    )
    gateway = await begun(core)
    await asyncio.sleep(0.1)
    assert stalled.empty()
    call = encode_generate(GenerateCall(endpoint="completions", body=b"b", budget_s=30.0))
    core.received(gateway, frame(Kind.BEGIN, 2, call))
    async with asyncio.timeout(1):
        assert "made no step" in await stalled.get()
    watch.cancel()
    await core.close()


async def test_while_an_adapter_is_loaded_only_the_fixed_limit_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The load may hold up the engine's steps for longer than any of them took."""
    monkeypatch.setattr(device, "_FLOOR_S", 0.03)
    engine, stalled = Told(), asyncio.Queue[str]()
    core = StreamCore(engine, room=3, on_death=pytest.fail)
    watch = asyncio.create_task(
        watch_stalls(core, HangLimits(60.0, 1e-6), stalled.put_nowait, every_s=0.005)
    )
    gateway = await begun(core)
    for _ in range(5):
        engine.steps += 100
        engine.give(b"a", b"x")
        await asyncio.sleep(0.005)
    engine.adapters = AdapterLoad(waiting=1)
    priced = GenerateCall(
        endpoint="completions", body=b"b", budget_s=30.0, charges=((0, "t", 1e-3),), input_s=1e-3
    )
    call = encode_generate(priced)
    core.received(gateway, frame(Kind.BEGIN, 2, call))
    await asyncio.sleep(0.2)
    assert stalled.empty()
    engine.adapters = AdapterLoad()
    engine.give(b"b", b"x")
    async with asyncio.timeout(5):
        assert "made no step" in await stalled.get()
    watch.cancel()
    await core.close()


async def test_the_death_of_an_idle_engine_ends_the_process() -> None:
    engine, deaths = Told(), Deaths()
    core = StreamCore(engine, room=3, on_death=deaths.end)
    engine.die()
    watch = asyncio.create_task(watch_stalls(core, LIMITS, pytest.fail, 0.001))
    await asyncio.sleep(0.1)
    assert deaths == ["the engine died, and 0 requests with it"]
    watch.cancel()


MIB = 1 << 20


async def test_up_to_the_limit_nothing_is_wrong() -> None:
    limit = MemoryLimit(100 * MIB)
    assert limit.breach(100 * MIB, None) == ""
    assert limit.breach(100 * MIB, job_of(1)) == ""


async def test_a_breach_names_the_batch_and_what_it_has_grown_by() -> None:
    limit, job = MemoryLimit(100 * MIB), job_of(7, "gateway-0")
    limit.breach(60 * MIB, None)
    limit.breach(70 * MIB, job)
    said = limit.breach(101 * MIB, job)
    assert said == (
        "101 MiB resident, 100 allowed (memory_limit_mib); 41 MiB of it since a batch of 1 rows of "
        "up to 1 tokens began (gateway gateway-0, lease 7)"
    )


async def test_growth_is_counted_from_the_batch_that_runs_on() -> None:
    limit, first, second = MemoryLimit(100 * MIB), job_of(1), job_of(2)
    limit.breach(60 * MIB, first)
    limit.breach(90 * MIB, first)
    assert "12 MiB of it since" in limit.breach(102 * MIB, second)


async def test_a_breach_while_nothing_runs_is_nobody_s() -> None:
    assert MemoryLimit(MIB).breach(2 * MIB, None).endswith("and no batch runs")


async def test_the_watch_tells_of_the_batch_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdogs, "EVERY_S", 0.0)
    runtime = Gated()
    worker = worker_of(runtime)
    job = job_of(5)
    worker.queue.put(job)
    assert runtime.begun.wait(5.0)
    told: asyncio.Queue[str] = asyncio.Queue()
    watch = asyncio.create_task(watch_memory(lambda: (worker.running, ""), 1, told.put_nowait))
    assert "lease 5" in await told.get()
    watch.cancel()
    runtime.let.set()
    await job.done
    worker.close()


async def test_no_batch_is_blamed_for_what_a_load_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdogs, "EVERY_S", 0.0)
    resident_mib = iter([40, 120, 90, 95, 101])
    memory = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(resident_mib, 101) * MIB))
    monkeypatch.setattr(watchdogs.psutil, "Process", lambda: memory)
    loads, job = iter([True, True, True, False, False]), job_of(3)
    told: asyncio.Queue[str] = asyncio.Queue()
    watch = asyncio.create_task(
        watch_memory(lambda: (job, "m"), 100, told.put_nowait, lambda: next(loads, False))
    )
    said = await told.get()
    watch.cancel()
    assert "; 11 MiB of it since a batch of 1 rows of up to 1 tokens of model m began" in said
