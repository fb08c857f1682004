"""What comes to the simulated gateways, and how each request ends.

An `Arrival` is one caller's request; a `SimOutcome` is what becomes of it, from its arrival to its
one end. Who wants to know is an `SimObserver`; who sends again after a refusal, or sends the next
request once the last has ended, is a `Follow`. Times are virtual seconds. Nothing here decides
anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Protocol

from routers.api.actions import Dispatch
from routers.api.requests import NO_TOKENS, Generation, Reason, Tokens
from routers.api.snapshot import Snapshot


@dataclass(slots=True)
class Arrival:
    """One request; nobody changes it. `leaves_at`: when its caller gives up without an answer;
    inf: never. `gateway`: index of the one it comes to. `attempt`: which try of its caller's this
    is, from 1; `caller`: whatever its maker wants to know again. `output`: the tokens that it will
    have had, if it is left to generate. The rest as in `api.requests.Request`.
    """

    at: float
    lengths: tuple[int, ...]
    slo_s: float = 0.1
    timeout_s: float = 1.0
    leaves_at: float = inf
    tenant: str = "default"
    priority: int = 0
    weight: float = 1.0
    tenant_rows: int = 0
    session: str = ""
    retryable: bool = True
    gateway: int = 0
    attempt: int = 1
    caller: object = None
    generation: Generation | None = None
    output: int = 0
    streams: bool = True


@dataclass(slots=True, eq=False)
class SimOutcome:
    """How one request ended: answered, refused for a reason, or its caller left.

    `missing`: one bit a row that has no answer yet, 0 once it has ended. `started_at`: when a
    device began with the last of its rows. `answers`: how often it ended, its caller's leaving
    aside: 1, or the simulated service is broken. `first_at`: when its gateway had the first token;
    `tokens`: what it has had.
    """

    arrival: Arrival
    missing: int = 0
    started_at: float | None = None
    answered_at: float | None = None
    reason: Reason | None = None
    retry_after_s: float = 0.0
    left: bool = False
    answers: int = 0
    first_at: float | None = None
    tokens: Tokens = NO_TOKENS

    @property
    def in_slo(self) -> bool:
        """Whether it was answered, and the answer, or its first token, came by the deadline."""
        arrival = self.arrival
        at = self.answered_at if arrival.generation is None else self.first_at
        return self.answered_at is not None and at is not None and at <= arrival.at + arrival.slo_s

    @property
    def token_s(self) -> float:
        """Seconds for each output token after the first; 0.0 where there was no other."""
        if self.answered_at is None or self.first_at is None or self.tokens.output < 2:
            return 0.0
        return (self.answered_at - self.first_at) / (self.tokens.output - 1)


Follow = Callable[[SimOutcome, float], Arrival | None]
"""Called when a request has ended, with the time; the arrival that follows from it, not before
that time, or None."""


Door = Callable[[Arrival, float], float]
"""Asked before a request enters, with the time: 0.0 lets it in; else it is its tenant's own bound
that it is over (`Reason.TENANT_FULL`), and so many seconds later it may be let in."""


@dataclass(slots=True, eq=False)
class SimLease:
    """A lease between its dispatch and its end. `members`: requests and row indices, in order;
    `width`: its longest row (packed batches: its mean); `tokens` are without padding; `watched`:
    its gateway asked to hear of its start, as it does for ties and at shared replicas; `failed`:
    positions of the rows that the model failed on; `aborted`: nothing of it is given to anybody any
    more; `prices`: as of `routers.stream.staging.TokenPrices`."""

    gateway: str
    dispatch: Dispatch
    members: list[tuple[SimOutcome, int]]
    width: int
    tokens: int
    padded_tokens: int
    watched: bool = False
    started: bool = False
    failed: tuple[int, ...] = ()
    aborted: bool = False
    prices: tuple[float, float] = (0.0, 0.0)


class SimObserver(Protocol):
    """Hears of everything that happens, in order of time."""

    def arrived(self, outcome: SimOutcome, now: float) -> None: ...

    def ended(self, outcome: SimOutcome, now: float) -> None: ...

    def sent(self, sim_lease: SimLease, now: float) -> None: ...

    def served(self, sim_lease: SimLease, service_s: float, now: float) -> None:
        """A device has finished with a batch that it worked on for so long."""


@dataclass(frozen=True, slots=True)
class SimResult:
    """`ends`: what each gateway's core holds at the end, `end` the first one's."""

    outcomes: tuple[SimOutcome, ...]
    batches: tuple[tuple[float, Dispatch], ...]
    ends: tuple[Snapshot, ...]

    @property
    def end(self) -> Snapshot:
        return self.ends[0]

    def share_in_slo(self) -> float:
        """Of all that were offered, the share answered within their SLO."""
        return sum(outcome.in_slo for outcome in self.outcomes) / max(1, len(self.outcomes))


class SimRecorder:
    """An observer that keeps every outcome and every batch: for tests, not for a million
    requests."""

    def __init__(self) -> None:
        self.outcomes: list[SimOutcome] = []
        self.batches: list[tuple[float, Dispatch]] = []

    def arrived(self, outcome: SimOutcome, now: float) -> None:
        self.outcomes.append(outcome)

    def ended(self, outcome: SimOutcome, now: float) -> None:
        pass

    def sent(self, sim_lease: SimLease, now: float) -> None:
        self.batches.append((now, sim_lease.dispatch))

    def served(self, sim_lease: SimLease, service_s: float, now: float) -> None:
        pass
