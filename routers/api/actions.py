"""What does the dispatcher ask its caller to do? The actions that a step returns.

The caller performs them in the order in which they are returned. Actions are plain values; the
caller owns the connections, the payloads and the timer. Times are seconds on the caller's
monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.api.requests import FlowWork, Reason


@dataclass(slots=True, init=False)
class Dispatch:
    """Send these rows to this replica as one lease. What has a default here is set afterwards, on
    the way of a batch, where it differs."""

    lease_id: int
    replica_id: str
    rows: tuple[tuple[int, int], ...]  # (request_id, row index)
    bucket: int  # upper edge of the bucket that led the batch, tokens
    predicted_s: float  # service time on this replica

    # (late, priority, start tag) of the leading row. Of the batches staged at a replica the one of
    # the lowest rank starts next, and the other gateways' are returned unstarted.
    rank: tuple[int, int, float] = (0, 0, 0.0)
    # What each flow in the batch is charged, in seconds of the reference group. With a single group
    # the charges add up to `predicted_s`.
    charges: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] = ()  # work that waits at this gateway, by flow

    copy_of: int = 0  # the lease of the same rows that this one races; 0: none
    tied: bool = False  # of the two, the first to start cancels the other: report `Opened`
    tells_start: bool = False  # other gateways use the replica too: report `Opened`

    def __init__(
        self,
        lease_id: int,
        replica_id: str,
        rows: tuple[tuple[int, int], ...],
        bucket: int,
        predicted_s: float,
        rank: tuple[int, int, float] = (0, 0, 0.0),
    ) -> None:
        self.lease_id, self.replica_id, self.rows = lease_id, replica_id, rows
        self.bucket, self.predicted_s, self.rank = bucket, predicted_s, rank
        self.charges, self.waiting, self.copy_of = (), (), 0
        self.tied = self.tells_start = False

    @property
    def alone(self) -> bool:
        """Whether it is an `IsolatedDispatch`."""
        return False


@dataclass(slots=True, unsafe_hash=True)
class Abort:
    """Tell the replica to drop this lease: nobody waits for it (its members left, or its copy won),
    or its rows are preempted. A batch replica drops it if it has not started, a stream replica
    stops working on it. Best effort: in any case a `Closed` event must follow."""

    lease_id: int
    replica_id: str


@dataclass(slots=True)
class Reject:
    """Tell the caller of a request that it was refused before it was queued."""

    request_id: int
    reason: Reason
    retry_after_s: float = 0.0  # after which asking again may help; 0: never, or unknown


@dataclass(slots=True)
class Evict:
    """Tell the caller of a request that it was removed after it had been queued."""

    request_id: int
    reason: Reason
    retry_after_s: float = 0.0  # as in `Reject`


@dataclass(slots=True, init=False)
class WakeAt:
    """Set the dispatcher's one timer to this time, instead of any time that it was set to: call
    `step(Tick(), now)` then.

    A step returns at most one, and none while the timer is set to the same time or an earlier one.
    The timer counts as not set after any `Tick`, and after any step at or past its time. A `Tick`
    that comes early or too often does no harm.
    """

    at: float

    def __init__(self, at: float) -> None:
        self.at = at


Action = Dispatch | Abort | Reject | Evict | WakeAt


@dataclass(slots=True, init=False)
class IsolatedDispatch(Dispatch):
    """A `Dispatch` of one row that may have ended a replica before. The replica must report
    `Opened`, so that a second loss can be told from a loss before the row started."""

    @property
    def alone(self) -> bool:
        return True
