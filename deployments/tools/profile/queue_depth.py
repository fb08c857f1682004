"""Simulates how deep the queue is while so many clients each wait for their answer.

The real dispatcher on virtual time, its device taking what was measured: closed-loop clients, one
row each at a time, no pause in between. The start, when all come at once, is not counted. A device
that answers very many in that time is simulated for a shorter one. What the network and the
gateway's own work add is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from routers.api.settings import DispatcherSettings
from routers.estimates.cost.model import at_quantile
from routers.simulation.simulator import Arrival, SimDevice, SimOutcome, World, run
from routers.simulation.traffic import SimLease

CLIENTS = (50, 100, 200)
MEASURED_S = 5.0
_SETTLED_S = 1.0  # beside the timeout: by then those of the start have ended, one way or the other
_MAX_ANSWERS = 30_000  # simulated for one number of clients: a few seconds of this machine's
_MIN_PAUSE_S = 0.05  # of a caller that was refused


@dataclass(frozen=True, slots=True)
class Depth:
    """`rows`: waiting, mean over time, and `max_rows`; waits of rows that a device took; what was
    answered a second, and of all that ended the share within the SLO; mean rows a batch."""

    clients: int
    rows: float
    max_rows: int
    wait_p50_s: float
    wait_p99_s: float
    answered_per_s: float
    in_time: float
    batch_rows: float


@dataclass(frozen=True, slots=True)
class Service:
    """What the clients ask: the core's settings, the device's seconds by (rows, width), replicas
    and the batches each may hold, and when nobody waits any longer."""

    core: DispatcherSettings
    seconds: Callable[[int, int], float]
    replicas: int
    slots: int
    timeout_s: float


def depth(service: Service, clients: int, lengths: Sequence[int], rng: Random) -> Depth:
    """Same input, same outcome."""
    core, share = service.core, _share_of_time(service, max(lengths))
    begin_s = share * (service.timeout_s + _SETTLED_S)
    count = _Count(begin_s, begin_s + share * MEASURED_S)

    def arrival(at: float) -> Arrival:
        return Arrival(at, (rng.choice(lengths),), core.slo_s, service.timeout_s)

    def follow(outcome: SimOutcome, now: float) -> Arrival | None:
        answered = outcome.answered_at is not None
        pause_s = 0.0 if answered else max(outcome.retry_after_s, _MIN_PAUSE_S)
        return arrival(now + pause_s) if now + pause_s < count.end_s else None

    devices = tuple(
        SimDevice(f"r{n}", service.seconds, service.slots, 0.0) for n in range(service.replicas)
    )
    # A hair apart, as no two requests reach a process at the same instant.
    run(core, [arrival(n * 1e-6) for n in range(clients)], World(devices, follow=follow), count)
    return count.depth(clients)


def _share_of_time(service: Service, longest: int) -> float:
    """Of the time that it would be simulated for, what so many answers of full batches take."""
    rows = service.core.fixed_size or service.core.max_size
    rate = service.replicas * rows / max(service.seconds(rows, longest), 1e-9)
    all_s = service.timeout_s + _SETTLED_S + MEASURED_S
    return min(1.0, _MAX_ANSWERS / (rate * all_s))


@dataclass(slots=True)
class _Count:
    """A observer from `begin_s` until `end_s`."""

    begin_s: float
    end_s: float
    waiting: dict[int, SimOutcome] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    ends: int = 0
    answered: int = 0
    in_time: int = 0
    most: int = 0
    row_seconds: float = 0.0
    batches: int = 0
    rows: int = 0
    since: float = 0.0

    def arrived(self, outcome: SimOutcome, now: float) -> None:
        self._pass(now)
        self.waiting[id(outcome)] = outcome

    def ended(self, outcome: SimOutcome, now: float) -> None:
        self._pass(now)
        self.waiting.pop(id(outcome), None)
        if self._counts(now):
            self.ends += 1
            self.answered += outcome.answered_at is not None
            self.in_time += outcome.in_slo

    def sent(self, sim_lease: SimLease, now: float) -> None:
        self._pass(now)
        for outcome, _ in sim_lease.members:
            if self.waiting.pop(id(outcome), None) is not None and self._counts(now):
                self.waits.append(now - outcome.arrival.at)
        if self._counts(now):
            self.batches += 1
            self.rows += len(sim_lease.members)

    def served(self, sim_lease: SimLease, service_s: float, now: float) -> None:
        pass

    def _counts(self, now: float) -> bool:
        return self.begin_s <= now < self.end_s

    def _pass(self, now: float) -> None:
        """Time goes on with as many waiting as there were."""
        for_s = min(now, self.end_s) - max(self.since, self.begin_s)
        if for_s > 0.0:
            self.row_seconds += len(self.waiting) * for_s
            self.most = max(self.most, len(self.waiting))
        self.since = now

    def depth(self, clients: int) -> Depth:
        waits, span_s = sorted(self.waits) or [0.0], self.end_s - self.begin_s
        return Depth(
            clients=clients,
            rows=self.row_seconds / span_s,
            max_rows=self.most,
            wait_p50_s=at_quantile(waits, 0.5),
            wait_p99_s=at_quantile(waits, 0.99),
            answered_per_s=self.answered / span_s,
            in_time=self.in_time / self.ends if self.ends else 0.0,
            batch_rows=self.rows / self.batches if self.batches else 0.0,
        )
