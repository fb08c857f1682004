"""A load of requests that are rendered beforehand: closed loop or open loop, and what came of it.

In a closed loop each of N keep-alive connections sends its next request when its last is answered.
In an open loop (`rate`) the same connections carry Poisson arrivals, and latency counts from when a
request was *meant* to be sent, so a server that falls behind pays for it: no coordinated omission.
Costs at most 40 µs of CPU a request, so that on a shared machine it measures the server rather than
itself. Only what ends in the measured time is counted (open loop: what was meant to be sent in it).
Times are `perf_counter` seconds, because uvloop's clock has a resolution of 1 ms.

Sources: Schroeder et al., "Open Versus Closed"; Tene, "How NOT to Measure Latency".
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from array import array
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtests.client.client_faults import ClientFaults, Conduct, hurried
from loadtests.client.connection import ClientConnection
from loadtests.client.http1 import Response, Target
from loadtests.client.player import run_loop
from loadtests.traffic.workload import poisson_times

RECONNECT_S = 0.05
SWEEP_S = 0.1
TIMER_S = 0.001
FIRST_CONNECTIONS = 32


@dataclass(frozen=True, slots=True)
class Call:
    """A rendered request; `weight` is the work in it (tokens), 1 where that does not matter."""

    request: bytes
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Load:
    """`clients`: connections (open loop: at most so many). `rate`: requests a second, sent open
    loop at Poisson times; 0 is the closed loop. `max_requests`: stop after so many (0: at the end
    of `seconds`). Unanswered after `timeout_s` is an error and the connection is reset."""

    target: Target
    calls: tuple[Call, ...]
    clients: int = 1
    seconds: float = 10.0
    warmup_s: float = 0.0
    rate: float = 0.0
    timeout_s: float = 30.0
    max_requests: int = 0
    seed: int = 0
    client_faults: ClientFaults = field(default_factory=ClientFaults)

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError("a load needs at least one call")
        if self.clients < 1 or self.seconds <= 0 or self.warmup_s < 0 or self.rate < 0:
            raise ValueError("clients >= 1, seconds > 0, warmup_s >= 0 and rate >= 0 are needed")


# ---- what came of it -----------------------------------------------------------------------------


@dataclass(slots=True)
class LoadTally:
    """Counts while a load runs, of what ends (or, `by_arrival`, was due) in [begin, end]."""

    begin: float
    end: float = math.inf
    by_arrival: bool = False
    latencies_s: array[float] = field(default_factory=lambda: array("d"))  # of ok answers
    lags_s: array[float] = field(default_factory=lambda: array("d"))
    weight: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    client_faults: Counter[str] = field(default_factory=Counter)  # misbehaving requests stand apart

    def open_at(self, at: float) -> bool:
        return self.begin <= at <= self.end

    def answered(self, now: float, since: float, status: int, weight: int) -> None:
        if not self.open_at(since if self.by_arrival else now):
            return
        if 200 <= status < 300:
            self.latencies_s.append(now - since)
            self.weight += weight
        else:
            self.errors[f"status {status}"] += 1

    def failed(self, now: float, since: float, kind: str) -> None:
        if self.open_at(since if self.by_arrival else now):
            self.errors[kind] += 1

    def misbehaved(self, now: float, kind: str) -> None:
        if self.open_at(now):
            self.client_faults[kind] += 1


@dataclass(frozen=True, slots=True)
class LoadResult:
    """`latencies_ms`: float64 [ok], unordered. `lags_ms`: open loop, by how much requests were
    sent late. `weight`: of ok answers (tokens)."""

    seconds: float
    latencies_ms: np.ndarray[Any, Any]
    weight: int
    errors: dict[str, int]
    client_faults: dict[str, int]
    client_cpu_s: float
    lags_ms: np.ndarray[Any, Any]

    @classmethod
    def of(cls, tally: LoadTally, seconds: float, client_cpu_s: float) -> LoadResult:
        latencies_ms, lags_ms = (np.array(of) * 1e3 for of in (tally.latencies_s, tally.lags_s))
        errors, client_faults = dict(tally.errors), dict(tally.client_faults)
        return cls(
            seconds, latencies_ms, tally.weight, errors, client_faults, client_cpu_s, lags_ms
        )

    @property
    def ok(self) -> int:
        return int(self.latencies_ms.size)

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def answers(self) -> int:
        return self.ok + self.failed + sum(self.client_faults.values())

    @property
    def rate(self) -> float:
        """Ok answers a second."""
        return self.ok / self.seconds if self.seconds else 0.0

    @property
    def weight_rate(self) -> float:
        return self.weight / self.seconds if self.seconds else 0.0

    @property
    def cpu_us(self) -> float:
        """The client's own CPU a request, microseconds."""
        return self.client_cpu_s / self.answers * 1e6 if self.answers else math.nan

    def latency_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_ms, percent)) if self.ok else math.nan

    @property
    def p50_ms(self) -> float:
        return self.latency_ms(50)

    @property
    def p99_ms(self) -> float:
        return self.latency_ms(99)

    def lag_ms(self, percent: float) -> float:
        return float(np.percentile(self.lags_ms, percent)) if self.lags_ms.size else 0.0

    def within(self, limit_ms: float) -> float:
        """The share of all requests that were answered ok within the limit."""
        counted = self.ok + self.failed
        return float((self.latencies_ms <= limit_ms).sum()) / counted if counted else 0.0

    def summary(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 3),
            "ok": self.ok,
            "errors": self.errors,
            "rate": round(self.rate, 1),
            "weight_rate": round(self.weight_rate, 1),
            **{f"p{p}_ms": round(self.latency_ms(p), 3) for p in (50, 90, 99)},
            "max_ms": round(self.latency_ms(100), 3),
            "client_cpu_us": round(self.cpu_us, 1),
            "lag_p99_ms": round(self.lag_ms(99), 3),
            "client_faults": self.client_faults,
        }


