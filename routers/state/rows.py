"""A request as the core keeps it, and its rows, each of which stands in exactly one place.

They know where they stand by handles: what a bucket and a lease are is `lanes`' and `leases`'
matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from routers.api.requests import Request
from routers.estimates.generations import GenerationPlan
from routers.state.flows import Flow


class BucketHandle(Protocol):
    """What a row knows of the bucket that it waits in."""

    edge: int


class LeaseHandle(Protocol):
    """What a row knows of the lease it stands in: enough to leave it."""

    lease_id: int
    live: int
    probe: bool
    aborted: bool

    @property
    def replica_id(self) -> str: ...

    @property
    def is_suspended(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Row:
    """One queued unit of a request. It stands in exactly one place, recorded here: in a bucket's
    queue, in an open lease (and perhaps a copy of it), or nowhere (done). So leaving a queue needs
    no search, and a stale entry of a lazy heap is recognised by looking at the row.

    `order` numbers rows by arrival, across all requests. `edge`: of its bucket, `cost_s`: what
    its service was predicted to take when it came. `lease`, `copy`: where it stands, and what races
    that. `retried` rows travel alone and, where another replica runs, not to `avoid`, the replica
    that lost them, nor until `held_until` where that would risk the last one. `losses`: leases that
    were lost with it, failed on it, or that it has left behind; `failed`: one has failed on it.
    `copied`: it was in a copy once, `stopped`: it was stopped for more urgent work once, and will
    not be again. `moved_from`: the leases at silent replicas that it stood in; one that is answered
    after all answers it."""

    tracked: TrackedRequest
    index: int
    length: int
    order: int
    edge: int
    cost_s: float = 0.0
    queue: BucketHandle | None = None
    lease: LeaseHandle | None = None
    copy: LeaseHandle | None = None
    retried: bool = False
    copied: bool = False
    stopped: bool = False
    failed: bool = False
    avoid: str = ""
    held_until: float = -inf
    losses: int = 0
    moved_from: tuple[LeaseHandle, ...] = ()

    @property
    def is_retry(self) -> bool:
        """It was lost with a replica, or failed on one, and runs once more: not a suspect that has
        yet to run."""
        return self.retried and (self.losses > 0 or self.failed)

    def lost(self) -> None:
        """Its lease brought nothing."""
        self.losses += 1

    def fail(self, avoid: str) -> None:
        """The model failed on it at the replica `avoid`; it runs once more."""
        self.failed = True
        self.go_alone(avoid)

    def go_alone(self, avoid: str) -> None:
        """In a batch of its own, and while others run not on the replica `avoid`."""
        self.retried, self.avoid = True, avoid

    def hold(self, until: float) -> None:
        """It does not risk the last replica before."""
        self.held_until = until

    def move(self, avoid: str) -> None:
        """Away from a silent replica where it may run all the same."""
        self.avoid = avoid
        self.losses += 1

    def stop(self) -> None:
        """It was taken back for more urgent work, which happens once."""
        self.stopped = True


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """`edge`: of its first row's bucket, `cost_s`: predicted seconds of all its rows when it came.
    `open`: rows queued or leased; 0 means forgotten. `queued`: of those, the queued ones.
    `late` once `latest_start` has passed: it can no longer be expected to meet its deadline.
    `forecast_s`: its queue wait, until that has become true or not; of one that came while no
    replica ran, or late, there is none. `rows`: once it may wait. `plan`: of
    one that generates. `work_s`: as `routers.state.offered` prices it."""

    request: Request
    flow: Flow
    queued_at: float
    latest_start: float
    open: int
    edge: int = 0
    cost_s: float = 0.0
    queued: int = 0
    late: bool = False
    forecast_s: float | None = None
    rows: tuple[Row, ...] = ()
    plan: GenerationPlan | None = None
    work_s: float = 0.0
