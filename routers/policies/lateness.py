"""Until when may a request wait that is no longer expected to meet its deadline, and may it at all?

Until its deadline. After the deadline it may wait no longer with `late="refuse"`, and until it
expires with `late="demote"`. Always only while there is a place for it among the late rows that
wait, and while late work fits into half of what idle moments could serve before it expires: the
share of the replicas' time that on-time work has lately left, times its seconds, times the
replicas. A request that was waiting when its deadline passed may count on all idle moments. In
lasting overload a new late request is so refused at once instead of expiring slowly. That cannot
latch: time that passes without on-time work opens it again. A device that hangs counts as idle.
Unit: predicted device seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from routers.api.requests import FlowWork, Request
from routers.api.settings import DispatcherSettings, Mode
from routers.estimates.averages import DecayingRate
from routers.state.flows import Flow
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest

_SLOS = 5.0  # SLOs that an average spans at least, hence several batches
_IDLE_SHARE = 0.5  # of what idle moments could serve, that new requests may count on
_NOISE = 0.02  # an idle share up to this is only the ripple of the average
_WINDOW_S = 2.0


@dataclass(slots=True)
class Verdicts:
    """Whether a shedding policy's no is enforced, and how often it has said no.

    With mode `OFF` the policy is not asked (`off`); `OBSERVE` counts a no and lets the request
    pass; `ENFORCE` counts and sheds. A no that is only observed changes nothing, so under lasting
    overload `would_shed` is larger than what `ENFORCE` would shed.
    """

    mode: Mode
    shed: int = 0
    would_shed: int = 0
    off: bool = field(init=False)

    def __post_init__(self) -> None:
        self.tune(self.mode)

    def tune(self, mode: Mode) -> None:
        """Set the mode; counts stay."""
        self.mode, self.off = mode, mode is Mode.OFF

    @property
    def acts(self) -> bool:
        """Whether a no is enforced."""
        return self.mode is Mode.ENFORCE

    def no(self) -> bool:
        """Count a no. Returns whether it is enforced."""
        if self.mode is Mode.ENFORCE:
            self.shed += 1
            return True
        self.would_shed += 1
        return False


def window_s(min_s: float, settings: DispatcherSettings) -> float:
    """Seconds that an average should span whose samples come in batches: at least `min_s`, and
    several SLOs."""
    return max(min_s, _SLOS * settings.slo_s)


@dataclass(slots=True)
class LateWork:
    """Late work that would wait with the request in question."""

    work_s: float  # predicted device seconds of all of it, the request included
    left_s: float  # until the request expires
    capacity: float  # running replicas, in those of the reference group; 0: none runs
    is_new: bool  # the request has just arrived; else it waits, and its deadline has passed


class BestEffortCapacity:
    """May another late request wait, or is there no idle moment left that could serve it?

    Keeps a decaying rate of the device seconds that on-time work takes.
    """

    def __init__(self) -> None:
        self.verdicts = Verdicts(Mode.ENFORCE)
        self._on_time = DecayingRate(_WINDOW_S)
        self._fixed_s: float | None = None
        self._frozen = False

    def tune(self, settings: DispatcherSettings) -> None:
        """Adopt new settings; what was learnt stays."""
        self.verdicts.tune(settings.admission.feasibility)
        self._on_time.window_s = window_s(_WINDOW_S, settings)
        self._fixed_s = settings.admission.best_effort_capacity_s
        self._frozen = settings.frozen

    def refuses(self, late: LateWork, now: float) -> bool:
        """Whether the late work may not wait; changes nothing."""
        work_s = late.work_s if late.is_new else _IDLE_SHARE * late.work_s
        return work_s > self.capacity_s(late.left_s, late.capacity, now)

    def served(self, work: Sequence[FlowWork], now: float, *, late: bool) -> None:
        """On-time rows had a replica for so long: from dispatch, or from the end of the lease
        before, to the answer. A batch with on-time and late rows counts whole."""
        if not (late or self._frozen):
            self._on_time.add(sum([seconds for _, _, seconds in work]), now)

    def value(self, capacity: float, now: float) -> float:
        """The share of the replicas' time that on-time work leaves, 0 to 1."""
        taken = self._on_time.value if self._frozen else self._on_time.read(now)
        left = 1.0 - taken / (capacity or 1.0)
        return max(0.0, left - _NOISE) / (1.0 - _NOISE)

    def capacity_s(self, time_left_s: float, capacity: float, now: float) -> float:
        """Predicted device seconds of late work that may wait."""
        if self._fixed_s is not None:
            return self._fixed_s
        return _IDLE_SHARE * self.value(capacity, now) * time_left_s * (capacity or 1.0)


def next_moment(tracked: TrackedRequest, now: float) -> float:
    """When the passing of time next changes what may become of the request: it turns late, reaches
    its deadline, or expires."""
    if not tracked.late:
        return tracked.latest_start
    request = tracked.request
    return request.deadline if now < request.deadline else request.expires


def is_over(request: Request, settings: DispatcherSettings, now: float) -> bool:
    """Whether the request's deadline has passed and settings let nothing wait beyond it."""
    return settings.late == "refuse" and request.deadline <= now


def keeps_its_place(tracked: TrackedRequest, settings: DispatcherSettings) -> bool:
    """Whether the request stays among the on-time ones because a row of it waits that was lost with
    a replica: it was sent in time, and may have to wait for another replica before it is tried
    again. Rows that came as suspects, and rows that the model failed on, do not count. O(rows)."""
    return settings.late == "demote" and any(
        row.isolated and row.losses and not row.failed and row.bucket is not None
        for row in tracked.rows
    )


def has_place(rows: int, flow: Flow, waiting: RequestQueue, settings: DispatcherSettings) -> bool:
    """Whether so many more rows may wait late: places are free, or the tenant has less than its
    share of them, whichever tenants have taken them."""
    most, tenant = settings.max_late_rows, flow.tenant
    if waiting.late_rows + rows <= most:
        return True
    shares = waiting.shares
    return shares.late_rows_of(tenant) + rows <= most * shares.part(tenant, flow.weight)


def is_refused(
    tracked: TrackedRequest, waiting: RequestQueue, settings: DispatcherSettings, now: float
) -> bool:
    """Whether a late request may not stay, or one that becomes late has no place among the late
    rows."""
    joining = 0 if tracked.late else tracked.queued
    return is_over(tracked.request, settings, now) or (
        joining > 0 and not has_place(joining, tracked.flow, waiting, settings)
    )
