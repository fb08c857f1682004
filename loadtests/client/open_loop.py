"""The open loop: requests are sent at random times, whether or not earlier ones were answered.

Poisson arrivals from a seeded generator, sent over at most `clients` keep-alive connections.
Latency counts from the time a request was *meant* to be sent, so a server (or a pool of
connections) that falls behind pays for it: no coordinated omission. How late requests really left
is reported as `lag`; a lag of more than a few ms with free connections means that this client is
the bottleneck.

Source: Tene, "How NOT to Measure Latency"; wrk2.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from loadtests.client.connection import ClientConnection
from loadtests.client.load import Fleet, Load
from loadtests.traffic.workload import poisson_times

TIMER_S = 0.001


class OpenLoop(Fleet):
    """Waiting arrivals are first in, first out; a free connection takes the oldest."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.tally.by_arrival = True
        self._free: list[ClientConnection] = []
        self._waiting: deque[float] = deque()
        self._start = time.perf_counter()
        # Arrivals have a generator of their own: what they are doesn't move when they come.
        self._times: Iterator[float] = poisson_times(
            load.rate, load.warmup_s + load.seconds, type(self.rng)(load.seed + 1)
        )
        self._next = 0.0

    def start(self) -> None:
        for _ in range(min(self.load.clients, 32)):
            self.open()
        self._advance()

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
        """Sets the timer for the next arrival, or the end of them."""
        offset = next(self._times, None)
        if offset is None:
            return
        self._next = self._start + offset
        self._set_timer()

    def _arrive(self) -> None:
        """Sends all that is due: timers are coarser (1 ms) than arrivals may be."""
        if self.exhausted:
            return
        while self._next <= time.perf_counter():
            self._take(self._next)
            offset = next(self._times, None)
            if offset is None:
                return
            self._next = self._start + offset
        self._set_timer()

    def _set_timer(self) -> None:
        # uvloop rounds less than 0.5 ms to 0 and spins: 130 µs of CPU a request instead of 30.
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
