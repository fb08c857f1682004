"""A driver that turns dispatcher tests into short stories and checks every invariant on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from routers.api.actions import Action, Dispatch, WakeAt
from routers.api.events import Arrive, Cancel, Closed, Event, Opened, Progress, Replicas, Tick
from routers.api.requests import Generation, LeaseEnd, Replica, ReplicaKind, Report, Request, Tokens
from routers.api.settings import DispatcherSettings
from routers.schedulers import AnyScheduler, scheduler_of
from routers.stream.scheduler import StreamScheduler
from tests.routers.invariants import check


@dataclass
class Driver:
    """Time stands until a step says otherwise. `timer` is what the one timer is set to."""

    dispatcher: AnyScheduler
    now: float = 0.0
    timer: float | None = None
    open: dict[int, Dispatch] = field(default_factory=dict)

    def step(self, event: Event, at: float | None = None) -> list[Action]:
        """All actions but the timer's, which is kept in `timer`."""
        self.now = self.now if at is None else at
        return self.take_in(self.dispatcher.step(event, self.now))

    def take_in(self, actions: list[Action]) -> list[Action]:
        check(self.dispatcher)
        wakes = [action for action in actions if isinstance(action, WakeAt)]
        assert len(wakes) <= 1
        if wakes:
            self.timer = wakes[0].at
            assert self.timer > self.now
        for action in actions:
            if isinstance(action, Dispatch):
                self.open[action.lease_id] = action
        return [action for action in actions if not isinstance(action, WakeAt)]

    def arrive(
        self,
        request_id: int,
        *lengths: int,
        at: float | None = None,
        slo_s: float = 10.0,
        timeout_s: float = 100.0,
        **more: Any,
    ) -> list[Action]:
        """`more`: further fields of the request (`retryable`, `suspect` …)."""
        now = self.now if at is None else at
        if isinstance(self.dispatcher, StreamScheduler):
            more.setdefault("generation", Generation(0))
        request = Request(request_id, lengths or (10,), now, now + slo_s, now + timeout_s, **more)
        return self.step(Arrive(request), at)

    def generate(
        self, request_id: int, prompt: int, most: int, blocks: tuple[int, ...] = (), **more: Any
    ) -> list[Action]:
        """`most`: output tokens at most."""
        return self.arrive(request_id, prompt, generation=Generation(most, 1, blocks), **more)

    def replicas(self, *ids: str, capacity: float = 1, at: float | None = None) -> list[Action]:
        return self.step(Replicas(tuple(Replica(each, capacity) for each in ids)), at)

    def streams(self, *ids: str, capacity: float, max_leases: int = 0) -> list[Action]:
        kind = ReplicaKind.STREAM
        return self.step(Replicas(tuple(Replica(each, capacity, kind, max_leases) for each in ids)))

    def moves(
        self,
        lease: Dispatch,
        read: int,
        output: int,
        *,
        cached: int = 0,
        held: float | None = None,
        at: float | None = None,
    ) -> list[Action]:
        """A stream has had so many tokens, and holds them all unless it is said otherwise."""
        held = read + output if held is None else held
        tokens = Tokens(read, cached, output)
        return self.step(Progress(lease.lease_id, 0.0, held, tokens), at)

    def close(
        self,
        lease: Dispatch,
        end: LeaseEnd = LeaseEnd.DONE,
        at: float | None = None,
        failed: tuple[int, ...] = (),
        **report: Any,
    ) -> list[Action]:
        """`failed`: positions of the rows that the model failed on."""
        self.open.pop(lease.lease_id, None)
        return self.step(Closed(lease.lease_id, end, Report(**report), failed), at)

    def opens(self, lease: Dispatch) -> list[Action]:
        """Its replica has begun with it."""
        return self.step(Opened(lease.lease_id))

    def tick(self, at: float) -> list[Action]:
        return self.step(Tick(), at)

    def cancel(self, request_id: int) -> list[Action]:
        return self.step(Cancel(request_id))

    def drain(self) -> list[Dispatch]:
        """Answer all that is open and will be; returns the dispatches that this brought."""
        sent = []
        while self.open:
            _, lease = self.open.popitem()
            sent += [each for each in self.close(lease) if isinstance(each, Dispatch)]
        return sent


@pytest.fixture
def start() -> Iterator[Callable[..., Driver]]:
    """Makes drivers; at the end of the test each is drained and must be exactly empty.

    Unless a profile is given, there is one that says nothing of costs: replicas are trusted with
    batches from the first one on."""
    drivers: list[Driver] = []

    def make(**settings: Any) -> Driver:
        settings.setdefault("bucket_edges", (32, 128, 512))
        settings.setdefault("profile", ((1, 1, 0.0),))
        drivers.append(Driver(scheduler_of(DispatcherSettings(**settings))))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.now += 1000.0
        driver.timer = None
        driver.tick(driver.now)
        driver.drain()
        driver.replicas()
        end = driver.dispatcher.snapshot(driver.now)
        assert (end.waiting_rows, end.waiting_requests, end.leases, end.drift) == (0, 0, 0, 0)
        assert end.replicas == ()
        assert driver.dispatcher._requests.live == {}
        timers = driver.dispatcher._requests.timers
        assert not timers.line
        assert not timers.heap
