"""Identical requests share one run, each on its own clock; nobody waits for a run that is worse
than its own, and what ends for one caller's sake ends for that caller alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deployments.contract import errors
from deployments.gateway.queues.dispatcher_driver import VersionTerms, refusal
from deployments.gateway.queues.pending_requests import PendingBatchRequest
from deployments.gateway.reuse import single_flight
from deployments.gateway.reuse.single_flight import Follower, SingleFlight
from deployments.gateway.rows import RowAnswer, Rows
from routers.api.requests import Reason, Request

KEY = ("tenant", b"key")
FAR_S = 60.0
clock = time.monotonic


class Queue:
    """Takes every ticket until told otherwise; the test ends them."""

    def __init__(self) -> None:
        self.pending_requests: list[PendingBatchRequest] = []
        self.cancelled: list[PendingBatchRequest] = []
        self.full = False
        self.why = Reason.QUEUE_FULL

    def submit(self, follower: Follower) -> PendingBatchRequest:
        if self.full:
            raise refusal(self.why, 1.0)
        now = clock()
        request = Request(
            len(self.pending_requests), (1,) * follower.rows, now, follower.deadline,
            follower.expires, priority=follower.priority,
        )  # fmt: skip
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        rows = Rows(follower.rows, request.lengths, {})
        pending = PendingBatchRequest(
            request, rows, VersionTerms("1", ()), future, [None] * follower.rows, follower.rows
        )
        self.pending_requests.append(pending)
        return pending

    def cancel(self, pending: PendingBatchRequest) -> None:
        self.cancelled.append(pending)
        self.end(pending, errors.CallerLeft("the client disconnected"))

    def answer(self, pending: PendingBatchRequest, value: float = 1.0) -> None:
        pending.future.set_result((RowAnswer(service_s=value),) * pending.missing)

    def end(self, pending: PendingBatchRequest, error: errors.HeadraceError) -> None:
        pending.future.set_exception(error)
        pending.future.exception()


class Callers:
    def __init__(self, max_rows: int = 100) -> None:
        self.queue = Queue()
        self.single_flight = SingleFlight(self.queue.cancel, max_rows)
        self.tasks: list[asyncio.Task[Any]] = []

    async def come(
        self,
        key: Any = KEY,
        *,
        deadline_s: float = FAR_S,
        expires_s: float = FAR_S,
        priority: int = 1,
        rows: int = 1,
    ) -> tuple[Follower, asyncio.Task[Any]]:
        now = clock()
        follower = Follower(rows, priority, now + deadline_s, now + expires_s)
        call = self.single_flight.answers(key, follower, lambda: self.queue.submit(follower))
        task = asyncio.create_task(call)
        self.tasks.append(task)
        await asyncio.sleep(0)
        return follower, task

    async def turns(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def assert_empty(self) -> None:
        assert all(task.cancelled() or task.exception() or task.done() for task in self.tasks)
        assert not self.single_flight._running
        assert self.single_flight.following_rows == 0


@pytest.fixture
def callers() -> Iterator[Callers]:
    callers = Callers()
    yield callers
    callers.assert_empty()


def value(answers: tuple[RowAnswer, ...]) -> float:
    return answers[0].service_s


async def test_those_who_ask_the_same_share_one_run(callers: Callers) -> None:
    tasks = [(await callers.come())[1] for _ in range(5)]
    assert len(callers.queue.pending_requests) == 1
    callers.queue.answer(callers.queue.pending_requests[0], 7.0)
    assert [value(await task) for task in tasks] == [7.0] * 5
    assert callers.single_flight.coalesced_total == 4


@pytest.mark.parametrize("other", [("tenant", b"other"), ("another", b"key")])
async def test_another_key_or_tenant_runs_by_itself(callers: Callers, other: Any) -> None:
    await callers.come()
    await callers.come(other)
    assert len(callers.queue.pending_requests) == 2
    for pending in callers.queue.pending_requests:
        callers.queue.answer(pending)
    await callers.turns()


async def test_after_an_answer_the_next_caller_runs_anew(callers: Callers) -> None:
    _, first = await callers.come()
    callers.queue.answer(callers.queue.pending_requests[0], 1.0)
    assert value(await first) == 1.0
    _, second = await callers.come()
    callers.queue.answer(callers.queue.pending_requests[1], 2.0)
    assert value(await second) == 2.0


async def test_a_leader_that_leaves_cancels_nobody_elses_run(callers: Callers) -> None:
    leader, left = await callers.come()
    _, stays = await callers.come()
    leader.leave()
    with pytest.raises(errors.CallerLeft):
        await left
    assert not callers.queue.cancelled
    callers.queue.answer(callers.queue.pending_requests[0], 3.0)
    assert value(await stays) == 3.0
    assert len(callers.queue.pending_requests) == 1


async def test_the_last_to_leave_cancels_the_run(callers: Callers) -> None:
    followers = [(await callers.come())[0] for _ in range(3)]
    for follower in followers[:2]:
        follower.leave()
    await callers.turns()
    assert not callers.queue.cancelled
    followers[2].leave()
    await callers.turns()
    assert callers.queue.cancelled == callers.queue.pending_requests


async def test_a_caller_cancelled_from_outside_gives_up_its_seat(callers: Callers) -> None:
    _, first = await callers.come()
    _, second = await callers.come()
    first.cancel()
    await callers.turns()
    assert not callers.queue.cancelled
    second.cancel()
    await callers.turns()
    assert callers.queue.cancelled == callers.queue.pending_requests


async def test_a_leader_whose_time_is_up_hands_that_to_nobody(callers: Callers) -> None:
    _, leader = await callers.come()
    follower_tasks = [(await callers.come())[1] for _ in range(4)]
    callers.queue.end(callers.queue.pending_requests[0], errors.Expired("its time was up"))
    with pytest.raises(errors.Expired):
        await leader
    await callers.turns()
    # One of them queued anew, the others follow that one.
    assert len(callers.queue.pending_requests) == 2
    callers.queue.answer(callers.queue.pending_requests[1], 5.0)
    assert [value(await task) for task in follower_tasks] == [5.0] * 4
    assert callers.single_flight.coalesced_total == 3


async def test_a_late_leader_that_is_turned_away_takes_nobody_with_it(callers: Callers) -> None:
    _, leader = await callers.come()
    _, follower_task = await callers.come()
    callers.queue.end(callers.queue.pending_requests[0], refusal(Reason.LATE, 1.0))
    with pytest.raises(errors.Overloaded):
        await leader
    await callers.turns()
    callers.queue.answer(callers.queue.pending_requests[1])
    assert value(await follower_task) == 1.0


@pytest.mark.parametrize(
    "fault",
    [
        errors.BadRequest("no such token"),
        errors.RowFailed("the model failed on it"),
        errors.ReplicaLost("and so was the retry"),
        errors.NotReady("replaced"),
        refusal(Reason.QUEUE_FULL, 1.0),
    ],
)
async def test_what_would_befall_everybody_is_everybodys(
    callers: Callers, fault: errors.HeadraceError
) -> None:
    tasks = [(await callers.come())[1] for _ in range(4)]
    callers.queue.end(callers.queue.pending_requests[0], fault)
    for task in tasks:
        with pytest.raises(type(fault)):
            await task
    assert len(callers.queue.pending_requests) == 1


async def test_a_follower_has_its_own_timeout(callers: Callers) -> None:
    _, leader = await callers.come()
    _, follower_task = await callers.come(deadline_s=0.0, expires_s=0.001)
    with pytest.raises(errors.Expired):
        await follower_task
    assert not callers.queue.cancelled
    callers.queue.answer(callers.queue.pending_requests[0])
    assert value(await leader) == 1.0


async def test_the_more_urgent_run_by_themselves_and_lead_from_then_on(callers: Callers) -> None:
    _, bulk = await callers.come(priority=2)
    _, urgent = await callers.come(priority=0)
    _, also_bulk = await callers.come(priority=2)
    assert len(callers.queue.pending_requests) == 2
    callers.queue.answer(callers.queue.pending_requests[1], 2.0)
    assert [value(await task) for task in (urgent, also_bulk)] == [2.0, 2.0]
    assert not bulk.done()
    callers.queue.answer(callers.queue.pending_requests[0], 1.0)
    assert value(await bulk) == 1.0


async def test_nobody_who_is_on_time_joins_a_run_that_is_late(callers: Callers) -> None:
    _, late = await callers.come(deadline_s=0.0)
    _, fresh = await callers.come(deadline_s=FAR_S)
    assert len(callers.queue.pending_requests) == 2
    callers.queue.answer(callers.queue.pending_requests[1], 2.0)
    assert value(await fresh) == 2.0
    callers.queue.answer(callers.queue.pending_requests[0], 1.0)
    assert value(await late) == 1.0


async def test_who_is_late_too_joins_a_run_that_is_late(callers: Callers) -> None:
    _, first = await callers.come(deadline_s=0.0)
    _, second = await callers.come(deadline_s=0.0)
    assert len(callers.queue.pending_requests) == 1
    callers.queue.answer(callers.queue.pending_requests[0])
    await asyncio.gather(first, second)


async def test_followers_leave_a_run_that_turns_late_and_share_the_next(callers: Callers) -> None:
    _, leader = await callers.come(deadline_s=0.05)
    follower_tasks = [(await callers.come())[1] for _ in range(3)]
    assert len(callers.queue.pending_requests) == 1
    while len(callers.queue.pending_requests) < 2:  # noqa: ASYNC110 - the run has to turn late
        await asyncio.sleep(0.001)
    await callers.turns()
    assert len(callers.queue.pending_requests) == 2
    callers.queue.answer(callers.queue.pending_requests[1], 2.0)
    assert [value(await task) for task in follower_tasks] == [2.0] * 3
    callers.queue.answer(callers.queue.pending_requests[0], 1.0)
    assert value(await leader) == 1.0


async def test_a_run_that_turns_late_while_a_caller_joins_it_is_left(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, looks = clock(), 0

    def moves_on() -> float:
        """Each look is 2 s later."""
        nonlocal looks
        looks += 1
        return start + 2.0 * looks

    _, leader = await callers.come(deadline_s=3.0)
    monkeypatch.setattr(single_flight, "clock", moves_on)
    _, follower = await callers.come()
    monkeypatch.undo()
    loop = asyncio.get_running_loop()
    (run,) = callers.single_flight._running.values()
    timer = next(each.timer for each in run.followers if each.followed)
    assert timer is not None
    assert timer.when() - loop.time() < 3.0
    callers.queue.answer(callers.queue.pending_requests[0], 1.0)
    assert [value(await task) for task in (leader, follower)] == [1.0, 1.0]


@pytest.mark.parametrize("why", [Reason.QUEUE_FULL, Reason.TENANT_FULL, Reason.LATE])
async def test_when_the_queue_refuses_a_worse_run_is_better_than_none(
    callers: Callers, why: Reason
) -> None:
    await callers.come(deadline_s=0.0, priority=2)
    callers.queue.full, callers.queue.why = True, why
    _, fresh = await callers.come(priority=0)
    callers.queue.answer(callers.queue.pending_requests[0], 4.0)
    assert value(await fresh) == 4.0


async def test_a_full_queue_refuses_what_nobody_runs(callers: Callers) -> None:
    callers.queue.full = True
    _, task = await callers.come()
    with pytest.raises(errors.Overloaded):
        await task


@pytest.mark.parametrize(("rows", "runs"), [(1, 1), (2, 1), (3, 2)])
async def test_those_who_follow_are_bounded_in_rows(rows: int, runs: int) -> None:
    callers = Callers(max_rows=2)
    await callers.come(rows=rows)
    await callers.come(rows=rows)
    assert len(callers.queue.pending_requests) == runs
    for pending in callers.queue.pending_requests:
        callers.queue.answer(pending)
    await callers.turns()
    callers.assert_empty()


async def test_nobody_joins_a_run_of_an_earlier_version(callers: Callers) -> None:
    _, before = await callers.come()
    callers.single_flight.adopt(100)
    _, after = await callers.come()
    assert len(callers.queue.pending_requests) == 2
    callers.queue.answer(callers.queue.pending_requests[0], 1.0)
    callers.queue.answer(callers.queue.pending_requests[1], 2.0)
    assert [value(await task) for task in (before, after)] == [1.0, 2.0]


async def test_who_left_while_a_run_ended_does_not_begin_another(callers: Callers) -> None:
    _, leader = await callers.come()
    follower, follower_task = await callers.come()
    callers.queue.end(callers.queue.pending_requests[0], errors.Expired("its time was up"))
    # Between the run's end and the follower's look for another.
    asyncio.get_running_loop().call_soon(follower.leave)
    with pytest.raises(errors.Expired):
        await leader
    with pytest.raises(errors.CallerLeft):
        await follower_task
    assert len(callers.queue.pending_requests) == 1


class FlightMachine(RuleBasedStateMachine):
    """Callers come, leave and are cancelled, runs end in every way, versions change. Nobody is
    forgotten or answered for another key, no run goes on that nobody waits for."""

    keys = st.sampled_from(["a", "b"])

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.callers = self.on_loop(self.make())
        self.there: list[tuple[str, Follower, asyncio.Task[Any]]] = []
        self.asked: dict[int, str] = {}

    async def make(self) -> Callers:
        return Callers(max_rows=5)

    def on_loop(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def live(self) -> list[PendingBatchRequest]:
        return [t for t in self.callers.queue.pending_requests if not t.future.done()]

    async def arrive(self, key: str, late: bool, priority: int, rows: int) -> None:
        known = len(self.callers.queue.pending_requests)
        deadline_s = -1.0 if late else FAR_S
        follower, task = await self.callers.come(
            key, deadline_s=deadline_s, priority=priority, rows=rows
        )
        self.there.append((key, follower, task))
        if len(self.callers.queue.pending_requests) > known:
            self.asked[known] = key
        await self.settle()

    async def settle(self) -> None:
        known = len(self.callers.queue.pending_requests)
        await self.callers.turns()
        for number in range(known, len(self.callers.queue.pending_requests)):
            self.asked.setdefault(number, self.again)

    again = ""

    @rule(key=keys, late=st.booleans(), priority=st.integers(0, 2), rows=st.integers(1, 3))
    def comes(self, key: str, late: bool, priority: int, rows: int) -> None:
        self.on_loop(self.arrive(key, late, priority, rows))

    @precondition(lambda self: self.there)
    @rule(data=st.data(), politely=st.booleans())
    def leaves(self, data: st.DataObject, politely: bool) -> None:
        _, follower, task = data.draw(st.sampled_from(self.there))
        if politely:
            follower.leave()
        else:
            task.cancel()
        self.on_loop(self.settle())

    @precondition(lambda self: self.live())
    @rule(data=st.data(), how=st.sampled_from(["answer", "expire", "late", "fail"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        pending = data.draw(st.sampled_from(self.live()))
        number = self.callers.queue.pending_requests.index(pending)
        self.again = self.asked[number]
        if how == "answer":
            self.callers.queue.answer(pending, float(ord(self.asked[number])))
        else:
            error = {
                "expire": errors.Expired("its time was up"),
                "late": refusal(Reason.LATE, 1.0),
                "fail": errors.RowFailed("the model failed on it"),
            }[how]
            self.callers.queue.end(pending, error)
        self.on_loop(self.settle())

    @rule(full=st.booleans())
    def fills(self, full: bool) -> None:
        self.callers.queue.full = full

    @rule()
    def another_version(self) -> None:
        self.callers.single_flight.adopt(5)

    @invariant()
    def nobody_waits_for_nothing_and_nothing_runs_for_nobody(self) -> None:
        waiting = [task for _, _, task in self.there if not task.done()]
        assert bool(waiting) == bool(self.live())
        assert len(self.live()) <= len(waiting)
        assert 0 <= self.callers.single_flight.following_rows <= 5
        for key, _, task in self.there:
            if task.done() and not task.cancelled() and task.exception() is None:
                assert value(task.result()) == float(ord(key))

    def teardown(self) -> None:
        self.callers.queue.full = False
        for pending in self.live():
            self.again = self.asked[self.callers.queue.pending_requests.index(pending)]
            self.callers.queue.answer(pending, float(ord(self.again)))
        self.on_loop(self.settle())
        self.nobody_waits_for_nothing_and_nothing_runs_for_nobody()
        self.callers.assert_empty()
        self.loop.close()


TestFlightMachine = FlightMachine.TestCase
TestFlightMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
