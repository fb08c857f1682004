"""What the core is told: requests that come and go, replicas, their leases, and time."""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.requests import NO_TOKENS, LeaseEnd, Reason, Replica, Report, Request, Tokens
from routers.api.settings import DispatcherSettings


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
    it has had so far. `given`: what its replica gave to requests of all gateways, ever, cached
    input left out; nothing: it does not say."""

    lease_id: int
    served: float
    held: float
    tokens: Tokens = NO_TOKENS
    given: Tokens = NO_TOKENS


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


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Other settings: what waits is bucketed anew and keeps its age; what is now too long leaves;
    new bounds hold for new requests only. Reopens a closed model."""

    settings: DispatcherSettings


@dataclass(frozen=True, slots=True)
class CapacityExpected:
    """While no replica runs, one is expected to in so many seconds; 0.0: nobody knows. Told again
    as time passes."""

    in_s: float


@dataclass(frozen=True, slots=True)
class RefusedUnread:
    """A request was refused by its headers alone; `is_first`: as in `api.requests.Request`."""

    tenant: str
    priority: int
    reason: Reason
    is_first: bool = True


@dataclass(frozen=True, slots=True)
class ServedElsewhere:
    """A request was offered here and answered by others who stand in; `lengths`: of its rows, ()
    where they do not say what it takes."""

    tenant: str
    priority: int
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PeersServed:
    """A replica has said, with no lease's end, what other gateways were served there and have
    waiting: of the report `virtual_time`, `served` and `waiting` are read."""

    replica_id: str
    report: Report


Note = CapacityExpected | RefusedUnread | ServedElsewhere | PeersServed
"""Counted, and nothing follows from it at once."""

Event = (
    Arrive | Cancel | Replicas | Opened | Progress | Closed | Heard | Tick | Close | Reconfigure
    | Note
)  # fmt: skip