# ---- sending -------------------------------------------------------------------------------------


class ClosedLoop:
    """The connections of one run: connects, reconnects (after 50 ms if the server refused), times
    requests out and counts. Each free connection sends at once, until the run ends."""

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

    def start(self) -> None:
        for _ in range(self.load.clients):
            self.open()

    def ready(self, connection: ClientConnection) -> None:
        """The connection is free."""
        if not self.exhausted:
            self.send(connection)

    def open(self) -> None:
        """One connection more."""
        connection = ClientConnection(self)
        self.connections.append(connection)
        self._connect(connection)

    def send(self, connection: ClientConnection, since: float | None = None) -> None:
        """Sends the next request; its latency counts from `since` (now, unless given)."""
        now = time.perf_counter()
        connection.slot = int(self.rng.random() * len(self.load.calls))
        self.sent += 1
        request = self.load.calls[connection.slot].request
        if self.load.client_faults.total:
            request = self._misbehave(connection, request)
        connection.ask(request, now)
        if since is not None:
            connection.sent_at = since

    @property
    def exhausted(self) -> bool:
        return self.finishing or (0 < self.load.max_requests <= self.sent)

    def misbehaves(self, connection: ClientConnection) -> bool:
        return connection in self._conducts

    # ---- what connections tell ------------------------------------------------------------------

    def answered(self, connection: ClientConnection, answer: Response) -> None:
        now = time.perf_counter()
        if self._conducts and connection in self._conducts:
            self._count_client_faults(connection, f"{answer.status}", now)
        else:
            weight = self.load.calls[connection.slot].weight
            self.tally.answered(now, connection.sent_at, answer.status, weight)
        if connection.connected:
            self.ready(connection)
        self._settle()

    def broke(self, connection: ClientConnection, kind: str) -> None:
        now = time.perf_counter()
        if connection in self._conducts:
            self._count_client_faults(connection, kind, now)
        elif kind not in ("idle closed", "end"):
            self.tally.failed(now, connection.sent_at, kind)
        if not self.stopping:
            self._connect(connection)
        self._settle()

    # ---- the run --------------------------------------------------------------------------------

    async def run(self) -> LoadResult:
        self.start()
        sweeper = asyncio.create_task(self._sweep())
        await asyncio.sleep(max(0.0, self.tally.begin - time.perf_counter()))
        cpu_s = time.process_time()
        await self._settled_within(self.tally.end - time.perf_counter())
        self.tally.end = min(self.tally.end, time.perf_counter())
        cpu_s = time.process_time() - cpu_s
        self.finishing = True
        await self._drain()
        sweeper.cancel()
        return LoadResult.of(self.tally, self.tally.end - self.tally.begin, cpu_s)

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

    # ---- misbehaving ----------------------------------------------------------------------------

    def _misbehave(self, connection: ClientConnection, request: bytes) -> bytes:
        client_faults = self.load.client_faults
        conduct = client_faults.conduct(self.rng)
        if conduct is Conduct.PLAIN:
            return request
        self._conducts[connection] = conduct
        if conduct is Conduct.HURRY:
            return hurried(request, client_faults.hurry_ms)
        leave_s = client_faults.disconnect_within_s
        if conduct is Conduct.DISCONNECT:
            leave_s *= self.rng.random()
        else:
            leave_s = max(1.0, leave_s)
            request = self.rng.choice(client_faults.malformed_requests)
        self._leavers[connection] = self._loop.call_later(leave_s, connection.abandon, "left")
        return request

    def _count_client_faults(self, connection: ClientConnection, what: str, now: float) -> None:
        leaver = self._leavers.pop(connection, None)
        if leaver is not None:
            leaver.cancel()
        self.tally.misbehaved(now, f"{self._conducts.pop(connection).value} {what}")


