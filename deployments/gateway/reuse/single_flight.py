"""How do identical requests share one run? Those that come while it is under way get its answer.

The first caller queues the run; the others follow it. A caller that leaves stops following, and the
last one to leave cancels the run.
- An end that concerns one caller alone (its time limit, a late refusal) is not handed to the
others: one of them queues anew and the rest follow. A fault of the input or the model is
everybody's.
- A caller does not follow a run of a less urgent priority, or one past its deadline while the
  caller is not, unless the queue refuses its own.
- A run's key names its tenant: nobody waits in another tenant's queue. Followers are bounded in
rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from deployments.contract import errors
from deployments.gateway.queues.pending_requests import PendingBatchRequest
from deployments.gateway.rows import RowAnswer
from routers.api.requests import Reason

Answers = tuple[RowAnswer, ...]
clock = time.monotonic
_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class _SharedRun:
    """One request in the queue, and all callers that wait for it."""

    key: Hashable
    pending: PendingBatchRequest
    followers: dict[Follower, None] = field(default_factory=dict)  # ordered set

    @property
    def deadline(self) -> float:
        return self.pending.request.deadline


class Follower:
    """One caller: its clock, and how it waits for a run. The caller that began a run is one too."""

    __slots__ = ("deadline", "expires", "followed", "future", "gone", "priority", "rows", "timer")

    def __init__(self, rows: int, priority: int, deadline: float, expires: float) -> None:
        self.rows, self.priority = rows, priority
        self.deadline, self.expires = deadline, expires  # absolute, on the monotonic clock
        self.followed = False  # another caller began the last run that this one waited for
        self.gone = False
        # Resolves to None when the caller has to look for another run.
        self.future: asyncio.Future[Answers | None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def leave(self) -> None:
        """The caller has disconnected: its wait ends with `CallerLeft`."""
        self.gone = True
        self._end(_left())

    def look_again(self) -> None:
        """The caller has to look for another run."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def _end(self, error: errors.HeadraceError) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def take(self, ended: asyncio.Future[Answers]) -> None:
        """The run has ended, and its answers or error are this caller's too."""
        if self.future is None or self.future.done():
            return
        error = ended.exception()
        if error is None:
            self.future.set_result(ended.result())
        else:
            self.future.set_exception(error)

    def deadline_passed(self) -> None:
        """The caller's time limit has passed, or the deadline of its run, which is now late."""
        if clock() >= self.expires:
            self._end(errors.Expired("the request's time limit passed before it was answered"))
        else:
            self.look_again()


class SingleFlight:
    """One model's runs, by what they answer."""

    def __init__(
        self,
        cancel: Callable[[PendingBatchRequest], None],  # ends a run that nobody waits for
        max_rows: int,  # of all who follow
    ) -> None:
        self._cancel = cancel
        self._max_rows = max_rows
        self._running: dict[Hashable, _SharedRun] = {}  # the newest run of each key
        self._following_rows = 0
        self.coalesced_total = 0  # callers that were answered by another caller's run

    def adopt(self, max_rows: int) -> None:
        """Another version is live: runs of the earlier one go on for those who wait for them, and
        nobody joins them any more."""
        self._max_rows = max_rows
        self._running.clear()

    @property
    def following_rows(self) -> int:
        return self._following_rows

    async def answers(
        self, key: Hashable, follower: Follower, submit: Callable[[], PendingBatchRequest]
    ) -> Answers:
        """The answers to what `key` stands for, by a run under way or by a new one (`submit`).

        Raises what `submit` raises, what ended the run, `Expired` or `CallerLeft`.
        """
        while True:
            if follower.gone:
                raise _left()
            now = clock()  # one for both: a run that turns late between them would never be left
            run = self._find_or_begin(key, follower, submit, now)
            answers = await self._wait(run, follower, now)
            if answers is not None:
                self.coalesced_total += follower.followed
                return answers

    def _find_or_begin(
        self,
        key: Hashable,
        follower: Follower,
        submit: Callable[[], PendingBatchRequest],
        now: float,
    ) -> _SharedRun:
        under_way = self._running.get(key)
        if under_way is not None and self._following_rows + follower.rows > self._max_rows:
            under_way = None
        follower.followed = True
        if under_way is not None and not _is_worse(under_way, follower, now):
            return under_way
        try:
            run = self._begin(key, submit())
        except (errors.Overloaded, errors.OverOwnLimit):
            if under_way is None:
                raise
            return under_way
        follower.followed = False
        return run

    def _begin(self, key: Hashable, pending: PendingBatchRequest) -> _SharedRun:
        """Register a new run. It replaces an older run of the same key for those who come, because
        it is more urgent or has more time."""
        run = self._running[key] = _SharedRun(key, pending)
        pending.future.add_done_callback(lambda ended: self._ended(run, ended))
        return run

    async def _wait(self, run: _SharedRun, follower: Follower, now: float) -> Answers | None:
        """The run's answers; None: the caller has to look for another run."""
        loop = asyncio.get_running_loop()
        follower.future = loop.create_future()
        run.followers[follower] = None
        following = follower.rows if follower.followed else 0
        self._following_rows += following
        if follower.followed:
            worse_at = run.deadline if now < run.deadline < follower.deadline else _NEVER
            until = min(follower.expires, worse_at)
            follower.timer = loop.call_later(max(until - now, 0.0), follower.deadline_passed)
        try:
            return await follower.future
        finally:
            self._following_rows -= following
            if follower.timer is not None:
                follower.timer.cancel()
            self._stop_waiting(run, follower)

    def _stop_waiting(self, run: _SharedRun, follower: Follower) -> None:
        del run.followers[follower]
        if not run.followers and not run.pending.future.done():
            self._forget(run)
            self._cancel(run.pending)

    def _ended(self, run: _SharedRun, ended: asyncio.Future[Answers]) -> None:
        self._forget(run)
        own = _concerns_one(ended.exception())
        for follower in run.followers:
            if own and follower.followed:
                follower.look_again()
            else:
                follower.take(ended)

    def _forget(self, run: _SharedRun) -> None:
        if self._running.get(run.key) is run:
            del self._running[run.key]


def _is_worse(run: _SharedRun, follower: Follower, now: float) -> bool:
    """Whether a run of the caller's own would be better: more urgent, or with time left."""
    if run.pending.request.priority > follower.priority:
        return True
    return run.deadline <= now < follower.deadline


def _concerns_one(error: BaseException | None) -> bool:
    """Whether a run ended for a reason that concerns only the caller that began it."""
    if isinstance(error, errors.Expired | errors.CallerLeft):
        return True
    return isinstance(error, errors.Overloaded) and error.reason == Reason.LATE.value


def _left() -> errors.HeadraceError:
    return errors.CallerLeft("the client disconnected")
