"""A lease ends once, whatever is said of it, by whom and in which order; what cannot be sent or
read costs its own lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from fake_engines import until
from far_end import FarEnd, reply_of

from deployments.contract.channel.frames import Frame, Kind
from deployments.gateway.queues import lease_calls
from deployments.gateway.queues.batch_queue import BatchCalls, SentBatch
from deployments.gateway.queues.dispatcher_driver import VersionTerms
from deployments.gateway.queues.lease_calls import UNREACHED_RETRY_S
from deployments.gateway.queues.pending_requests import PendingBatchRequest
from deployments.gateway.rows import RowColumn, Rows
from deployments.process.replica_directory import RunningReplica
from routers.api.actions import Dispatch
from routers.api.requests import LeaseEnd, Report, Request

CALLER: ContextVar[str] = ContextVar("CALLER", default="")
WAITING = ((0, "t", 1.0),)


class Owner:
    """A queue that keeps what it is told. `callers`: in whose context it was told of an end."""

    def __init__(self) -> None:
        self.terms = VersionTerms("v", "s")
        self.ends: list[tuple[int, LeaseEnd]] = []
        self.reports: dict[int, Report] = {}
        self.failures: list[int] = []
        self.refused: list[PendingBatchRequest] = []
        self.started: list[int] = []
        self.spoke: list[str] = []
        self.callers: set[str] = set()
        self.on_answer: Callable[[SentBatch], bool] = lambda sent: True

    def links_changed(self) -> None: ...

    def heard(self, replica_id: str) -> None:
        self.spoke.append(replica_id)

    def takes(self, pending: PendingBatchRequest) -> bool:
        return True

    def outdated(self, pending: PendingBatchRequest) -> None:
        self.refused.append(pending)

    def answered(self, sent: SentBatch, round_trip_s: float, reply: Any) -> bool:
        return self.on_answer(sent)

    def failed(self, sent: SentBatch) -> None:
        self.failures.append(sent.lease.lease_id)

    def opened(self, sent: SentBatch) -> None:
        self.started.append(sent.lease.lease_id)

    def closed(self, sent: SentBatch, end: LeaseEnd, report: Report) -> None:
        self.callers.add(CALLER.get())
        self.ends.append((sent.lease.lease_id, end))
        self.reports[sent.lease.lease_id] = report


class Out:
    """Leases of one row each."""

    def __init__(self) -> None:
        self.owner, self.far = Owner(), FarEnd()
        self.far.heeds = False
        self.calls = BatchCalls(self.owner, self.far)

    def send(self, lease_id: int, replica_id: str = "r1", **lease: Any) -> PendingBatchRequest:
        request = Request(lease_id, (1,), arrival=0.0, deadline=1.0, expires=1e9)
        column = RowColumn("INT64", [np.array([5], dtype=np.int64)], [(1,)])
        nobody = cast(Any, None)
        pending = PendingBatchRequest(
            request, Rows(1, (1,), {"x": column}, None), self.owner.terms, nobody, [None], 1
        )
        dispatch = Dispatch(lease_id, replica_id, ((lease_id, 0),), 8, 0.1)
        for name, value in lease.items():
            setattr(dispatch, name, value)
        self.calls.send(dispatch, [pending], asyncio.get_running_loop().time())
        return pending

    def late(self) -> None:
        """All that is out has been so for too long."""
        for sent in self.calls._sent.values():
            sent.limit_s = -1.0
        self.calls._end_late_leases()

    def receive(self, replica_id: str, kind: Kind, lease_id: int, body: bytes = b"") -> None:
        self.calls.received(replica_id, Frame(kind, lease_id, memoryview(body)))


@pytest.fixture
async def out() -> Any:
    made = Out()
    yield made
    made.calls.close()
    assert made.far.closed
    assert len({lease_id for lease_id, _ in made.owner.ends}) == len(made.owner.ends)


ENDINGS: dict[str, tuple[Callable[[Out], None], LeaseEnd]] = {
    "a reply": (lambda out: out.far.reply(1, reply_of(5.0)), LeaseEnd.DONE),
    "a busy reply": (lambda out: out.far.reply(1, reply_of(busy=True)), LeaseEnd.BUSY),
    "a fault": (lambda out: out.far.says(1, Kind.FAULT, [b"why"]), LeaseEnd.LOST),
    "no answer that can be sent": (
        lambda out: out.far.says(1, Kind.UNSENT, [b"why"]), LeaseEnd.LOST,
    ),
    "a reply that cannot be read": (
        lambda out: out.far.says(1, Kind.REPLY, [b"\xff" * 9]), LeaseEnd.ABORTED,
    ),
    "its connection breaks": (lambda out: out.far.lose("r1"), LeaseEnd.LOST),
    "its time is up": (lambda out: out.late(), LeaseEnd.LOST),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second"), product(ENDINGS, repeat=2))
async def test_a_lease_ends_as_the_first_says_and_the_second_changes_nothing(
    out: Out, first: str, second: str
) -> None:
    out.send(1)
    (end, expected), (again, _) = ENDINGS[first], ENDINGS[second]
    end(out)
    again(out)
    assert out.owner.ends == [(1, expected)]
    assert sum(out.calls.ends.values()) == 1
    assert out.calls.count == 0


async def test_a_lease_that_is_out_for_too_long_is_lost_and_need_not_start_any_more(
    out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.queues.lease_calls._LATE_EVERY_S", 0.001)
    out.send(1)
    out.owner.terms = VersionTerms("v", "s", call_limit_s=0.0)
    out.send(2)
    await until(lambda: bool(out.owner.ends))
    assert out.owner.ends == [(2, LeaseEnd.LOST)]
    assert out.far.dropped == [2]
    out.far.reply(2, reply_of(5.0))  # late
    out.far.reply(1, reply_of(5.0))
    assert out.owner.ends == [(2, LeaseEnd.LOST), (1, LeaseEnd.DONE)]


async def test_a_lease_whose_replica_cannot_be_reached_was_not_started(out: Out) -> None:
    out.far.gone.add("r1")
    out.send(1)
    assert out.owner.ends == []  # the dispatcher is still at work
    await asyncio.sleep(0)
    assert out.owner.ends == [(1, LeaseEnd.BUSY)]
    assert out.owner.reports[1].retry_in_s == UNREACHED_RETRY_S


async def test_a_lease_that_was_not_sent_and_that_nobody_waits_for_is_dropped(out: Out) -> None:
    out.far.gone.add("r1")
    out.send(1)
    out.calls.abort(1)
    await asyncio.sleep(0)
    assert out.owner.ends == [(1, LeaseEnd.ABORTED)]
    assert out.far.dropped == []


async def test_an_abort_is_told_once_and_the_reply_says_what_became_of_it(out: Out) -> None:
    out.send(1)
    out.send(2)
    for lease_id in (1, 2, 1):
        out.calls.abort(lease_id)
    assert out.far.dropped == [1, 2]
    assert out.owner.ends == []
    out.far.reply(1, reply_of(busy=True))
    out.far.reply(2, reply_of(5.0))
    assert out.owner.ends == [(1, LeaseEnd.ABORTED), (2, LeaseEnd.DONE)]


async def test_a_batch_that_cannot_be_made_into_a_message_is_an_error_to_its_callers(
    out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr("deployments.gateway.queues.batch_queue.build_call", fails)
        out.send(1)
    out.send(2)
    assert out.owner.failures == []  # the dispatcher is still at work
    await asyncio.sleep(0)
    assert (out.owner.failures, out.owner.ends) == ([1], [(1, LeaseEnd.ABORTED)])
    out.far.reply(2, reply_of(5.0))
    assert out.owner.ends[1:] == [(2, LeaseEnd.DONE)]


async def test_a_batch_that_is_too_large_for_a_frame_is_an_error_to_its_callers(
    out: Out, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("deployments.contract.channel.frames.MAX_FRAME_BYTES", 16)
    out.send(1)
    await asyncio.sleep(0)
    assert (out.owner.failures, out.owner.ends) == ([1], [(1, LeaseEnd.ABORTED)])
    assert "do not fit into one frame of 16" in said.text


async def test_a_reply_that_cannot_be_taken_in_costs_its_own_lease(out: Out) -> None:
    out.send(1)
    out.send(2)
    out.owner.on_answer = lambda sent: bool(1 / (sent.lease.lease_id - 1))
    out.far.reply(1, reply_of(5.0))
    out.far.reply(2, reply_of(5.0))
    assert out.owner.failures == [1]
    assert out.owner.ends == [(1, LeaseEnd.ABORTED), (2, LeaseEnd.DONE)]


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.FAULT, Kind.STARTED])
async def test_what_another_replica_says_of_a_lease_is_not_believed(out: Out, kind: Kind) -> None:
    out.send(1)
    out.receive("r2", kind, 1, b"\xff" * 9)
    assert (out.owner.ends, out.owner.failures, out.owner.started) == ([], [], [])
    out.far.reply(1, reply_of(5.0))
    assert out.owner.ends == [(1, LeaseEnd.DONE)]


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.FAULT, Kind.STARTED, Kind.STEPS])
@pytest.mark.parametrize("lease_id", [0, 9])
async def test_what_is_said_of_no_lease_that_is_out_harms_none(
    out: Out, kind: Kind, lease_id: int
) -> None:
    out.send(1)
    out.receive("r1", kind, lease_id, b"\xff" * 9)
    assert (out.owner.ends, out.owner.failures, out.owner.started) == ([], [], [])
    out.far.reply(1, reply_of(5.0))


async def test_a_lease_of_a_batch_that_is_answered_as_a_stream_is_an_error_to_its_callers(
    out: Out,
) -> None:
    out.send(1)
    out.far.says(1, Kind.STEPS)
    assert (out.owner.failures, out.owner.ends) == ([1], [(1, LeaseEnd.ABORTED)])


async def test_a_start_is_told_while_its_lease_is_out(out: Out) -> None:
    out.send(1, tied=True)
    assert out.far.starts == {1}
    out.far.says(1, Kind.STARTED)
    out.far.reply(1, reply_of(5.0))
    out.far.says(1, Kind.STARTED)
    assert out.owner.started == [1]


async def test_rows_that_the_live_version_does_not_take_are_refused_and_the_others_return(
    out: Out,
) -> None:
    out.owner.takes = lambda pending: False  # type: ignore[method-assign]
    pending = out.send(1)
    assert out.owner.refused == []  # the dispatcher is still at work
    await asyncio.sleep(0)
    assert out.owner.refused == [pending]
    assert out.owner.ends == [(1, LeaseEnd.BUSY)]
    assert out.far.sent == {}


async def test_what_waits_is_told_again_when_the_batch_that_said_so_did_not_arrive(
    out: Out,
) -> None:
    out.far.gone.add("r1")
    out.send(1, waiting=WAITING)
    await asyncio.sleep(0)
    out.far.gone.clear()
    out.send(2, waiting=WAITING)
    out.send(3, waiting=WAITING)
    out.far.lose("r1")
    out.send(4, waiting=WAITING)
    told = {lease_id: call.waiting for lease_id, call in out.far.calls.items()}
    assert told == {2: WAITING, 3: None, 4: WAITING}
    out.far.lose("r1")


async def test_no_callers_context_reaches_what_ends_without_a_message(out: Out) -> None:
    """Inside a request's context the caller's disconnect would cancel what others wait for."""
    CALLER.set("somebody")
    out.far.gone.add("r1")
    out.send(1)
    out.owner.takes = lambda pending: False  # type: ignore[method-assign]
    out.send(2, "r2")
    await until(lambda: len(out.owner.ends) == 2)
    assert out.owner.callers == {""}


def listed(*names: str) -> list[RunningReplica]:
    return [RunningReplica(name) for name in names]


async def test_a_replica_that_is_no_longer_listed_is_let_go_once_its_leases_have_ended(
    out: Out,
) -> None:
    out.calls.follow(listed("r1", "r2", "r3"))
    out.send(1, "r1")
    out.send(2, "r1")
    out.calls.follow(listed("r2"))
    assert out.far.released == ["r3"]
    out.far.reply(1, reply_of(5.0))
    assert out.far.released == ["r3"]
    out.far.reply(2, reply_of(5.0))
    assert out.far.released == ["r3", "r1"]
    assert out.calls.reached == ["r2"]


async def test_a_replica_that_is_listed_again_in_time_is_not_let_go(out: Out) -> None:
    out.calls.follow(listed("r1"))
    out.send(1)
    out.calls.follow(listed())
    out.calls.follow(listed("r1"))
    out.far.reply(1, reply_of(5.0))
    assert out.far.released == []


async def test_whatever_a_replica_says_is_a_sign_of_life_but_not_every_word(
    out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(lease_calls, "monotonic", lambda: now)
    out.receive("r1", Kind.STARTED, 9)
    out.receive("r1", Kind.STARTED, 9)
    out.receive("r2", Kind.FAULT, 9, b"why")
    assert out.owner.spoke == ["r1", "r2"]
    now += 0.2
    out.receive("r1", Kind.STARTED, 9)
    assert out.owner.spoke == ["r1", "r2", "r1"]
