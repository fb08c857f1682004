"""Which of the batches or requests at a replica starts next, and what are the gateways told?

- One batch runs. Behind it each gateway may have `slots` - 1 staged batches. When the device is
  free, the staged batch of the lowest rank starts, whichever gateway sent it, and those of other
  gateways are returned unstarted. So shares hold however unevenly requests reach the gateways.
- Of batches led by the same flow the gateways take turns: each keeps its own account of that flow.
- A gateway that sends a batch too many gets back its own staged batch of the highest rank.
- An engine has `at_once` requests; further ones wait here by the same rule (`StreamStaging`).

Nothing here interrupts what runs. Pure: the replica owns device, clock and payloads. Times are
seconds on the replica's clock. Source: start-time fair queueing (SIGCOMM'96).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Generic, Protocol, TypeVar

from routers.api.requests import FlowKey, FlowWork, Report, Shares, Tokens

REPORT_EVERY_S = 0.05  # shortest time between two reports of other gateways' queues to a gateway
DEMAND_HOLDS_S = 1.0  # how long a gateway's report of its queue counts without a batch here
FORGET_S = 60.0  # an unheard gateway is forgotten: one that was restarted has a new name
_OVERRUN = 0.25  # of the time by which a batch has overrun: a guess at the time that is left

Flow = tuple[int, str]
"""(priority, tenant)."""


class Ranked(Protocol):
    """A batch or stream at a replica, as far as `whose_turn` looks at it."""

    @property
    def gateway(self) -> str: ...
    @property
    def rank(self) -> tuple[int, int, float]: ...
    @property
    def charges(self) -> tuple[FlowWork, ...]: ...


R = TypeVar("R", bound=Ranked)


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
    served: dict[Flow, float] = field(default_factory=dict)  # seconds, for its next report
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
        last = max(own, key=_rank, default=batch)
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
        padded_tokens: int = 0,
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


def whose_turn(waiting: Sequence[R], turns: Mapping[str, int]) -> R:
    """The batch or stream to start next: of the lowest rank, or of those that the same flow leads
    at the same standing the one whose gateway has waited longest for a start. `turns`: by gateway,
    when its last one started, as a count of all starts."""
    lowest = min(waiting, key=_rank)
    same = [each for each in waiting if _have_same_leader(each, lowest)]
    return min(same, key=lambda each: (turns[each.gateway], each.rank))


def _rank(batch: Ranked) -> tuple[int, int, float]:
    return batch.rank


def _have_same_leader(batch: Ranked, other: Ranked) -> bool:
    """Whether the same flow leads both, at the same standing (late or not, priority)."""
    if batch is other:
        return True
    if not (batch.charges and other.charges):
        return False  # a copy carries no charges, so the flow that leads it is unknown
    return batch.rank[:2] == other.rank[:2] and batch.charges[0][:2] == other.charges[0][:2]


def summed(reports: Iterable[tuple[FlowWork, ...]]) -> tuple[FlowWork, ...]:
    """The reports' seconds, added up by flow."""
    total: dict[Flow, float] = {}
    for flows in reports:
        for priority, tenant, seconds in flows:
            flow = priority, tenant
            total[flow] = total.get(flow, 0.0) + seconds
    return tuple([(*flow, seconds) for flow, seconds in total.items()])


_SLACK = 64  # stale entries allowed before the heaps are rebuilt

_Lead = tuple[int, int, int, str]  # standing (late or not, priority), and flow
_Entry = tuple[tuple[int, int, float], int, R]  # rank, number of arrival, request


class WaitingTurns(Generic[R]):
    """The waiting requests, compared by identity."""

    def __init__(self) -> None:
        self._numbers: dict[R, int] = {}  # requests that wait, with their number of arrival
        self._came = 0
        self._clear()

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, turn: R) -> bool:
        return turn in self._numbers

    def add(self, turn: R) -> None:
        self._came += 1
        self._numbers[turn] = self._came
        self._push(turn)
        self._clear_stale()

    def remove(self, turn: R) -> None:
        del self._numbers[turn]
        self._clear_stale()

    def whose_turn(self, turns: Mapping[str, int]) -> R:
        """The request whose turn is next; it stays until it is removed. `turns`: by gateway, the
        number of its last start. Do not call it while no request waits."""
        lowest = self._first(self._order)
        assert lowest is not None
        lead = _lead(lowest[2])
        if lead is None:
            return lowest[2]
        alike = self._by_lead[lead]
        firsts = [(name, self._first(heap)) for name, heap in alike.items()]
        found = [(turns[name], *entry) for name, entry in firsts if entry is not None]
        return min(found)[3]

    def _push(self, turn: R) -> None:
        entry, lead = (turn.rank, self._numbers[turn], turn), _lead(turn)
        self._pushed += 1
        heappush(self._order, entry)
        if lead is not None:
            heappush(self._by_lead.setdefault(lead, {}).setdefault(turn.gateway, []), entry)

    def _clear_stale(self) -> None:
        """Rebuild the heaps, if as many requests have come since as wait."""
        if self._pushed > 2 * len(self._numbers) + _SLACK:
            self._clear()
            for left in self._numbers:
                self._push(left)

    def _first(self, heap: list[_Entry[R]]) -> _Entry[R] | None:
        """The heap's first request that still waits."""
        while heap and self._numbers.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0] if heap else None

    def _clear(self) -> None:
        self._pushed = 0
        self._order: list[_Entry[R]] = []
        self._by_lead: dict[_Lead, dict[str, list[_Entry[R]]]] = {}


