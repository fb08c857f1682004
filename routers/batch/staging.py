"""Which of the batches at a replica starts next, and what does the replica report to each gateway?

- One batch runs. Behind it each gateway may have `slots` - 1 staged batches.
- When the device is free, the staged batch of the lowest rank starts, whichever gateway sent it.
  The other gateways' staged batches return to them unstarted. So shares hold however unevenly
  requests arrive at the gateways, and rows are bound to a batch only at their turn.
- For batches led by the same flow, gateways take turns. Each keeps its own account of that flow; by
  rank alone the gateway whose account is ahead would never be served.
- A gateway that sends a batch too many gets back its own staged batch of the highest rank. So an
  urgent batch takes the place of a less urgent one. Nothing here interrupts the running batch.
Pure: the replica owns device, clock and payloads, and performs the returned `Turn`s in order. Times
are seconds on its clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

from routers.api.requests import FlowKey, FlowWork, Report
from routers.shared.staging import (
    DEMAND_HOLDS_S,
    FORGET_S,
    REPORT_EVERY_S,
    rank_of,
    summed,
    whose_turn,
)

_OVERRUN: Final = 0.25  # of the time by which a batch has overrun: a guess at the time that is left


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch as its gateway described it; the fields are those of `api.actions.Dispatch`."""

    gateway: str
    lease_id: int
    rank: tuple[int, int, float] = (0, 0, 0.0)
    predicted_s: float = 0.0
    charges: tuple[FlowWork, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """What the replica must do now."""

    start: Staged | None = None  # run this batch on the device
    returned: tuple[Staged, ...] = ()  # answer these with `LeaseEnd.BUSY`: they did not start


@dataclass(slots=True)
class _Gateway:
    """What the replica knows of one gateway, and owes it."""

    last_seen_at: float
    seen: int = 0  # highest lease id accepted
    turn: int = 0  # when its last batch started, as a count of all starts
    waiting: tuple[FlowWork, ...] = ()  # at the gateway, as it last said
    served: dict[FlowKey, float] = field(default_factory=dict)  # seconds, for its next report
    last_reported: tuple[FlowWork, ...] = ()  # what it was last told of the others' queues
    last_reported_at: float = -inf


class Staging:
    """The batches that one replica holds, of all its gateways."""

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
        """Batches held, the running one included."""
        return len(self._staged) + (self._running is not None)

    def held(self, gateway: str) -> int:
        """Batches held of this gateway, the running one included."""
        running = self._running
        staged = sum(each.gateway == gateway for each in self._staged)
        return staged + (running is not None and running.gateway == gateway)

    # -- events

    def arrive(self, batch: Staged, waiting: tuple[FlowWork, ...] | None, now: float) -> Turn:
        """A batch has come: start it, stage it or return one. `waiting`: work that waits at its
        gateway; None: unchanged."""
        gateway = self._gateway(batch.gateway, now)
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
        last = max(own, key=rank_of, default=batch)
        if batch.rank >= last.rank:
            return Turn(returned=(batch,))
        gateway.seen = max(gateway.seen, batch.lease_id)
        self._staged.remove(last)
        self._staged.append(batch)
        return Turn(returned=(last,))

    def finish(self, service_s: float, now: float) -> Turn:
        """The running batch has left the device after `service_s`, 0 if it was never served: start
        the next one, and return the other gateways' staged batches."""
        done, self._running = self._running, None
        assert done is not None, "nothing runs"
        self._report_served(done, service_s)
        if not self._staged:
            return Turn()
        batch = self._next_to_start()
        returned = tuple(each for each in self._staged if each.gateway != batch.gateway)
        own = [each for each in self._staged if each.gateway == batch.gateway]
        self._staged = [each for each in own if each is not batch]
        self._start(batch, now)
        return Turn(batch, returned)

    def drop(self, gateway: str, lease_id: int) -> bool:
        """Take out a staged batch that nobody waits for; False: it runs, or is not here."""
        for each in self._staged:
            if each.gateway == gateway and each.lease_id == lease_id:
                self._staged.remove(each)
                return True
        return False

    # -- reports

    def report(
        self,
        gateway: str,
        now: float,
        service_s: float = 0.0,
        transport_s: float = 0.0,
    ) -> Report:
        """The report for an answer to that gateway. The arguments are the answered batch's.

        `retry_in_s` and `free_in_s` count from now. The gateway must subtract the time that this
        answer and its next batch travel; otherwise that batch comes after another has started.
        """
        peer = self._gateways.get(gateway) or _Gateway(now)
        served = tuple([(*flow, seconds) for flow, seconds in peer.served.items()])
        peer.served = {}
        if now - peer.last_reported_at >= REPORT_EVERY_S:
            peer.last_reported = self._waiting_elsewhere(gateway, now)
            peer.last_reported_at = now
        left_s = self._running_left_s(now)
        running = self._running
        foreign = running is not None and running.gateway != gateway
        return Report(
            service_s=service_s,
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

    def _running_left_s(self, now: float) -> float:
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

    def _next_to_start(self) -> Staged:
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

    def _report_served(self, done: Staged, service_s: float) -> None:
        """Put the measured seconds of the batch on every other gateway's next report, divided among
        the batch's flows as their charges were."""
        charged = sum(cost for _, _, cost in done.charges)
        if charged <= 0.0 or service_s <= 0.0:
            return
        for name, gateway in self._gateways.items():
            if name == done.gateway:
                continue
            for priority, tenant, cost in done.charges:
                flow, seconds = (priority, tenant), service_s * cost / charged
                gateway.served[flow] = gateway.served.get(flow, 0.0) + seconds

    def _gateway(self, name: str, now: float) -> _Gateway:
        gateway = self._gateways.get(name)
        if gateway is None:
            for old in [n for n, g in self._gateways.items() if now - g.last_seen_at > FORGET_S]:
                if not self.held(old):
                    del self._gateways[old]
            gateway = self._gateways[name] = _Gateway(now)
        gateway.last_seen_at = now
        return gateway
