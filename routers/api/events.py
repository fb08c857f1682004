"""What the core is told: requests that come and go, replicas, their leases, and time."""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.requests import NO_TOKENS, LeaseEnd, Replica, Report, Request, Tokens


@dataclass(frozen=True, slots=True)
class Arrive:
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller left. Queued rows leave at once; rows of a running batch are ignored."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Replicas:
    """The whole running set. One that is missing gets no new lease; its open leases go on."""

    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """The replica has started on the lease (its predicted finish counts from here)."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A stream lease moved: `served` cost units so far, `held` capacity it now occupies, `tokens`
    it has had so far."""

    lease_id: int
    served: float
    held: float
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Closed:
    """`failed`: of a batch that is DONE, positions of the rows on which the model failed, each by
    itself; they have no answer."""

    lease_id: int
    end: LeaseEnd
    report: Report = field(default_factory=Report)
    failed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """The replica has said something, whatever it was: it is not silent. Not needed beside events
    that tell of its leases."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer asked for by `WakeAt` fired."""


@dataclass(frozen=True, slots=True)
class Close:
    """The model is gone: everything that waits is evicted with `Reason.CLOSED`."""


Event = Arrive | Cancel | Replicas | Opened | Progress | Closed | Heard | Tick | Close
