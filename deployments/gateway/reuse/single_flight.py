"""Is an identical request under way? Then its answer will do: one run, many callers.

The first caller queues; those who come while it waits or runs take a seat beside it. From then on
nobody owns the run: who leaves gives up a seat, the last one to leave cancels it. Each caller has
its own clock. What concerns one caller alone (its time was up, it was late and turned away) is not
handed to the others: one of them queues anew and the rest follow that one, so that a failure starts
one run, never as many as there are callers. A fault of the input or of the model is everybody's.

A caller does not sit down beside a run that would be worse than its own, of less urgent priority
or past its deadline while the caller is not, unless the queue refuses its own; and it leaves a run
that passes its deadline. Keys are to tell tenants apart, public answers or not: a run waits in its
own tenant's queue, and nobody is to wait there for another's burst. Those who follow are bounded in
rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from deployments.contract import errors
from deployments.gateway.queues.pending_requests import Ticket
from deployments.gateway.rows.types import RowAnswer
from routers.types import Reason

Answers = tuple[RowAnswer, ...]
clock = time.monotonic
_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class _Run:
    """One ticket in the queue and everybody who waits for it."""

    key: Hashable
    ticket: Ticket
    seats: dict[Follower, None] = field(default_factory=dict)

    @property
    def deadline(self) -> float:
        return self.ticket.request.deadline


class Follower:
    """One caller's stay: its clock, and where it waits at the moment. `deadline` and `expires`:
    absolute, monotonic. `followed`: the last run it waited for was begun by another."""

    __slots__ = ("deadline", "expires", "followed", "future", "gone", "priority", "rows", "timer")

    def __init__(self, rows: int, priority: int, deadline: float, expires: float) -> None:
        self.rows, self.priority = rows, priority
        self.deadline, self.expires = deadline, expires
        self.followed = self.gone = False
        # Resolves to None when the caller has to look for another run.
        self.future: asyncio.Future[Answers | None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def leave(self) -> None:
        """The caller left: its wait ends with `CallerLeft`."""
        self.gone = True
        self._end(_left())

    def look_again(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def _end(self, error: errors.HeadraceError) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def take(self, ended: asyncio.Future[Answers]) -> None:
        """How a run ended, which concerns this caller."""
        if self.future is None or self.future.done():
            return
        error = ended.exception()
        if error is None:
            self.future.set_result(ended.result())
        else:
            self.future.set_exception(error)

    def time_is_up(self) -> None:
        """Its own time, or that of the run, which is now late."""
        if clock() >= self.expires:
            self._end(errors.Expired("the request's time was up before it could be answered"))
        else:
            self.look_again()


class SingleFlight:
    """One model's runs by what they answer. `cancel` ends a ticket that nobody waits for."""

    def __init__(self, cancel: Callable[[Ticket], None], most_rows: int) -> None:
        self._cancel = cancel
        self._most_rows = most_rows
        self._running: dict[Hashable, _Run] = {}
        self._following_rows = 0
        self.coalesced_total = 0

    def adopt(self, most_rows: int) -> None:
        """Another version is live: what runs ends for those who wait for it, nobody joins it."""
        self._most_rows = most_rows
        self._running.clear()

    @property
    def following_rows(self) -> int:
        return self._following_rows

    async def answers(self, key: Hashable, seat: Follower, submit: Callable[[], Ticket]) -> Answers:
        """The answers to what `key` stands for, by a run that is under way or by a new ticket.

        Raises what `submit` raises, what ended the run, `Expired` or `CallerLeft`.
        """
        while True:
            if seat.gone:
                raise _left()
            run = self._find_or_begin(key, seat, submit)
            answers = await self._sit(run, seat)
            if answers is not None:
                self.coalesced_total += seat.followed
                return answers

    def _find_or_begin(self, key: Hashable, seat: Follower, submit: Callable[[], Ticket]) -> _Run:
        there = self._running.get(key)
        if there is not None and self._following_rows + seat.rows > self._most_rows:
            there = None
        seat.followed = True
        if there is not None and not _worse(there, seat):
            return there
        try:
            run = self._begin(key, submit())
        except (errors.Overloaded, errors.OverOwnLimit):
            if there is None:
                raise
            return there
        seat.followed = False
        return run

    def _begin(self, key: Hashable, ticket: Ticket) -> _Run:
        """The newest run is the one to join: it is more urgent, or has more time."""
        run = self._running[key] = _Run(key, ticket)
        ticket.future.add_done_callback(lambda ended: self._ended(run, ended))
        return run

    async def _sit(self, run: _Run, seat: Follower) -> Answers | None:
        loop = asyncio.get_running_loop()
        seat.future = loop.create_future()
        run.seats[seat] = None
        following = seat.rows if seat.followed else 0
        self._following_rows += following
        if seat.followed:
            now = clock()
            worse_at = run.deadline if now < run.deadline < seat.deadline else _NEVER
            until = min(seat.expires, worse_at)
            seat.timer = loop.call_later(max(until - now, 0.0), seat.time_is_up)
        try:
            return await seat.future
        finally:
            self._following_rows -= following
            if seat.timer is not None:
                seat.timer.cancel()
            self._rise(run, seat)

    def _rise(self, run: _Run, seat: Follower) -> None:
        del run.seats[seat]
        if not run.seats and not run.ticket.future.done():
            self._forget(run)
            self._cancel(run.ticket)

    def _ended(self, run: _Run, ended: asyncio.Future[Answers]) -> None:
        self._forget(run)
        own = _concerns_one(ended.exception())
        for seat in run.seats:
            if own and seat.followed:
                seat.look_again()
            else:
                seat.take(ended)

    def _forget(self, run: _Run) -> None:
        if self._running.get(run.key) is run:
            del self._running[run.key]


def _worse(run: _Run, seat: Follower) -> bool:
    """Whether the caller does better with a run of its own."""
    if run.ticket.request.priority > seat.priority:
        return True
    return run.deadline <= clock() < seat.deadline


def _concerns_one(error: BaseException | None) -> bool:
    """Whether it ended for a reason of the caller that began it."""
    if isinstance(error, errors.Expired | errors.CallerLeft):
        return True
    return isinstance(error, errors.Overloaded) and error.reason == Reason.LATE.value


def _left() -> errors.HeadraceError:
    return errors.CallerLeft("the client left")
