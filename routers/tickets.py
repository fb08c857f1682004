"""What the core keeps of a request until it is answered, evicted or cancelled.

A ticket is one live request, a row one of its queued units. A row stands in exactly one place: in a
bucket's queue, in an open lease (and perhaps a copy of it), or nowhere (done). That place is
recorded on the row itself, so that leaving a queue needs no search and a stale entry of a lazy heap
is recognised by looking at the row. Nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from routers.types import Request

if TYPE_CHECKING:
    from routers.admission.forecast import Forecast
    from routers.buckets.bucket import Bucket
    from routers.flows import Flow
    from routers.leases import Lease
    from routers.streams.generations import Plan


@dataclass(slots=True, eq=False)
class Row:
    """`order` numbers rows by arrival, across all requests. `edge`: of its bucket, `cost_s`: what
    its service was predicted to take when it came. `lease`, `copy`: where it stands, and what races
    that. `retried` rows travel alone and, where another replica runs, not to `avoid`, the replica
    that lost them. `copied`: it was in a copy once, `stopped`: it was stopped for more urgent work
    once, and will not be again."""

    ticket: Ticket
    index: int
    length: int
    order: int
    edge: int
    cost_s: float = 0.0
    queue: Bucket | None = None
    lease: Lease | None = None
    copy: Lease | None = None
    retried: bool = False
    copied: bool = False
    stopped: bool = False
    avoid: str = ""


@dataclass(slots=True, eq=False)
class Ticket:
    """`edge`: of its first row's bucket, `cost_s`: predicted seconds of all its rows when it came.
    `open`: rows queued or leased; 0 means forgotten. `queued`: of those, the queued ones.
    `late` once `latest_start` has passed: it can no longer be expected to meet its deadline.
    `forecast` of its wait, until it has become true or not. `rows`: once it may wait. `plan`: of
    one that generates."""

    request: Request
    flow: Flow
    queued_at: float
    latest_start: float
    open: int
    edge: int = 0
    cost_s: float = 0.0
    queued: int = 0
    late: bool = False
    forecast: Forecast | None = None
    rows: tuple[Row, ...] = ()
    plan: Plan | None = None
