"""What is sent to whom, for how long, and how is a fleet of connections kept up?

`Load` is the whole description of one run. `Fleet` owns the connections of both the closed and the
open loop: it connects, reconnects (after 50 ms where refused), times out and counts. Times are
`perf_counter` seconds (uvloop's own clock has a resolution of 1 ms).
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field

from loadtests.client.caller import Caller
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
        self.callers: list[Caller] = []
        self._leavers: dict[Caller, asyncio.TimerHandle] = {}
        self._conducts: dict[Caller, Conduct] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    # ---- for subclasses -----------------------------------------------------------------

    def ready(self, caller: Caller) -> None:
        raise NotImplementedError

    def open(self) -> None:
        """One connection more."""
        caller = Caller(self)
        self.callers.append(caller)
        self._connect(caller)

    def send(self, caller: Caller, since: float | None = None) -> None:
        """Sends the next request; its latency counts from `since` (now, unless given)."""
        now = time.perf_counter()
        index = self.sent if self.load.in_order else int(self.rng.random() * len(self.load.calls))
        caller.slot = index % len(self.load.calls)
        self.sent += 1
        request = self.load.calls[caller.slot].request
        if self.load.mischief.total:
            request = self._misbehave(caller, request)
        caller.ask(request, now)
        if since is not None:
            caller.sent_at = since

    @property
    def exhausted(self) -> bool:
        return self.finishing or (0 < self.load.max_requests <= self.sent)

    # ---- Owner --------------------------------------------------------------------------

    def answered(self, caller: Caller, answer: Response) -> None:
        now = time.perf_counter()
        if self._conducts and caller in self._conducts:
            self._count_mischief(caller, f"{answer.status}", now)
        else:
            weight = self.load.calls[caller.slot].weight
            self.tally.answered(now, caller.sent_at, answer.status, weight)
        if caller.connected:
            self.ready(caller)
        self._settle()

    def broke(self, caller: Caller, kind: str) -> None:
        now = time.perf_counter()
        if caller in self._conducts:
            self._count_mischief(caller, kind, now)
        elif kind not in ("idle closed", "end"):
            self.tally.failed(now, caller.sent_at, kind)
        if not self.stopping:
            self._connect(caller)
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
        for caller in self.callers:
            caller.abandon("timeout" if caller.busy else "end")
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
            for caller in self.callers:
                if caller.busy and caller.sent_at < overdue:
                    caller.abandon("timeout")

    def _busy(self) -> bool:
        return any(caller.busy for caller in self.callers)

    async def _sleep_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))

    # ---- connecting ---------------------------------------------------------------------

    def _connect(self, caller: Caller) -> None:
        task = self._loop.create_task(self._connected(caller))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connected(self, caller: Caller) -> None:
        target = self.load.target
        while not self.stopping:
            try:
                await self._loop.create_connection(lambda: caller, target.host, target.port)
            except OSError:
                now = time.perf_counter()
                self.tally.failed(now, now, "connect")
                await asyncio.sleep(RECONNECT_S)
            else:
                break
        if caller.connected and not self.stopping:
            self.ready(caller)

    # ---- misbehaving --------------------------------------------------------------------

    def _misbehave(self, caller: Caller, request: bytes) -> bytes:
        mischief = self.load.mischief
        conduct = mischief.conduct(self.rng)
        if conduct is Conduct.PLAIN:
            return request
        self._conducts[caller] = conduct
        if conduct is Conduct.HURRY:
            return hurried(request, mischief.hurry_ms)
        leave_s = mischief.disconnect_within_s
        if conduct is Conduct.DISCONNECT:
            leave_s *= self.rng.random()
        else:
            leave_s = max(1.0, leave_s)
            request = self.rng.choice(mischief.malformed_requests)
        self._leavers[caller] = self._loop.call_later(leave_s, caller.abandon, "left")
        return request

    def _count_mischief(self, caller: Caller, what: str, now: float) -> None:
        leaver = self._leavers.pop(caller, None)
        if leaver is not None:
            leaver.cancel()
        self.tally.misbehaved(now, f"{self._conducts.pop(caller).value} {what}")
