"""Which of the batches that stand at a replica starts next, and what are the gateways told of it?

One batch runs; behind it each gateway may stage `slots` - 1. When the device is free the lowest
rank starts, of whichever gateway, and what other gateways have staged goes back to them unstarted:
so shares hold however skewed the ingress is, and rows stay unbound until their turn. Among batches
led by the same flow the gateways take turns: each keeps an account of it, and where these differ
the one that is ahead would never be served. One gateway's batch too many evicts its own highest
rank, which is how an urgent one takes a bulk one's place. Nothing here interrupts what runs.

Pure: the caller owns device, clock and payloads, and performs the `Turn`s in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, TypeVar

from routers.api.requests import FlowWork, Report

REPORT_EVERY_S = 0.05  # what waits elsewhere is told this often at most, however short batches are
DEMAND_HOLDS_S = 1.0  # what a gateway said of its queue holds, and while it has a batch here
FORGET_S = 60.0  # a gateway that was restarted has a new name; its old one keeps nothing
_OVERRUN = 0.25  # of the time by which a batch has overrun, as a guess at what is left of it

Flow = tuple[int, str]


class Ranked(Protocol):
    """What stands at a replica, as its gateway described it."""

    @property
    def gateway(self) -> str: ...
    @property
    def rank(self) -> tuple[int, int, float]: ...
    @property
    def charges(self) -> tuple[FlowWork, ...]: ...


R = TypeVar("R", bound=Ranked)


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch as its gateway described it: see `api.actions.Dispatch`."""

    gateway: str
    lease_id: int
    rank: tuple[int, int, float] = (0, 0, 0.0)
    predicted_s: float = 0.0
    charges: tuple[FlowWork, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """`start` runs on the device now; `returned` are answered busy, unstarted."""

    start: Staged | None = None
    returned: tuple[Staged, ...] = ()


@dataclass(slots=True)
class _Gateway:
    """`seen`: highest lease id accepted; `turn`: number of the last start that was its; `waiting`:
    what it last reported of itself; `served`: seconds by flow that its next answer reports;
    `last_reported`: what was last reported to it of the others, at `last_reported_at`."""

    last_seen_at: float
    seen: int = 0
    turn: int = 0
    waiting: tuple[FlowWork, ...] = ()
    served: dict[Flow, float] = field(default_factory=dict)
    last_reported: tuple[FlowWork, ...] = ()
    last_reported_at: float = -inf


class Staging:
    """What one replica holds, for all its gateways. Times are the caller's clock, in seconds."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._gateways: dict[str, _Gateway] = {}
        self._staged: list[Staged] = []  # in order of arrival; at most slots - 1 a gateway
        self._running: Staged | None = None
        self._started_at = 0.0
        self._starts = 0
        self._virtual_time: list[float] = []

    @property
    def running(self) -> Staged | None:
        return self._running

    @property
    def inflight(self) -> int:
        return len(self._staged) + (self._running is not None)

    def held(self, gateway: str) -> int:
        running = self._running
        staged = sum(each.gateway == gateway for each in self._staged)
        return staged + (running is not None and running.gateway == gateway)

    # -- what happens

    def arrive(self, batch: Staged, waiting: tuple[FlowWork, ...] | None, now: float) -> Turn:
        """A batch has come, with what waits at its gateway; None: as it said before."""
        gateway = self._known(batch.gateway, now)
        if waiting is not None:
            gateway.waiting = waiting
        if self._running is None:
            gateway.seen = max(gateway.seen, batch.lease_id)
            self._start(batch, now)
            return Turn(start=batch)
        own = [each for each in self._staged if each.gateway == batch.gateway]
        if len(own) < self._slots - 1:
            gateway.seen = max(gateway.seen, batch.lease_id)
            self._staged.append(batch)
            return Turn()
        last = max(own, key=_rank, default=batch)
        if batch.rank >= last.rank:
            return Turn(returned=(batch,))
        gateway.seen = max(gateway.seen, batch.lease_id)
        self._staged.remove(last)
        self._staged.append(batch)
        return Turn(returned=(last,))

    def finish(self, service_s: float, now: float) -> Turn:
        """The running batch has left the device after `service_s`; 0 when it was never served."""
        done, self._running = self._running, None
        assert done is not None, "nothing runs"
        self._account(done, service_s)
        if not self._staged:
            return Turn()
        batch = self._next()
        returned = tuple(each for each in self._staged if each.gateway != batch.gateway)
        own = [each for each in self._staged if each.gateway == batch.gateway]
        self._staged = [each for each in own if each is not batch]
        self._start(batch, now)
        return Turn(batch, returned)

    def drop(self, gateway: str, lease_id: int) -> bool:
        """Take out a batch that nobody waits for; False when it runs, or is not here any more."""
        for each in self._staged:
            if each.gateway == gateway and each.lease_id == lease_id:
                self._staged.remove(each)
                return True
        return False

    # -- what is told

    def report(
        self,
        gateway: str,
        now: float,
        service_s: float = 0.0,
        padded_tokens: int = 0,
        transport_s: float = 0.0,
    ) -> Report:
        """For an answer to that gateway.

        `retry_in_s` and `free_in_s` count from now: the gateway takes off what the answer and the
        next batch need on their way, else that batch comes when another has been started.
        """
        peer = self._gateways.get(gateway) or _Gateway(now)
        served = tuple([(*flow, seconds) for flow, seconds in peer.served.items()])
        peer.served = {}
        if now - peer.last_reported_at >= REPORT_EVERY_S:
            peer.last_reported = self._waiting_elsewhere(gateway, now)
            peer.last_reported_at = now
        left_s = self._left_s(now)
        running = self._running
        foreign = running is not None and running.gateway != gateway
        return Report(
            service_s=service_s,
            padded_tokens=padded_tokens,
            inflight=self.inflight,
            held=self.held(gateway),
            seen=peer.seen,
            retry_in_s=left_s,
            transport_s=transport_s,
            free_in_s=left_s if foreign else 0.0,
            virtual_time=tuple(self._virtual_time),
            served=served,
            waiting=peer.last_reported,
        )

    def _left_s(self, now: float) -> float:
        if self._running is None:
            return 0.0
        left_s = self._started_at + self._running.predicted_s - now
        return left_s if left_s > 0.0 else -left_s * _OVERRUN

    def _waiting_elsewhere(self, gateway: str, now: float) -> tuple[FlowWork, ...]:
        reports = [
            other.waiting
            for name, other in self._gateways.items()
            if name != gateway and (now - other.last_seen_at <= DEMAND_HOLDS_S or self.held(name))
        ]
        return reports[0] if len(reports) == 1 else summed(reports)

    # -- accounts

    def _next(self) -> Staged:
        turns = {name: gateway.turn for name, gateway in self._gateways.items()}
        return whose_turn(self._staged, turns)

    def _start(self, batch: Staged, now: float) -> None:
        self._running, self._started_at = batch, now
        self._starts += 1
        self._gateways[batch.gateway].turn = self._starts
        _, priority, tag = batch.rank
        while len(self._virtual_time) <= priority:
            self._virtual_time.append(0.0)
        self._virtual_time[priority] = max(self._virtual_time[priority], tag)

    def _account(self, done: Staged, service_s: float) -> None:
        """Everybody else is told who was served, in seconds measured."""
        charged = sum(cost for _, _, cost in done.charges)
        if charged <= 0.0 or service_s <= 0.0:
            return
        for name, gateway in self._gateways.items():
            if name == done.gateway:
                continue
            for priority, tenant, cost in done.charges:
                flow, seconds = (priority, tenant), service_s * cost / charged
                gateway.served[flow] = gateway.served.get(flow, 0.0) + seconds

    def _known(self, name: str, now: float) -> _Gateway:
        gateway = self._gateways.get(name)
        if gateway is None:
            for old in [n for n, g in self._gateways.items() if now - g.last_seen_at > FORGET_S]:
                if not self.held(old):
                    del self._gateways[old]
            gateway = self._gateways[name] = _Gateway(now)
        gateway.last_seen_at = now
        return gateway


def whose_turn(waiting: Sequence[R], turns: Mapping[str, int]) -> R:
    """The lowest rank; of those that its flow leads, the one whose gateway has waited longest for a
    start. `turns`: number of the last start that was its, by gateway."""
    lowest = min(waiting, key=_rank)
    same = [each for each in waiting if _led_alike(each, lowest)]
    return min(same, key=lambda each: (turns[each.gateway], each.rank))


def _rank(batch: Ranked) -> tuple[int, int, float]:
    return batch.rank


def _led_alike(batch: Ranked, other: Ranked) -> bool:
    """Whether the same flow leads both, at the same standing; a copy says nothing of its flows."""
    if batch is other:
        return True
    if not (batch.charges and other.charges):
        return False
    return batch.rank[:2] == other.rank[:2] and batch.charges[0][:2] == other.charges[0][:2]


def summed(reports: Iterable[tuple[FlowWork, ...]]) -> tuple[FlowWork, ...]:
    total: dict[Flow, float] = {}
    for flows in reports:
        for priority, tenant, seconds in flows:
            flow = priority, tenant
            total[flow] = total.get(flow, 0.0) + seconds
    return tuple([(*flow, seconds) for flow, seconds in total.items()])
