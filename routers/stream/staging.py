"""Which of the requests that stand at a replica that generates begins next, and what are the
gateways told of each other's?

What `batch.staging` is for batches. An engine has `at_once` requests; further ones wait here and
not in the engine, so that the lowest rank begins next, of whichever gateway: shares between tenants
hold however unevenly these reach the gateways. Among requests of one flow the gateways take turns,
since each keeps an account of it. A flow's work is told to the other gateways as charged when it
begins, and trued up by what it was worth when it ends. Nothing here interrupts what runs.

Pure: the caller owns engine and clock. Work: O(log n) a request, and O(gateways). Source:
start-time fair queueing (SIGCOMM'96).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

from routers.api.requests import FlowKey, FlowWork, Report, Shares, Tokens
from routers.api.settings import GenerationParameters
from routers.api.snapshot import Snapshot
from routers.shared.staging import DEMAND_HOLDS_S, FORGET_S, REPORT_EVERY_S, Ranked, summed

_SLACK: Final = 64  # stale entries allowed before the heaps are rebuilt

R = TypeVar("R", bound=Ranked)
_Lead = tuple[int, int, int, str]  # standing (late or not, priority), and flow
_Entry = tuple[tuple[int, int, float], int, R]  # rank, number of arrival, request


@dataclass(frozen=True, slots=True, eq=False)
class StagedStream:
    """One request, as its gateway described it: `rank`, `charges` as in `api.actions.Dispatch`.
    Two are the same if they are one object."""

    gateway: str
    rank: tuple[int, int, float] = (0, 0, 0.0)
    charges: tuple[FlowWork, ...] = ()


@dataclass(slots=True)
class _Gateway:
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


class WaitingTurns(Generic[R]):
    """The waiting requests, compared by identity, with the one whose turn is next found in
    O(log n): by one heap of all requests, and one for each flow and gateway. Requests that have
    left are skipped when they reach a heap's top, and cleared away once they outnumber those that
    wait."""

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


class StreamStaging:
    """Times are the caller's clock, in seconds."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._gateways: dict[str, _Gateway] = {}
        self._waiting: WaitingTurns[StagedStream] = WaitingTurns()
        self._running: set[StagedStream] = set()
        self._begun = 0
        self._virtual_time: list[float] = []

    @property
    def waits(self) -> bool:
        """Whether one waits for its turn."""
        return bool(self._waiting)

    def allow(self, at_once: int) -> list[StagedStream]:
        """From now on so many run at once. Who begins now."""
        self._at_once = at_once
        begin = []
        while (turn := self._next()) is not None:
            begin.append(turn)
        return begin

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
        peer = self._gateways.get(gateway) or _Gateway(now)
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

    def _known(self, name: str, now: float) -> _Gateway:
        gateway = self._gateways.get(name)
        if gateway is None:
            for old, peer in list(self._gateways.items()):
                if now - peer.last_seen_at > FORGET_S and not peer.here:
                    del self._gateways[old]
            gateway = self._gateways[name] = _Gateway(now)
        gateway.last_seen_at = now
        return gateway


WAITING_SHARE: Final = 2
"""Times what an engine runs at once: as many requests a gateway sends a replica that other gateways
use too, and as many the replica takes from each."""

_SHARED_S: Final = 10.0  # for which engines count as shared after others were seen there
_PRICED_EVERY_S: Final = 1.0  # what a token is worth is read from a snapshot of everything


class SharedEngines:
    """Whether other gateways use a model's engines too, by what ends of requests report.

    The gateway's side of `routers.stream.staging`. What an engine runs at once is enough for a
    gateway alone. Beside other gateways' requests its own wait for their turn at the replica: those
    that wait at the gateway have none, and what is sent only as room comes is never compared with
    theirs.

    Pure: times are the caller's clock, in seconds.
    """

    def __init__(self) -> None:
        self._shared = False
        self._shared_at = -inf

    def learn(self, report: Report, now: float) -> bool:
        """Whether `max_leases` is another number now."""
        if report.inflight > report.held:
            self._shared_at = now
        shared = now - self._shared_at <= _SHARED_S
        has_changed = shared is not self._shared
        self._shared = shared
        return has_changed

    def max_leases(self, max_sequences: int, waiting: int = 0) -> int:
        """At one replica, of whose requests so many run at once. `waiting`: that wait there for an
        adapter, so that the engine has places for as many others."""
        room = max_sequences * WAITING_SHARE
        return room if self._shared else min(max_sequences + waiting, room)


class TokenPrices:
    """What a token is worth, in seconds of a full engine, as learnt so far; read now and then."""

    def __init__(self) -> None:
        self._read_at = -inf
        self._prices = 0.0, 0.0

    def at(
        self, settings: GenerationParameters | None, look: Callable[[], Snapshot], now: float
    ) -> tuple[float, float]:
        """Of a prompt's token that has to be read, and of an output token; both 0.0: nobody knows.
        `look`: at the gateway's core."""
        if settings is not None and now - self._read_at >= _PRICED_EVERY_S:
            found = look().generation
            token_s = 1.0 / found.tokens_per_s if found is not None else 0.0
            self._read_at = now
            self._prices = settings.input_weight * token_s, settings.output_weight * token_s
        return self._prices
