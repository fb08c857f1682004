"""`Load` describes one run; `Fleet` owns its connections.

The fleet serves the closed and the open loop: it connects, reconnects (after 50 ms if the server
refused), times requests out and counts. Times are `perf_counter` seconds, because uvloop's clock
has a resolution of 1 ms.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field

from loadtests.client.connection import ClientConnection
from loadtests.client.http1 import Response, Target
from loadtests.client.mischief import Conduct, Mischief, hurried
from loadtests.client.tally import LoadResult, LoadTally

RECONNECT_S = 0.05
SWEEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Call:
    """A rendered request; `weight` is the work in it (tokens), 1 where that does not matter."""

    request: bytes
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Load:
    """`clients`: connections (open loop: at most so many). `rate`: requests a second, sent open
    loop at Poisson times; 0 is the closed loop. `max_requests`: stop after so many (0: at the end
    of `seconds`). `in_order`: cycle through the calls rather than draw them. Unanswered after
    `timeout_s` is an error and the connection is reset."""

    target: Target
    calls: tuple[Call, ...]
    clients: int = 1
    seconds: float = 10.0
    warmup_s: float = 0.0
    rate: float = 0.0
    timeout_s: float = 30.0
    max_requests: int = 0
    in_order: bool = False
    seed: int = 0
    mischief: Mischief = field(default_factory=Mischief)

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError("a load needs at least one call")
        if self.clients < 1 or self.seconds <= 0 or self.warmup_s < 0 or self.rate < 0:
            raise ValueError("clients >= 1, seconds > 0, warmup_s >= 0 and rate >= 0 are needed")


class Fleet:
    """The connections of one run and the count of what comes of them. A subclass paces: it is told
    by `ready` that a connection is free, and sends by `send`."""

    def __init__(self, load: Load) -> None:
        now = time.perf_counter()
        self.load = load
        self.rng = random.Random(load.seed)
        self.tally = LoadTally(now + load.warmup_s, now + load.warmup_s + load.seconds)
        self.finishing = False  # no new arrivals; what waits is still sent
        self.stopping = False  # nothing is sent or connected any more
        self.sent = 0
        self.connections: list[ClientConnection] = []
        self._leavers: dict[ClientConnection, asyncio.TimerHandle] = {}
        self._conducts: dict[ClientConnection, Conduct] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    # ---- for subclasses -----------------------------------------------------------------

    def ready(self, connection: ClientConnection) -> None:
        raise NotImplementedError

    def open(self) -> None:
        """One connection more."""
        connection = ClientConnection(self)
        self.connections.append(connection)
        self._connect(connection)

    def send(self, connection: ClientConnection, since: float | None = None) -> None:
        """Sends the next request; its latency counts from `since` (now, unless given)."""
        now = time.perf_counter()
        index = self.sent if self.load.in_order else int(self.rng.random() * len(self.load.calls))
        connection.slot = index % len(self.load.calls)
        self.sent += 1
        request = self.load.calls[connection.slot].request
        if self.load.mischief.total:
            request = self._misbehave(connection, request)
        connection.ask(request, now)
        if since is not None:
            connection.sent_at = since

    @property
    def exhausted(self) -> bool:
        return self.finishing or (0 < self.load.max_requests <= self.sent)

    # ---- Owner --------------------------------------------------------------------------

    def answered(self, connection: ClientConnection, answer: Response) -> None:
        now = time.perf_counter()
        if self._conducts and connection in self._conducts:
            self._count_mischief(connection, f"{answer.status}", now)
        else:
            weight = self.load.calls[connection.slot].weight
            self.tally.answered(now, connection.sent_at, answer.status, weight)
        if connection.connected:
            self.ready(connection)
        self._settle()

    def broke(self, connection: ClientConnection, kind: str) -> None:
        now = time.perf_counter()
        if connection in self._conducts:
            self._count_mischief(connection, kind, now)
        elif kind not in ("idle closed", "end"):
            self.tally.failed(now, connection.sent_at, kind)
        if not self.stopping:
            self._connect(connection)
        self._settle()

    # ---- the run ------------------------------------------------------------------------

    async def run(self) -> LoadResult:
        sweeper = asyncio.create_task(self._sweep())
        await self._sleep_until(self.tally.begin)
        cpu_s = time.process_time()
        await self._wait_for_end()
        self.tally.end = min(self.tally.end, time.perf_counter())
        cpu_s = time.process_time() - cpu_s
        self.finishing = True
        await self._drain()
        sweeper.cancel()
        return LoadResult.of(self.tally, self.tally.end - self.tally.begin, cpu_s)

    async def _wait_for_end(self) -> None:
        await self._settled_within(self.tally.end - time.perf_counter())

    async def _drain(self) -> None:
        """Lets what is out be answered, then closes every connection."""
        if self._busy():
            self._settled.clear()
            await self._settled_within(self.load.timeout_s)
        self.stopping = True
        for task in list(self._connecting):
            task.cancel()
        for connection in self.connections:
            connection.abandon("timeout" if connection.busy else "end")
        await asyncio.sleep(0)

    async def _settled_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), max(0.0, seconds))

    def _settle(self) -> None:
        if self.exhausted and not self._busy():
            self._settled.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            overdue = time.perf_counter() - self.load.timeout_s
            for connection in self.connections:
                if connection.busy and connection.sent_at < overdue:
                    connection.abandon("timeout")

    def _busy(self) -> bool:
        return any(connection.busy for connection in self.connections)

    async def _sleep_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))

    # ---- connecting ---------------------------------------------------------------------

    def _connect(self, connection: ClientConnection) -> None:
        task = self._loop.create_task(self._connected(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connected(self, connection: ClientConnection) -> None:
        target = self.load.target
        while not self.stopping:
            try:
                await self._loop.create_connection(
                    lambda: connection, target.host, target.port, ssl=target.context
                )
            except OSError:
                now = time.perf_counter()
                self.tally.failed(now, now, "connect")
                await asyncio.sleep(RECONNECT_S)
            else:
                break
        if connection.connected and not self.stopping:
            self.ready(connection)

    # ---- misbehaving --------------------------------------------------------------------

    def _misbehave(self, connection: ClientConnection, request: bytes) -> bytes:
        mischief = self.load.mischief
        conduct = mischief.conduct(self.rng)
        if conduct is Conduct.PLAIN:
            return request
        self._conducts[connection] = conduct
        if conduct is Conduct.HURRY:
            return hurried(request, mischief.hurry_ms)
        leave_s = mischief.disconnect_within_s
        if conduct is Conduct.DISCONNECT:
            leave_s *= self.rng.random()
        else:
            leave_s = max(1.0, leave_s)
            request = self.rng.choice(mischief.malformed_requests)
        self._leavers[connection] = self._loop.call_later(leave_s, connection.abandon, "left")
        return request

    def _count_mischief(self, connection: ClientConnection, what: str, now: float) -> None:
        leaver = self._leavers.pop(connection, None)
        if leaver is not None:
            leaver.cancel()
        self.tally.misbehaved(now, f"{self._conducts.pop(connection).value} {what}")