def _lead(turn: Ranked) -> _Lead | None:
    """The standing and the flow that leads the request; None for a copy, which leads no flow."""
    if not turn.charges:
        return None
    return *turn.rank[:2], *turn.charges[0][:2]


@dataclass(frozen=True, slots=True, eq=False)
class StagedStream:
    """One request, as its gateway described it: `rank`, `charges` as in `api.actions.Dispatch`.
    Two are the same if they are one object."""

    gateway: str
    rank: tuple[int, int, float] = (0, 0, 0.0)
    charges: tuple[FlowWork, ...] = ()


@dataclass(slots=True)
class _StreamGateway:
    """`turn`: number of the last request of its that began; `here`: those that wait or run here;
    `waiting`: what waits there; `served`: seconds by flow that it is to be told of, below 0 where
    it was told of too many."""

    last_seen_at: float
    turn: int = 0
    here: int = 0
    waiting: tuple[FlowWork, ...] = ()
    served: dict[FlowKey, float] = field(default_factory=dict)
    last_reported_at: float = -inf


def worth_s(tokens: Tokens, input_s: float, output_s: float) -> float | None:
    """What a request was given, at what a token that had to be read and one that was written are
    worth at its gateway; None where nobody knows that."""
    if not (input_s or output_s):
        return None
    return max(0, tokens.input - tokens.cached) * input_s + tokens.output * output_s


class StreamStaging:
    """Times are the caller's clock, in seconds."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._gateways: dict[str, _StreamGateway] = {}
        self._waiting: WaitingTurns[StagedStream] = WaitingTurns()
        self._running: set[StagedStream] = set()
        self._begun = 0
        self._virtual_time: list[float] = []

    def arrive(
        self, turn: StagedStream, waiting: tuple[FlowWork, ...] | None, now: float
    ) -> StagedStream | None:
        """It has come, with what waits at its gateway; None: as it said before. Who begins now."""
        gateway = self._known(turn.gateway, now)
        if waiting is not None:
            gateway.waiting = waiting
        gateway.here += 1
        self._waiting.add(turn)
        return self._next()

    def end(self, turn: StagedStream, seconds: float | None) -> StagedStream | None:
        """It has ended, or left unbegun. `seconds`: what it was worth at its gateway's price, None:
        what was charged. Who begins now."""
        self._gateways[turn.gateway].here -= 1
        if turn in self._waiting:
            self._waiting.remove(turn)
            return None
        self._running.remove(turn)
        charged = sum(work[2] for work in turn.charges)
        if seconds is not None and charged > 0.0:
            self._account(turn, seconds / charged - 1.0)
        return self._next()

    def has_news(self, gateway: str, now: float) -> bool:
        """Whether a message that ends nothing should tell it of the others all the same: they were
        served, and it has not been told for a while."""
        peer = self._gateways.get(gateway)
        if peer is None or now - peer.last_reported_at < REPORT_EVERY_S:
            return False
        return any(seconds > 0.0 for seconds in peer.served.values())

    def report(self, gateway: str, now: float) -> Shares:
        """For a message to that gateway."""
        peer = self._gateways.get(gateway) or _StreamGateway(now)
        served = tuple([(*flow, s) for flow, s in peer.served.items() if s > 0.0])
        peer.served = {flow: s for flow, s in peer.served.items() if s < 0.0}
        waiting = None
        if now - peer.last_reported_at >= REPORT_EVERY_S:
            peer.last_reported_at = now
            waiting = self._waiting_elsewhere(gateway, now)
        return Shares(tuple(self._virtual_time), served, waiting)

    def _next(self) -> StagedStream | None:
        if not self._waiting or len(self._running) >= self._at_once:
            return None
        turns = {name: gateway.turn for name, gateway in self._gateways.items()}
        turn = self._waiting.whose_turn(turns)
        self._waiting.remove(turn)
        self._running.add(turn)
        self._begun += 1
        self._gateways[turn.gateway].turn = self._begun
        _, priority, tag = turn.rank
        self._virtual_time += [0.0] * (priority + 1 - len(self._virtual_time))
        self._virtual_time[priority] = max(self._virtual_time[priority], tag)
        self._account(turn, 1.0)
        return turn

    def _account(self, turn: StagedStream, share: float) -> None:
        """Everybody else is told of so much of what it was charged."""
        for name, gateway in self._gateways.items():
            if name != turn.gateway:
                for priority, tenant, seconds in turn.charges:
                    flow = priority, tenant
                    gateway.served[flow] = gateway.served.get(flow, 0.0) + share * seconds

    def _waiting_elsewhere(self, gateway: str, now: float) -> tuple[FlowWork, ...]:
        return summed(
            other.waiting
            for name, other in self._gateways.items()
            if name != gateway and (now - other.last_seen_at <= DEMAND_HOLDS_S or other.here)
        )

    def _known(self, name: str, now: float) -> _StreamGateway:
        gateway = self._gateways.get(name)
        if gateway is None:
            for old, peer in list(self._gateways.items()):
                if now - peer.last_seen_at > FORGET_S and not peer.here:
                    del self._gateways[old]
            gateway = self._gateways[name] = _StreamGateway(now)
        gateway.last_seen_at = now
        return gateway