class OpenLoop(ClosedLoop):
    """Waiting arrivals are first in, first out; a free connection takes the oldest. How late
    requests really left is their lag: one of more than a few ms with free connections means that
    this client is the bottleneck."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.tally.by_arrival = True
        self._free: list[ClientConnection] = []
        self._waiting: deque[float] = deque()
        self._start = time.perf_counter()
        # Arrivals have a generator of their own: what they are doesn't move when they come.
        rng = random.Random(load.seed + 1)
        self._times = poisson_times(load.rate, load.warmup_s + load.seconds, rng)
        self._next: float | None = None

    def start(self) -> None:
        for _ in range(min(self.load.clients, FIRST_CONNECTIONS)):
            self.open()
        self._advance()
        self._set_timer()

    def ready(self, connection: ClientConnection) -> None:
        if self._waiting:
            self._send_at(connection, self._waiting.popleft())
        else:
            self._free.append(connection)

    def broke(self, connection: ClientConnection, kind: str) -> None:
        if connection in self._free:
            self._free.remove(connection)
        super().broke(connection, kind)

    def _busy(self) -> bool:
        return bool(self._waiting) or super()._busy()

    async def _drain(self) -> None:
        await super()._drain()
        for meant_at in self._waiting:
            self.tally.failed(time.perf_counter(), meant_at, "unsent")

    def _send_at(self, connection: ClientConnection, meant_at: float) -> None:
        now = time.perf_counter()
        if self.tally.open_at(meant_at):
            self.tally.lags_s.append(now - meant_at)
        self.send(connection, since=meant_at)

    def _advance(self) -> None:
        offset = next(self._times, None)
        self._next = None if offset is None else self._start + offset

    def _arrive(self) -> None:
        """Sends all that is due: timers are coarser (1 ms) than arrivals may be."""
        if self.exhausted:
            return
        while self._next is not None and self._next <= time.perf_counter():
            self._take(self._next)
            self._advance()
        self._set_timer()

    def _set_timer(self) -> None:
        # uvloop rounds less than 0.5 ms to 0 and spins: 130 µs of CPU a request instead of 30.
        if self._next is not None:
            delay_s = max(TIMER_S, self._next - time.perf_counter())
            self._loop.call_later(delay_s, self._arrive)

    def _take(self, meant_at: float) -> None:
        while self._free:
            connection = self._free.pop()
            if connection.connected:
                self._send_at(connection, meant_at)
                return
        self._waiting.append(meant_at)
        if len(self.connections) < self.load.clients:
            self.open()


async def run_async(load: Load) -> LoadResult:
    return await (OpenLoop(load) if load.rate else ClosedLoop(load)).run()


def run(load: Load) -> LoadResult:
    """Runs the load to its end on a loop of its own."""
    return run_loop(run_async(load))
