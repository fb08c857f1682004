"""One caller, the same rows on two replicas: the first answer counts, nothing is answered twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from far_end import FarEnd, reply_of

from deployments.contract import errors
from deployments.contract.channel.frames import Kind, RowError
from deployments.gateway.queues.batch_queue import BatchQueue
from deployments.gateway.queues.dispatcher_driver import QueueRequest, VersionTerms
from deployments.gateway.queues.pending_requests import BatchEnd, PendingBatchRequest
from deployments.gateway.rows import RowColumn, Rows
from routers.api.actions import Abort, Action, Dispatch, Evict
from routers.api.events import Arrive, Cancel, Closed, Event, Opened
from routers.api.requests import LeaseEnd, Reason
from routers.api.settings import DispatcherSettings

STUMBLED = (RowError(0, False, "stumbled"),)


class Racing:
    """A dispatcher that sends every request twice: to `r1`, and as a copy to `r2`. The first answer
    aborts the other one, and so does a caller that leaves; rows that fail are left to the other, or
    given up once both have ended. `events` keeps what it was told."""

    def __init__(self, *, tied: bool = False, tells_start: bool = False) -> None:
        self.events: list[Event] = []
        self.open: dict[int, int] = {}  # lease -> request
        self._tied, self._tells_start = tied, tells_start
        self._last_id = 0

    def step(self, event: Event, now: float) -> list[Action]:
        self.events.append(event)
        match event:
            case Arrive(request):
                rows = tuple((request.request_id, n) for n in range(len(request.lengths)))
                first = self._lease("r1", rows)
                return [first, self._lease("r2", rows, copy_of=first.lease_id, tied=self._tied)]
            case Closed(lease_id, end, _, failed):
                request_id = self.open.pop(lease_id)
                if end is LeaseEnd.DONE and not failed:
                    return self._aborted(request_id)
                if request_id not in self.open.values():
                    return [Evict(request_id, Reason.FAILED)]
            case Cancel(request_id):
                return self._aborted(request_id)
        return []

    def strands(self, lengths: tuple[int, ...]) -> bool:
        return False

    def take(self, event: Event, now: float, actions: list[Action]) -> bool:
        actions += self.step(event, now)
        return False

    def _lease(self, replica_id: str, rows: Any, **more: Any) -> Dispatch:
        self._last_id += 1
        self.open[self._last_id] = rows[0][0]
        dispatch = Dispatch(self._last_id, replica_id, rows, 8, 0.1)
        dispatch.tells_start = self._tells_start
        for name, value in more.items():
            setattr(dispatch, name, value)
        return dispatch

    def _aborted(self, request_id: int) -> list[Action]:
        return [Abort(lease, "") for lease, of in self.open.items() if of == request_id]


class Race:
    def __init__(self, **dispatcher: Any) -> None:
        self.far, self.dispatcher = FarEnd(), Racing(**dispatcher)
        settings = DispatcherSettings(bucket_edges=(8,))
        self.queue = BatchQueue(
            settings, VersionTerms("v", "s"), self.far, on_batch=lambda record: None
        )
        self.queue._dispatcher = self.dispatcher  # type: ignore[assignment]

    def ask(
        self, *, rows: int = 1, expires_s: float = 60.0, retry: bool = True
    ) -> PendingBatchRequest:
        arrays = [np.array([n], dtype=np.int64) for n in range(rows)]
        columns = {"x": RowColumn("INT64", arrays, [(1,)] * rows)}
        asked = Rows(rows, (1,) * rows, columns, None)
        demand = QueueRequest("t", 0, slo_budget_s=1.0, budget_s=expires_s)
        return self.queue.submit(asked, VersionTerms("v", "s", retry), demand)

    async def submit(self, **request: Any) -> PendingBatchRequest:
        """A request whose two leases are out."""
        pending = self.ask(**request)
        await turns()
        return pending

    async def reply(self, lease_id: int, *values: float, **more: Any) -> None:
        self.far.reply(lease_id, reply_of(*values, **more))
        await turns()

    async def lose(self, lease_id: int) -> None:
        """With the connection that it went out on."""
        self.far.lose(self.far.sent[lease_id])
        await turns()

    def ends(self) -> dict[int, LeaseEnd]:
        return {e.lease_id: e.end for e in self.dispatcher.events if isinstance(e, Closed)}

    def arrivals(self) -> list[Arrive]:
        return [event for event in self.dispatcher.events if isinstance(event, Arrive)]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def value(pending: PendingBatchRequest) -> list[float]:
    return [float(answer.outputs["y"][1]) for answer in pending.future.result()]


@pytest.mark.parametrize(("winner", "loser"), [(1, 2), (2, 1)])
async def test_the_first_answer_counts_and_the_other_lease_is_dropped(
    winner: int, loser: int
) -> None:
    race = Race()
    pending = await race.submit()
    await race.reply(winner, 5.0)
    assert value(pending) == [5.0]
    assert race.far.dropped == [loser]
    assert race.ends() == {winner: LeaseEnd.DONE, loser: LeaseEnd.ABORTED}
    assert race.queue.calls.ends[BatchEnd.DROPPED] == race.queue.calls.ends[BatchEnd.ANSWERED] == 1
    assert race.queue.inflight == 0


async def test_a_second_answer_is_ignored_and_counted() -> None:
    race = Race()
    race.far.heeds = False
    pending = await race.submit()
    await race.reply(1, 5.0)
    await race.reply(2, 6.0)
    assert value(pending) == [5.0]
    assert race.ends() == {1: LeaseEnd.DONE, 2: LeaseEnd.DONE}
    assert race.queue.calls.ends[BatchEnd.UNUSED] == race.queue.calls.ends[BatchEnd.ANSWERED] == 1


async def test_a_row_that_failed_in_one_is_answered_by_the_other() -> None:
    race = Race()
    pending = await race.submit()
    await race.reply(1, failed=STUMBLED)
    assert not pending.future.done()
    assert race.far.dropped == []
    await race.reply(2, 6.0)
    assert value(pending) == [6.0]
    assert len(race.arrivals()) == 1


async def test_of_several_rows_each_is_answered_by_whichever_could() -> None:
    race = Race()
    pending = await race.submit(rows=2)
    await race.reply(1, 5.0, failed=STUMBLED)
    await race.reply(2, 6.0, 7.0)
    assert value(pending) == [6.0, 5.0]


async def test_the_dispatcher_is_told_which_rows_failed_of_those_that_nobody_awaits_too() -> None:
    race = Race()
    race.far.heeds = False
    await race.submit(rows=2)
    await race.reply(1, 5.0, 6.0)
    await race.reply(2, 7.0, failed=STUMBLED)
    ends = [event for event in race.dispatcher.events if isinstance(event, Closed)]
    assert [(each.lease_id, each.failed) for each in ends] == [(1, ()), (2, (0,))]


async def test_a_failure_that_the_dispatcher_gives_up_is_told_as_one_of_the_model() -> None:
    race = Race()
    pending = await race.submit()
    await race.reply(2, failed=STUMBLED)
    await race.lose(1)
    error = pending.future.exception()
    assert isinstance(error, errors.RowFailed)
    assert (error.reason, error.retry_after_s) == ("inference_failed", 1.0)
    assert race.queue.inflight == 0


async def test_what_is_the_callers_fault_is_told_at_once() -> None:
    race = Race()
    pending = await race.submit()
    await race.reply(1, failed=(RowError(0, True, "bad id"),))
    assert isinstance(pending.future.exception(), errors.BadRequest)
    assert race.far.dropped == [2]


async def test_a_caller_that_leaves_has_both_dropped() -> None:
    race = Race()
    pending = await race.submit()
    race.queue.cancel(pending)
    await turns()
    assert sorted(race.far.dropped) == [1, 2]
    assert set(race.ends().values()) == {LeaseEnd.ABORTED}


async def test_a_caller_that_leaves_at_once_has_both_dropped_all_the_same() -> None:
    """A lease is sent by the very step that decides on it: there is no moment in which it is known
    and has not gone out."""
    race = Race()
    race.queue.cancel(race.ask())
    assert race.far.dropped == [1, 2]
    await turns()
    assert race.ends() == {1: LeaseEnd.ABORTED, 2: LeaseEnd.ABORTED}


async def test_starts_of_tied_leases_are_told_until_they_end() -> None:
    race = Race(tied=True)
    await race.submit()
    assert race.far.starts == {1, 2}
    race.far.says(2, Kind.STARTED)
    await turns()
    assert [e for e in race.dispatcher.events if isinstance(e, Opened)] == [Opened(2)]
    await race.reply(2, 5.0)
    assert race.ends() == {1: LeaseEnd.ABORTED, 2: LeaseEnd.DONE}
    race.far.says(1, Kind.STARTED)  # it was on its way
    assert [e for e in race.dispatcher.events if isinstance(e, Opened)] == [Opened(2)]
    assert not race.queue.calls.count


async def test_a_start_that_never_comes_is_not_told() -> None:
    race = Race(tied=True)
    await race.submit()
    await race.lose(2)
    assert not any(isinstance(event, Opened) for event in race.dispatcher.events)
    await race.reply(1, 5.0)


async def test_starts_are_told_where_the_dispatcher_asks_for_them() -> None:
    race = Race(tells_start=True)
    await race.submit()
    assert race.far.starts == {1, 2}
    race.far.says(1, Kind.STARTED)
    await turns()
    assert [e for e in race.dispatcher.events if isinstance(e, Opened)] == [Opened(1)]
    await race.reply(1, 5.0)


async def test_leases_that_race_no_other_ask_for_no_start() -> None:
    race = Race()
    await race.submit()
    assert race.far.starts == set()
    await race.reply(1, 5.0)


async def test_a_copy_that_is_wanted_while_answers_are_taken_in_has_its_rows() -> None:
    """The dispatcher hears of an answer after its rows: in between it may still copy the lease."""
    race = Race()
    pending = await race.submit(rows=2)
    original: Callable[..., Any] = race.queue._resolve

    def resolve(resolved: PendingBatchRequest) -> None:
        original(resolved)
        copy = Dispatch(9, "r2", ((1, 0), (1, 1)), 8, 0.1)
        copy.copy_of = 1
        race.queue._perform([copy], 0.0)
        race.dispatcher.open[9] = 1

    race.queue._resolve = resolve  # type: ignore[method-assign]
    await race.reply(1, 5.0, 6.0)
    assert value(pending) == [5.0, 6.0]
    assert race.ends()[9] is LeaseEnd.ABORTED
    assert 9 in race.far.dropped
