"""The turn pool: whose work is next, what is refused, what cancelling and closing leave behind."""

import asyncio
import gc
import threading
import weakref

import pytest
from fake_engines import until

from deployments.contract.errors import Overloaded
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool

WAIT_S = 5.0


class Gate:
    """A function that blocks its worker until it is opened, and says when it has started."""

    def __init__(self):
        self.started, self.opened = threading.Event(), threading.Event()

    def __call__(self, value=None):
        self.started.set()
        assert self.opened.wait(WAIT_S)
        return value

    async def hold(self, pool, tenant="gate"):
        task = asyncio.create_task(pool.run(tenant, self))
        await settle()
        assert self.started.wait(WAIT_S)
        return task


@pytest.fixture
async def pools():
    made = []

    def make(workers=1, max_pending=100):
        made.append(FairThreadPool(workers, max_pending))
        return made[-1]

    yield make
    for pool in made:
        pool.close(WAIT_S)
        assert pool.statistics().waiting_jobs == pool.statistics().waiting_turns == 0


async def settle():
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def blocked_order(pool, submissions):
    """Runs (tenant, name) pairs submitted behind a closed gate; returns the order they ran in."""
    gate, order = Gate(), []
    held = await gate.hold(pool)
    tasks = [
        asyncio.create_task(pool.run(tenant, order.append, name)) for tenant, name in submissions
    ]
    await settle()
    gate.opened.set()
    await asyncio.gather(held, *tasks)
    return order


async def test_the_result_of_the_function_comes_back(pools):
    assert await pools().run("a", lambda x, y: x + y, 2, 3) == 5


async def test_what_the_function_raises_reaches_its_caller_and_the_pool_lives_on(pools):
    pool = pools()
    with pytest.raises(ZeroDivisionError):
        await pool.run("a", lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.run("a", next, iter(()))
    assert await pool.run("a", lambda: 1) == 1


class Body:
    """What somebody sent."""

    def parse(self):
        raise ValueError("it is no number")


async def test_what_failed_is_freed_at_once_and_by_an_idle_thread_too(pools):
    """Without a collection of garbage; the thread has a few lines to go after the answer."""
    pool, body = pools(), Body()
    kept = weakref.ref(body)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no number"):
            await pool.run("a", Body.parse, body)
        del body
        await until(lambda: kept() is None)
    finally:
        gc.enable()


async def test_tenants_take_turns_and_each_tenant_is_first_in_first_out(pools):
    submitted = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("b", "b2"), ("c", "c1")]
    order = await blocked_order(pools(), submitted)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_newcomer_waits_for_the_running_turn_of_ten_thousand_and_no_other(pools):
    pool, order, gate = pools(), [], Gate()

    def turn(index):
        if index == 0:
            gate()
        order.append(("flood", index))

    flood = asyncio.create_task(pool.run_each("flood", turn, range(10_000)))
    await settle()
    assert gate.started.wait(WAIT_S)
    other = asyncio.create_task(pool.run("other", order.append, ("other", 0)))
    await settle()
    gate.opened.set()
    await asyncio.gather(flood, other)
    assert order.index(("other", 0)) == 1
    assert len(order) == 10_001


async def test_a_tenant_that_returns_after_idling_gets_no_extra_turns(pools):
    pool = pools()
    await pool.run("b", lambda: None)
    order = await blocked_order(pool, [("a", "a1"), ("b", "b1"), ("b", "b2"), ("a", "a2")])
    assert order == ["a1", "b1", "a2", "b2"]


async def test_workers_share_the_turns_of_one_job(pools):
    pool, both = pools(workers=2), threading.Barrier(2)
    assert len(set(await pool.run_each("a", lambda _: both.wait(WAIT_S), [1, 2]))) == 2


@pytest.mark.parametrize("count", [0, 1, 2, 65])
async def test_turns_of_a_job_come_back_in_order(pools, count):
    assert await pools(workers=2).run_each("a", lambda x: -x, range(count)) == [
        -x for x in range(count)
    ]


async def test_a_failing_turn_ends_its_job_and_frees_its_place(pools):
    pool, seen = pools(), []

    def turn(index):
        seen.append(index)
        raise KeyError(index)

    with pytest.raises(KeyError):
        await pool.run_each("a", turn, range(100))
    assert await pool.run("a", lambda: "next") == "next"
    assert seen == [0]
    assert pool.statistics().waiting_turns == 0


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_one_job_more_than_the_limit_is_refused_with_a_retry_after(pools, limit):
    pool, gate = pools(max_pending=limit), Gate()
    held = await gate.hold(pool)
    waiting = [asyncio.create_task(pool.run("late", int)) for _ in range(limit)]
    await settle()
    assert pool.statistics().waiting_jobs == limit
    with pytest.raises(Overloaded) as refused:
        await pool.run("late", int)
    assert refused.value.retry_after_s >= 1
    gate.opened.set()
    await asyncio.gather(held, *waiting)
    assert await pool.run("late", int) == 0
    assert pool.statistics().refused_total == 1


