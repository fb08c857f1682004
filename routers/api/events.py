"""What does the dispatcher's caller tell it? Requests, replicas, their leases, and time.

Each event is a plain value that goes into `Scheduler.step` or `Scheduler.take`. A `Note` is only
counted, and returns no action.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.requests import NO_TOKENS, LeaseEnd, Reason, Replica, Report, Request, Tokens
from routers.api.settings import DispatcherSettings


@dataclass(slots=True)
class Arrive:
    """A new request. The step rejects it or queues it, and may dispatch it at once."""

    request: Request


@dataclass(slots=True)
class Cancel:
    """The request's caller has left. Queued rows leave at once; answers for rows at a replica are
    ignored."""

    request_id: int


@dataclass(slots=True)
class Replicas:
    """All running replicas. A known replica that is missing gets no new lease (it drains); its open
    leases go on."""

    replicas: tuple[Replica, ...]


@dataclass(slots=True)
class Opened:
    """The replica has started on the lease, whose predicted finish counts from now."""

    lease_id: int


@dataclass(slots=True)
class Progress:
    """A stream lease has got further. All counts are totals, not differences."""

    lease_id: int
    served: float  # cost units
    held: float  # units of the replica's capacity that the lease occupies now
    tokens: Tokens = NO_TOKENS  # of this lease
    # Of the requests of all gateways that this replica ever served, cached input left out;
    # `NO_TOKENS`: the replica does not say.
    given: Tokens = NO_TOKENS


@dataclass(slots=True)
class Closed:
    """The lease has ended, whoever ended it: every lease is closed exactly once."""

    lease_id: int
    end: LeaseEnd
    report: Report = field(default_factory=Report)
    # Of a batch that is DONE: positions of rows that have no answer, because the model failed on
    # each of them alone.
    failed: tuple[int, ...] = ()


@dataclass(slots=True)
class Heard:
    """The replica has sent something, whatever it was, so it is not silent. Not needed beside
    events about its leases, which show the same."""

    replica_id: str


@dataclass(slots=True)
class Tick:
    """The timer that `WakeAt` asked for has fired."""


@dataclass(slots=True)
class Close:
    """The model was withdrawn: all that waits is evicted and what comes is rejected, with
    `Reason.CLOSED`."""


@dataclass(slots=True)
class Reconfigure:
    """New settings. Rows that wait are bucketed anew and keep their age; a request with a row that
    is now too long is evicted; new bounds hold for new requests only. Reopens a closed model."""

    settings: DispatcherSettings


@dataclass(slots=True)
class CapacityExpected:
    """While no replica runs, or none that takes some length: when one is expected to. To be told
    again as time passes."""

    in_s: float  # seconds from now; 0.0: unknown


@dataclass(slots=True)
class RefusedUnread:
    """The gateway refused a request by its headers alone."""

    tenant: str
    priority: int
    reason: Reason
    is_first: bool = True  # as in `api.requests.Request`


@dataclass(slots=True)
class ServedElsewhere:
    """A request was offered to this version of the model and answered by another one (the canary
    of a rollout). It counts as work that was offered and served here."""

    tenant: str
    priority: int
    lengths: tuple[int, ...]  # of its rows; (): unknown


@dataclass(slots=True)
class PeersServed:
    """A replica has reported, without a lease's end, what it served for other gateways and what
    waits at them."""

    replica_id: str
    report: Report  # only `virtual_time`, `served` and `waiting` are read


@dataclass(slots=True)
class GatewayPlace:
    """The place of this gateway among those that live, in an order that all of them agree on. Until
    it is told, a gateway counts as the only one."""

    index: int  # from 0
    count: int


@dataclass(slots=True)
class AdaptersHeld:
    """A stream replica has reported which adapters it holds."""

    replica_id: str
    adapters: tuple[str, ...]
    load_s: float = 0.0  # mean seconds of a load there; 0.0: unknown
    failing: tuple[str, ...] = ()  # that it cannot load now


@dataclass(slots=True)
class BlocksHeld:
    """A stream replica has reported which blocks of prompts its cache holds."""

    replica_id: str
    stored: tuple[int, ...] = ()  # as `api.requests.Generation.blocks`
    removed: tuple[int, ...] = ()
    whole: bool = False  # nothing that was reported before holds any more
    partial: bool = False  # this is not all that it holds


Note = (
    CapacityExpected | RefusedUnread | ServedElsewhere | PeersServed | GatewayPlace | AdaptersHeld
    | BlocksHeld
)  # fmt: skip
"""An event that is counted, and from which no action follows at once."""

Event = (
    Arrive | Cancel | Replicas | Opened | Progress | Closed | Heard | Tick | Close | Reconfigure
    | Note
)  # fmt: skip
