"""What the core decides, for its caller to carry out, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routers.api.requests import FlowWork, Reason


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send these rows, as one lease, to this replica. `rows` are (request_id, row index).

    rank: (late, priority, start tag) of the row that leads; of the batches staged at a replica the
    lowest starts next, and the others are returned unstarted. charges: what each flow in it is
    charged, seconds of the reference group; of one group their sum is `predicted_s`. waiting: what
    waits here, by flow. copy_of: the lease of the same rows that this one races, 0: none; tied: the
    first of the two to start cancels the other, so the replica reports `Opened`."""

    alone: ClassVar[bool] = False
    lease_id: int
    replica_id: str
    rows: tuple[tuple[int, int], ...]
    bucket: int  # upper edge of the bucket that led the batch, tokens
    predicted_s: float
    rank: tuple[int, int, float] = (0, 0, 0.0)
    charges: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] = ()
    copy_of: int = 0
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """Nobody waits for this lease (its members left, or its copy won), or its rows are wanted back
    (preempted): a replica drops it unstarted where it can, a stream replica stops working on it.
    Best effort: whatever happens, `Closed` follows."""

    lease_id: int
    replica_id: str


@dataclass(frozen=True, slots=True)
class Reject:
    request_id: int
    reason: Reason
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Evict:
    request_id: int
    reason: Reason
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `step(Tick(), now)` at this time: the one timer is set anew, whatever it was set to.

    At most one a step, and none while the timer stands at an earlier or the same time; it counts as
    gone after any `Tick` and after any step at or past its time. A needless `Tick` does no harm.
    """

    at: float


Action = Dispatch | Abort | Reject | Evict | WakeAt


@dataclass(frozen=True, slots=True)
class LoneDispatch(Dispatch):
    """Of a row that may have ended a replica; so this one reports `Opened`."""

    alone: ClassVar[bool] = True