async def test_one_tenant_may_take_every_place_and_another_has_its_share_all_the_same(pools):
    pool, gate = pools(max_pending=10), Gate()
    held = await gate.hold(pool)
    flood = [asyncio.create_task(pool.run("flood", int)) for _ in range(20)]
    await settle()
    assert pool.statistics().waiting_jobs == 10
    other = [asyncio.create_task(pool.run("other", int)) for _ in range(7)]
    await settle()
    assert pool.statistics().waiting_jobs == 15
    assert pool.statistics().refused_total == 10 + 2
    gate.opened.set()
    results = await asyncio.gather(held, *other, *flood, return_exceptions=True)
    assert sum(isinstance(r, Overloaded) for r in results) == 12
    assert pool.statistics().waiting_jobs == 0


async def test_who_comes_to_many_that_wait_is_not_refused_for_their_number(pools):
    """819 of 1,024 places are one tenant's; the other one's half is its own."""
    pool, gate = pools(max_pending=1024), Gate()
    held = await gate.hold(pool)
    first = [asyncio.create_task(pool.run("a", int)) for _ in range(819)]
    await settle()
    second = [asyncio.create_task(pool.run("b", int)) for _ in range(600)]
    await settle()
    assert pool.statistics().waiting_jobs == 819 + 512
    gate.opened.set()
    await asyncio.gather(held, *first, *second, return_exceptions=True)


async def test_cancelled_work_leaves_the_queue_at_once_and_never_runs(pools):
    pool, gate, ran = pools(), Gate(), []
    held = await gate.hold(pool)
    task = asyncio.create_task(pool.run_each("a", ran.append, range(5)))
    await settle()
    assert pool.statistics().waiting_turns == 5
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.statistics().waiting_turns == pool.statistics().waiting_jobs == 0
    gate.opened.set()
    await held
    await pool.run("a", int)
    assert ran == []


async def test_cancelling_a_job_that_has_begun_drops_only_the_turns_that_have_not(pools):
    pool, gate, ran = pools(), Gate(), []

    def turn(index):
        ran.append(index)
        gate()

    task = asyncio.create_task(pool.run_each("a", turn, range(5)))
    await settle()
    assert gate.started.wait(WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.opened.set()
    assert await pool.run("a", lambda: "free") == "free"
    assert ran == [0]


async def test_many_cancelled_jobs_leave_nothing_behind_while_the_worker_is_busy(pools):
    pool, gate = pools(), Gate()
    held = await gate.hold(pool)
    for _ in range(200):
        task = asyncio.create_task(pool.run("a", int))
        await settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert pool.statistics().waiting_jobs == 0
    gate.opened.set()
    await held


async def test_closing_fails_what_waits_finishes_what_runs_and_refuses_what_comes(pools):
    pool, gate = pools(), Gate()
    held = await gate.hold(pool)
    waiting = asyncio.create_task(pool.run("a", int))
    await settle()
    pool.close()
    with pytest.raises(Overloaded):
        await waiting
    with pytest.raises(Overloaded):
        await pool.run("a", int)
    gate.opened.set()
    assert await held is None


async def test_several_finished_jobs_wake_the_loop_once(pools, monkeypatch):
    pool, gate, wakes, last = pools(workers=1), Gate(), [], threading.Event()
    held = await gate.hold(pool)
    tasks = [asyncio.create_task(pool.run("a", int)) for _ in range(20)]
    tasks.append(asyncio.create_task(pool.run("a", last.set)))
    await settle()
    loop = asyncio.get_running_loop()
    real, done = loop.call_soon_threadsafe, threading.Event()

    def wake_late(callback, *args):
        wakes.append(callback)
        threading.Thread(target=lambda: (done.wait(WAIT_S), real(callback, *args))).start()

    monkeypatch.setattr(loop, "call_soon_threadsafe", wake_late)
    gate.opened.set()
    assert last.wait(WAIT_S)
    pool.close(WAIT_S)  # every turn has been handed over when the thread has ended
    done.set()
    await asyncio.gather(held, *tasks)
    assert len(wakes) == 1


def test_a_pool_serves_one_event_loop():
    pool = FairThreadPool(1, 1)

    async def use():
        return await pool.run("a", int)

    assert asyncio.run(use()) == 0
    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        asyncio.run(use())
    pool.close(WAIT_S)


@pytest.mark.parametrize(("workers", "pending"), [(0, 1), (1, 0)])
def test_a_pool_without_workers_or_places_is_refused(workers, pending):
    with pytest.raises(ValueError, match="at least one"):
        FairThreadPool(workers, pending)
