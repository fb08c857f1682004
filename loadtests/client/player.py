"""Plays a scenario's requests to a real server.

Requests are sent at the times of the plan (`traffic/plan.py`), open loop, over at most
`connections` keep-alive connections. Refused and unanswered requests are sent again as their
tenant's `retry` says, while the scenario lasts; closed loops send their next request; callers who
leave disconnect. Each try becomes one `PlayedRequest`, which is passed to `on_end`. The caller
renders a planned request to bytes.

Times are seconds from the start of the warm-up. Latency counts from when a request was meant to be
sent (no coordinated omission); `left_s` is when it was really sent.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from loadtests.client.connection import ClientConnection
from loadtests.client.http1 import Response, Target
from loadtests.client.protocols.types import AnswerFacts, ResponseListener
from loadtests.traffic.plan import Planned, TrafficPlan

Result = TypeVar("Result")
SWEEP_S = 0.1
_CALLERS_FAULT = {400, 401, 403, 404, 405, 413, 415}  # asking again would not help


@dataclass(frozen=True, slots=True)
class PlayedRequest:
    """How one try ended."""

    planned: Planned
    left_s: float  # when it was really sent
    ended_s: float
    status: int  # 0: it was not answered, because of `trouble`
    trouble: str = ""
    # When this client began with it: `taken_s - planned.at_s` is the client's own delay; from then
    # until `left_s` it waited for a connection.
    taken_s: float = 0.0
    head: bytes = b""  # of the answer
    heard: AnswerFacts | None = None  # what the answer's body said

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300 and not self.trouble

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.planned.at_s

    @property
    def answer_s(self) -> float:
        """Seconds from when it was really sent: the server's time and the network's."""
        return self.ended_s - self.left_s


def nobody(planned: Planned) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class PlayerSettings:
    """How a scenario is played to a server."""

    target: Target
    render: Callable[[Planned], bytes]
    # The listener that reads a request's answer; None: the answer's status is enough.
    listen: Callable[[Planned], ResponseListener | None] = nobody
    connections: int = 1024  # most connections
    ready: int = 32  # connections that are opened at the start
    timeout_s: float = 30.0  # a try without an answer by then has ended


@dataclass(slots=True)
class _Try:
    planned: Planned
    taken_s: float
    left_s: float
    listener: ResponseListener | None = None
    leaves: asyncio.TimerHandle | None = None


class Player:
    """Also the owner of its connections; lives for one run on the running loop."""

    def __init__(
        self, plan: TrafficPlan, stand: PlayerSettings, on_end: Callable[[PlayedRequest], None]
    ) -> None:
        self._plan = plan
        self._stand = stand
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._coming = plan.requests()
        self._next = next(self._coming, None)
        self._again: list[tuple[float, int, Planned]] = []
        self._numbers = itertools.count()
        self._waiting: deque[tuple[Planned, float]] = deque()
        self._under_way: dict[ClientConnection, _Try] = {}
        self._connections: set[ClientConnection] = set()
        self._free: list[ClientConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm = alarm(self._loop, self._advance)
        self._done = asyncio.Event()
        self._start = time.perf_counter()
        self.max_connections = 0

    async def run(self, start_at: float = 0.0) -> float:
        """Plays it to the end, retries included; this process's CPU seconds. `start_at`: on
        `perf_counter`, when the warm-up begins; as soon as connections are there, if that is
        later."""
        for _ in range(min(self._stand.ready, self._stand.connections)):
            self._open()
        await asyncio.sleep(max(SWEEP_S, start_at - time.perf_counter()))
        cpu_s = time.process_time()
        self._start = time.perf_counter()
        self._advance()
        while not self._done.is_set():
            self._end_overdue()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), SWEEP_S)
        cpu_s = time.process_time() - cpu_s
        self._alarm.close()
        for task in list(self._tasks):
            task.cancel()
        for connection in self._connections:
            connection.abandon("end")
        await asyncio.sleep(0)
        return cpu_s

    def stop(self) -> None:
        """Ends it now; what is under way is not told of."""
        self._next, self._coming = None, iter(())
        self._again.clear()
        self._waiting.clear()
        self._under_way.clear()
        self._done.set()

    # ---- Owner --------------------------------------------------------------------------------

    def answered(self, connection: ClientConnection, answer: Response) -> None:
        if connection not in self._under_way:
            return
        listener = self._under_way[connection].listener
        if listener is not None:
            listener.ended(answer)
        trouble = "" if listener is None else listener.heard.trouble
        self._end(connection, answer.status, trouble, answer)
        if connection.connected:
            self._ready(connection)
        self._go_on()

    def broke(self, connection: ClientConnection, kind: str) -> None:
        if connection in self._under_way:
            self._end(connection, 0, kind)
        if connection in self._free:
            self._free.remove(connection)
        self._connections.discard(connection)
        if not self._done.is_set() and (
            self._waiting or len(self._connections) < self._stand.ready
        ):
            self._open()
        self._go_on()

    # ---- what is due ----------------------------------------------------------------------------

    def _advance(self) -> None:
        """Sends all that is due and sets the alarm for what comes next, or ends."""
        if self._done.is_set():
            return
        now_s = self._now_s()
        while (due := self._due(now_s)) is not None:
            self._take(due)
        self._set_timer()
        self._settle()

    def _go_on(self) -> None:
        """Sends at once what an end has led to, such as a closed loop's next."""
        if self._again and self._again[0][0] <= self._now_s():
            self._advance()

    def _set_timer(self) -> None:
        wait_s = self._next_s() - self._now_s()
        if wait_s < inf:
            self._alarm.ring_in(wait_s)

    def _due(self, now_s: float) -> Planned | None:
        if self._next_s() > now_s:
            return None
        if self._again and (self._next is None or self._again[0][0] < self._next.at_s):
            return heapq.heappop(self._again)[2]
        due, self._next = self._next, next(self._coming, None)
        return due

    def _next_s(self) -> float:
        coming = inf if self._next is None else self._next.at_s
        return min(coming, self._again[0][0]) if self._again else coming

    def _take(self, planned: Planned) -> None:
        taken_s = self._now_s()
        while self._free:
            connection = self._free.pop()
            if connection.connected:
                self._send(connection, planned, taken_s)
                return
        self._waiting.append((planned, taken_s))
        if len(self._connections) < self._stand.connections:
            self._open()

    def _ready(self, connection: ClientConnection) -> None:
        if self._waiting:
            self._send(connection, *self._waiting.popleft())
        else:
            self._free.append(connection)

    def _send(self, connection: ClientConnection, planned: Planned, taken_s: float) -> None:
        request = self._stand.render(planned)
        listener = self._stand.listen(planned)
        now = time.perf_counter()
        left_s = now - self._start
        this = self._under_way[connection] = _Try(planned, taken_s, left_s, listener)
        if planned.leave_s is not None:
            after_s = max(0.0, planned.at_s + planned.leave_s - left_s)
            this.leaves = self._loop.call_later(after_s, connection.abandon, "left")
        if listener is None or not listener.streams:
            connection.ask(request, now)
        else:
            connection.ask(request, now, lambda data: listener.piece(data, self._now_s()))

    # ---- what has ended --------------------------------------------------------------------------

    def _end(
        self,
        connection: ClientConnection,
        status: int,
        trouble: str,
        answer: Response | None = None,
    ) -> None:
        this = self._under_way.pop(connection)
        if this.leaves is not None:
            this.leaves.cancel()
        planned, now_s = this.planned, self._now_s()
        head = b"" if answer is None else answer.head
        heard = None if this.listener is None else this.listener.heard
        played = PlayedRequest(
            planned, this.left_s, now_s, status, trouble, this.taken_s, head, heard
        )  # fmt: skip
        self._on_end(played)
        self._follow(played, 0.0 if answer is None else answer.retry_after_s)
        self._settle()

    def _follow(self, played: PlayedRequest, retry_after_s: float) -> None:
        """A retry, or a closed loop's next."""
        planned, following = played.planned, None
        final = played.ok or played.status in _CALLERS_FAULT or played.trouble == "left"
        if not (final or planned.malformed):
            following = self._plan.again(planned, played.ended_s, retry_after_s)
        following = following or self._plan.next_in_loop(planned, played.ended_s)
        # After the scenario's end nothing counts any more, and a `Retry-After` may be a minute.
        if following is not None and following.at_s < self._plan.scenario.run_s:
            heapq.heappush(self._again, (following.at_s, next(self._numbers), following))
            if following.at_s > played.ended_s and self._again[0][2] is following:
                self._set_timer()

    def _end_overdue(self) -> None:
        limit_s = self._now_s() - self._stand.timeout_s
        for connection in [c for c, this in self._under_way.items() if this.left_s < limit_s]:
            connection.abandon("timeout")

    def _settle(self) -> None:
        if not (self._next or self._again or self._waiting or self._under_way):
            self._done.set()

    # ---- connecting ------------------------------------------------------------------------------

    def _open(self) -> None:
        connection = ClientConnection(self)
        self._connections.add(connection)
        self.max_connections = max(self.max_connections, len(self._connections))
        task = self._loop.create_task(self._connected(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, connection: ClientConnection) -> None:
        target = self._stand.target
        try:
            await self._loop.create_connection(
                lambda: connection, target.host, target.port, ssl=target.context
            )
        except OSError:
            self._connections.discard(connection)
            if self._waiting:  # so that a server that is down ends requests instead of keeping them
                self._refuse(*self._waiting.popleft())
            return
        self._ready(connection)

    def _refuse(self, planned: Planned, taken_s: float) -> None:
        connection = ClientConnection(self)
        self._under_way[connection] = _Try(planned, taken_s, self._now_s())
        self._end(connection, 0, "connect")
        self._go_on()

    def _now_s(self) -> float:
        return time.perf_counter() - self._start


def play(
    plan: TrafficPlan, stand: PlayerSettings, on_end: Callable[[PlayedRequest], None]
) -> float:
    """Plays a scenario to its end on a loop of its own (uvloop where it is there); CPU seconds."""

    async def played() -> float:
        return await Player(plan, stand, on_end).run()

    return run_loop(played())


def run_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """On a loop of its own, uvloop where it is there."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


MIN_S = 0.0001  # what comes closer together leaves together
_MIN_OF_LOOPS_S = 0.001  # uvloop rounds less than 0.5 ms to 0 and spins
_CLOCK_MONOTONIC = 1


class Alarm:
    """Wakes a loop within a tenth of a millisecond of when it should.

    A loop's own timers are exact to a millisecond (epoll's and libuv's unit), which at 5,000
    requests a second is five of them, and as long as a fast server takes. Linux's timerfd is exact
    to microseconds and costs a few of them; elsewhere the loop's timers do. One at a time: setting
    it anew moves it. `close` it before its loop. Source: timerfd_create(2).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def ring_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(_MIN_OF_LOOPS_S, seconds), self._ring)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _ItimerSpec(ctypes.Structure):
    """Interval, then the first time; seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class LinuxAlarm(Alarm):
    """Raises OSError where there is no timerfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        super().__init__(loop, ring)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            self._set = libc.timerfd_settime
            self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:
            raise OSError("no timerfd") from None
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _ItimerSpec()
        loop.add_reader(self._fd, self._rung)

    def ring_in(self, seconds: float) -> None:
        self._spec.s, self._spec.ns = divmod(int(max(MIN_S, seconds) * 1e9), 1_000_000_000)
        self._set(self._fd, 0, ctypes.byref(self._spec), None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _rung(self) -> None:
        with suppress(BlockingIOError):  # set anew since
            os.read(self._fd, 8)
            self._ring()


def alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    if sys.platform == "linux":
        with suppress(OSError):
            return LinuxAlarm(loop, ring)
    return Alarm(loop, ring)
