"""What may be done twice, and how often was it? The floor on which both kinds' copies stand.

A retry budget pays for copies, probes and retries; no copy is sent while replicas are too busy. The
kinds decide which leases are slow and which replica takes a copy (`batch.hedging`,
`stream.first_tokens`). Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from routers.api.settings import DispatcherSettings
from routers.estimates.averages import Utilisation
from routers.state.replica_state import AnyLease
from routers.state.timers import CheckTimes

# Candidates looked at in one step, so that a step stays short however many there are
_TRIES: Final = 4
_CAP_BATCHES: Final = 20.0  # the most that is saved or owed, in mean batches
_START_BATCHES: Final = 2.0  # what the budget starts with, in mean batches
_BATCH_GAIN: Final = 0.05  # of the moving average of a batch's cost

L = TypeVar("L", bound=AnyLease)


@dataclass(slots=True)
class DispatchCounts:
    """Counts since the start, and two losses of staging, EWMAs in seconds, from what answers
    report. Just-in-time staging is right when neither loss is worth naming."""

    hedges: int = 0
    hedges_won: int = 0
    ties: int = 0
    probes: int = 0
    retries: int = 0
    suspensions: int = 0
    moved_rows: int = 0
    late_rows_used: int = 0  # moved rows whose first replica answered them after all
    evictions: int = 0
    preempted: int = 0

    # Device seconds from the end of a batch to the start of the next, where the next was sent no
    # later than the answer to the first came, and no other gateway was served between.
    idle_gap_s: float = 0.0
    # Seconds that a staged batch waited at its replica: its rows could not be bound otherwise.
    early_binding_s: float = 0.0


class Budget:
    """May device time be spent on work that is already being done elsewhere?

    One account, in predicted device seconds, for hedges, tied copies, probes and retries. Each
    primary batch earns a share of its own cost. Each extra batch pays its whole cost, and gets it
    back when one of the two turns out never to have started. Work that may wait asks first
    (`affords`). Retries and probes are never refused, because losing no work ranks above, but they
    pay all the same, so hedging stops while they are many. The level is capped both ways, so that
    neither a long calm nor a bad minute is remembered for long.
    """

    def __init__(self, share: float) -> None:
        self.share = share  # extra seconds that a primary second earns
        self.level_s = 0.0  # may be spent; may be negative
        self._batch_s = 0.0  # mean predicted cost of a primary batch; 0.0: none was sent yet

    def earn(self, cost_s: float) -> None:
        """A primary batch of this predicted cost was sent."""
        if cost_s <= 0.0:
            return
        if not self._batch_s:
            self._batch_s = cost_s
            self.level_s += _START_BATCHES * cost_s if self.share > 0.0 else 0.0
        self._batch_s += _BATCH_GAIN * (cost_s - self._batch_s)
        self._add(self.share * cost_s)

    def affords(self, cost_s: float, *, spare: bool = False) -> bool:
        """Whether so many seconds may be spent. `spare`: only from the upper half of the budget,
        which more urgent copies will hardly need."""
        reserve = 0.5 * _CAP_BATCHES * self._batch_s if spare else 0.0
        return self.level_s >= cost_s + reserve

    def pay(self, cost_s: float) -> None:
        """Extra work of this predicted cost was sent."""
        self._add(-cost_s)

    def refund(self, cost_s: float) -> None:
        """Extra work that was paid for has cost nothing."""
        self._add(cost_s)

    def _add(self, seconds: float) -> None:
        cap = _CAP_BATCHES * self._batch_s
        self.level_s = min(cap, max(-cap, self.level_s + seconds))


class CopySchedule(Generic[L]):
    """The planned checks of leases, and the candidates for a copy.

    A lease is checked at the time that its kind names. One that is found slow becomes a candidate,
    until it has a copy, may have none any more, or has closed. Work: O(log n) a check, n being the
    leases with a planned check.
    """

    def __init__(self) -> None:
        self.check_times: CheckTimes[Any] = CheckTimes()
        self.candidates: dict[Any, None] = {}  # ordered set, oldest first

    # -- checks

    def check_at(self, lease: L, at: float) -> None:
        """Check the lease at `at`, whatever was planned before; inf: never."""
        self.check_times.look_at(lease, at, lease.lease_id)

    def check_by(self, lease: L, at: float) -> None:
        """Check the lease at `at`, unless an earlier check is planned."""
        if at < self.check_times.at(lease):
            self.check_at(lease, at)

    def next_check_at(self) -> float:
        """When the next lease is checked; inf: no check is planned."""
        return self.check_times.next_at()

    def due(self, now: float) -> L | None:
        """A lease whose check is due, once for each planned check; None: no further one is."""
        due = self.check_times.due(now)
        return None if due is None else due[0]

    # -- candidates

    def add(self, lease: L) -> None:
        """The lease should get a copy as soon as a replica and the budget allow."""
        self.candidates[lease] = None

    def remove(self, lease: AnyLease) -> None:
        """The lease is no candidate any more; its planned check stays."""
        if lease in self.candidates:
            del self.candidates[lease]

    def first(self) -> list[L]:
        """The oldest candidates: as many as one step tries."""
        return list(self.candidates)[:_TRIES]

    def forget(self, lease: AnyLease) -> None:
        """Neither check nor copy the lease any more: it has closed, or its race is decided."""
        self.check_times.drop(lease)
        if lease in self.candidates:
            del self.candidates[lease]


class Races(Generic[L]):
    """The budget, the counts and the schedule of one model's copies."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self.hedge = settings.hedge
        self.budget = Budget(settings.hedge.budget)
        self.utilisation = Utilisation()
        self.counts = DispatchCounts()
        self.schedule: CopySchedule[L] = CopySchedule()

    def adopt(self, settings: DispatcherSettings) -> None:
        """Adopt new settings; what was learnt is kept."""
        self.hedge = settings.hedge
        self.budget.share = settings.hedge.budget

    @property
    def is_too_busy(self) -> bool:
        """Whether replicas are busier than `hedge.max_utilisation`, so that no copy is sent."""
        return self.utilisation.share > self.hedge.max_utilisation

    def pay_or_earn(self, predicted_s: float, *, is_retry: bool) -> None:
        """A lease was sent for rows that waited. A retry is paid from the budget; any other lease
        adds its share to the budget."""
        if is_retry:
            self.budget.pay(predicted_s)
            self.counts.retries += 1
        else:
            self.budget.earn(predicted_s)
