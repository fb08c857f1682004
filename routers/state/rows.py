"""A request as the core keeps it, and its rows, each of which stands in exactly one place.

Rows know where they stand by handles, because the classes of buckets (`lanes`) and leases
(`replica_state`) import this module. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

from routers.api.requests import Request
from routers.policies.admission.types import RequestView
from routers.state.flows import Flow


class BucketHandle(Protocol):
    """What a row needs of the bucket in which it waits."""

    edge: int


class LeaseHandle(Protocol):
    """What a row needs of the lease in which it stands, so as to leave it."""

    lease_id: int
    live: int
    aborted: bool

    @property
    def is_probe(self) -> bool: ...

    @property
    def replica_id(self) -> str: ...

    @property
    def is_suspended(self) -> bool: ...


# Plain classes, because what is made for each row or request is made seven times faster so once
# compiled: a dataclass's own constructor stays interpreted.


class Row:
    """One queued unit of a request.

    A row stands in exactly one place, recorded here: in a bucket (`queue`), in an open lease
    (`lease`, and `copy` while that lease is raced), or nowhere, when it is done. So leaving a queue
    needs no search, and a stale entry of a lazy heap is recognised by looking at its row.
    """

    tracked: TrackedRequest
    index: int  # of the row in its request
    length: int  # tokens
    order: int  # numbers rows by arrival, across all requests
    edge: int  # of its bucket
    cost_s: float  # predicted service seconds, as of its arrival
    rank: float  # by which it is queued, the lowest first: its deadline, or `order`

    bucket: BucketHandle | None
    lease: LeaseHandle | None
    copy: LeaseHandle | None  # the lease that races `lease` for this row

    isolated: bool  # lost once, failed once, or a suspect from the start
    copied: bool  # stood in a copy once
    stopped: bool  # was stopped for more urgent work once, and will not be again
    failed: bool  # the model has failed on it once
    avoid: str  # the replica that failed it, not used while another one runs; "": none
    held_until: float  # not tried before where its loss would leave no well replica
    losses: int  # leases that were lost with it, failed on it, or that it was moved out of
    # Leases at silent replicas that it was moved out of. One that is answered after all answers it.
    moved_from: tuple[LeaseHandle, ...]
    shown: bool  # its caller has had a part of its answer: it stays where it runs

    def __init__(
        self,
        tracked: TrackedRequest,
        index: int,
        length: int,
        order: int,
        edge: int,
        cost_s: float = 0.0,
    ) -> None:
        self.tracked, self.index, self.length, self.order = tracked, index, length, order
        self.edge, self.cost_s, self.rank = edge, cost_s, 0.0
        self.bucket = self.lease = self.copy = None
        self.isolated = self.copied = self.stopped = self.failed = self.shown = False
        self.avoid, self.held_until, self.losses, self.moved_from = "", -inf, 0, ()

    @property
    def is_retry(self) -> bool:
        """Whether it was lost with a replica, or failed on one, and runs once more; not a suspect
        that has yet to run."""
        return self.isolated and (self.losses > 0 or self.failed)

    def go_alone(self, avoid: str = "") -> None:
        """It travels in a batch of its own and, while other replicas run, not to the replica
        `avoid` ("": to any)."""
        self.isolated, self.avoid = True, avoid

    def move(self, avoid: str) -> None:
        """It is moved away from the silent replica `avoid`, on which it may still be running."""
        self.avoid = avoid
        self.losses += 1


class TrackedRequest(RequestView):
    """What the core keeps of a request while any of its rows is queued or leased."""

    request: Request
    flow: Flow
    edge: int  # of its first row's bucket; `forecast_edge`, where forecasts tell lengths apart
    queued: int  # of the open rows, those that wait
    late: bool  # `latest_start` has passed: it is not expected to meet its deadline
    timer_at: float  # when the passing of time next changes what may become of it
    rows: tuple[Row, ...]  # () until it may wait
    work_s: float  # offered work, as `routers.state.offered` prices it

    def __init__(
        self,
        request: Request,
        flow: Flow,
        queued_at: float,
        latest_start: float,
        edge: int = 0,
        cost_s: float = 0.0,
    ) -> None:
        self.request, self.flow, self.queued_at = request, flow, queued_at
        self.latest_start, self.edge, self.cost_s = latest_start, edge, cost_s
        self.open, self.queued, self.late = len(request.lengths), 0, False
        self.forecast_s, self.rows, self.forecast_edge = None, (), edge
        self.work_s, self.timer_at = 0.0, inf
