"""Which batch gets a copy on another replica, when, and on which replica?

A *hedge* is sent once a batch has taken longer than the delay that a policy (`HedgeDelay`) derives
from its prediction and from what batches of its bucket take in its group. Time counts from its own
predicted start, so waiting behind a running batch is not slowness. A *tie* is sent at once, for a
batch staged behind a running one. A *probe* goes to an ejected replica.
- A hedge or tie goes to a healthy replica with a free slot and nothing more urgent, if replicas are
  not busy and the retry budget allows. A hedge must be able to meet a deadline of its rows.
- Only rows that may run twice and were never copied are copied: slow inputs set off no more copies.
- A lease far beyond its prediction is overdue, and so is its replica, copied or not.
Sources: Dean & Barroso, The Tail at Scale (CACM'13); budgets as in Finagle and gRPC A6.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Final

from routers.api.actions import Action, Dispatch
from routers.api.settings import DispatcherSettings, HedgeParameters, SilenceParameters
from routers.batch.lease import BatchLease, BatchReplica, BatchReplicas, FormedBatch
from routers.estimates.ratio_histogram import RatioHistogram
from routers.policies.hedging import HedgeDelay
from routers.policies.registry import HEDGINGS
from routers.shared.health import UNKNOWN_RATIO, Ejection, Silence
from routers.shared.races import Races
from routers.state.flows import Charge
from routers.state.leases import LeaseTable, copiable, row_ids
from routers.state.replica_state import OVERDUE, Origin
from routers.state.rows import Row

_MIN_S: Final = 0.001  # the shortest delay
_OVERDUE: Final = 3.0  # times the prediction
_MAX_BUCKETS: Final = 64  # whose ratios are kept


class Finding(Enum):
    """What a look at a lease has found."""

    EARLY = "early"  # nothing yet
    RACE = "race"  # from now on another replica should be asked
    OVERDUE = "overdue"
    BEHIND = "behind"  # it waits behind a slow lease, and is not slow itself


class Slowness:
    """Measured over predicted seconds of batches, by group and bucket, and what they say of a
    lease. `policy`: after how long a copy is due."""

    def __init__(self, settings: HedgeParameters, policy: HedgeDelay) -> None:
        self._ratios: dict[tuple[str, int], RatioHistogram] = {}
        self.adopt(settings, policy, frozen=False)

    def adopt(self, settings: HedgeParameters, policy: HedgeDelay, *, frozen: bool) -> None:
        """Go on under these settings."""
        self.settings, self.policy, self.frozen = settings, policy, frozen
        self.off = settings.mode == "off"

    def observe(self, lease: BatchLease, now: float) -> None:
        """The lease took until now, or longer: one that was given up after its delay counts as
        slow. At a replica that other gateways use too, only a lease whose start was reported is a
        sample: others would count the wait for other gateways' batches as slowness."""
        if self.frozen or lease.predicted_s <= 0.0:
            return
        if not self.off and lease.replica.foreign.seen_until > now and not lease.opened:
            return
        ratios = self._ratios_of(lease)
        if ratios is None:
            if len(self._ratios) >= _MAX_BUCKETS:
                del self._ratios[next(iter(self._ratios))]
            kind = lease.replica.group.name, lease.batch.edge
            ratios = self._ratios[kind] = RatioHistogram()
        ratios.observe((now - expected_start(lease)) / lease.predicted_s)

    def delay_s(self, lease: BatchLease) -> float | None:
        """Seconds from its start after which to race it; None: never."""
        if self.off:
            return None
        delay_s = self.policy.delay_s(lease.predicted_s, self._ratios_of(lease))
        return None if delay_s is None else max(_MIN_S, delay_s)

    def ratio(self, lease: BatchLease, quantile: float) -> float | None:
        """The quantile of measured over predicted seconds of batches in the lease's group and
        bucket; None: too few were measured."""
        ratios = self._ratios_of(lease)
        if ratios is None or ratios.samples < self.settings.min_samples:
            return None
        return ratios.quantile(quantile)

    def _ratios_of(self, lease: BatchLease) -> RatioHistogram | None:
        ratios = lease.ratios
        if ratios is None:
            ratios = self._ratios.get((lease.replica.group.name, lease.batch.edge))
            lease.ratios = ratios
        return ratios

    def check_at(self, lease: BatchLease) -> float:
        """When to look at the lease: it will be due for a copy then, or overdue."""
        delay_s = None if lease.hedge_due else self.delay_s(lease)
        if delay_s is None:
            delay_s = max(_MIN_S, _OVERDUE * lease.predicted_s)
        return expected_start(lease) + delay_s

    def judge(self, lease: BatchLease, now: float) -> Finding:
        """What is to be done about the lease, now that it is looked at."""
        if self.check_at(lease) > now:
            return Finding.EARLY
        if not lease.hedge_due and self.delay_s(lease) is not None:
            return Finding.RACE
        return Finding.OVERDUE if lease.replica.head() is lease else Finding.BEHIND


def expected_start(lease: BatchLease) -> float:
    """When the time of its answer begins to count. If the replica reported the start, that report
    was under way as long as the answer will be; otherwise the whole transport is added."""
    return lease.starts_at if lease.opened else lease.starts_at + (lease.replica.transport_s or 0.0)


class BatchSilence(Silence[BatchReplica]):
    """Of a batch replica: it owes the batch that is overdue. Batches of other gateways known to run
    before it add as much each."""

    def __init__(
        self, settings: SilenceParameters, replicas: BatchReplicas, slowness: Slowness
    ) -> None:
        super().__init__(settings, replicas)
        self._slowness = slowness

    def is_worth_a_look(self, replica: BatchReplica) -> bool:
        """From when its batch is overdue until it has answered."""
        return replica.reasons & OVERDUE > 0

    def owed(self, replica: BatchReplica) -> tuple[float, float, float] | None:
        head = replica.head()
        if head is None or not replica.reasons & OVERDUE:
            return None
        ratio = self._slowness.ratio(head, self.settings.quantile) or UNKNOWN_RATIO
        if not replica.answers:
            ratio = inf  # nothing is known of a replica's first batch
        return expected_start(head), (1 + replica.foreign.leases) * head.predicted_s, ratio


class Hedger:
    """Sends copies of batches."""

    def __init__(
        self,
        settings: DispatcherSettings,
        replicas: BatchReplicas,
        leases: LeaseTable[BatchLease],
        races: Races[BatchLease],
        slowness: Slowness,
        ejection: Ejection[BatchReplica],
    ) -> None:
        self._settings = settings
        self._replicas, self._leases, self._races = replicas, leases, races
        self._schedule, self._ejection = races.schedule, ejection
        self.slowness = slowness

    def adopt(self, settings: DispatcherSettings) -> None:
        """Adopt new settings; what was learnt is kept."""
        self._settings = settings
        policy = HEDGINGS[settings.policies.hedging](settings.hedge)
        self.slowness.adopt(settings.hedge, policy, frozen=settings.frozen)

    # -- when

    def watch(self, lease: BatchLease) -> None:
        """Plan the check of a batch's lease. To be called again when its predicted start has moved;
        a check that turns out too early is planned anew."""
        if lease.predicted_s > 0.0 and not lease.overdue:
            self._schedule.check_by(lease, self.slowness.check_at(lease))

    def predecessor_ended(self, lease: BatchLease) -> None:
        """The batch before this one has left the device, so that this one starts. It was late
        because it waited and not because it was slow: it is no longer overdue, and a race that is
        due and has no copy is called off."""
        lease.overdue = False
        if lease.other is None:
            lease.hedge_due = False
            self._schedule.remove(lease)
        self.watch(lease)

    def again(self, lease: BatchLease) -> None:
        """The other lease of its race never started: the lease may be raced once more."""
        if lease.is_copy:
            lease.hedge_due = False
            self.watch(lease)
        elif lease.hedge_due:
            self._schedule.add(lease)

    def overdue(self, now: float) -> BatchLease | None:
        """Check all leases whose check is due: the next one that is now overdue; None: no further
        one is. Leases found slow on the way become candidates for a copy."""
        slowness, schedule = self.slowness, self._schedule
        while (lease := schedule.due(now)) is not None:
            finding = slowness.judge(lease, now)
            if finding is Finding.EARLY:
                schedule.check_at(lease, slowness.check_at(lease))
            elif finding is Finding.RACE:
                lease.hedge_due = True
                schedule.add(lease)
                schedule.check_at(lease, max(now, slowness.check_at(lease)))
            elif finding is Finding.OVERDUE:
                lease.call_overdue()
                return lease
        return None

    def needs_start(self, replica: BatchReplica, now: float) -> bool:
        """Whether the replica must say when a batch starts: other gateways' batches may run before
        it, and waiting for them would count as slowness."""
        races = not self.slowness.off and self._replicas.running > 1
        return races and replica.foreign.seen_until > now

    # -- where

    def hedge(self, now: float, actions: list[Action]) -> None:
        """Send copies of the oldest candidates, as far as replicas and budget allow."""
        schedule = self._schedule
        if not schedule.candidates or self._races.is_too_busy:
            return
        for lease in schedule.first():
            rows = copiable(lease)
            if not rows or not self._can_meet_a_deadline(lease, rows, now):
                schedule.remove(lease)
                continue
            dispatch = self._send_copy(lease, rows, Origin.HEDGE, now)
            if dispatch is not None:
                schedule.remove(lease)
                self._races.counts.hedges += 1
                self._stage_nothing_behind(lease, now)
                actions.append(dispatch)

    def tie(self, lease: BatchLease, now: float) -> Dispatch | None:
        """A copy of a lease that was just staged behind a running batch; None: no replica is ready,
        or the replicas are too busy, or the budget is too low."""
        if self._races.is_too_busy:
            return None
        rows = copiable(lease)
        dispatch = self._send_copy(lease, rows, Origin.TIE, now) if rows else None
        if dispatch is not None:
            self._races.counts.ties += 1
        return dispatch

    def probe(self, lease: BatchLease, now: float) -> Dispatch | None:
        """A copy of a lease that was just opened, to an ejected replica of its group that is due
        for a probe; None: there is none, or no row of the lease may be copied."""
        replica = self._ejection.to_probe(lease.replica.group, now)
        rows = copiable(lease) if replica is not None and replica is not lease.replica else []
        if replica is None or not rows or _longest(rows) > replica.group.longest:
            return None
        self._ejection.probed(replica)
        self._races.counts.probes += 1
        return self._copy(lease, replica, rows, Origin.PROBE, now)

    def _stage_nothing_behind(self, lease: BatchLease, now: float) -> None:
        """Call the raced lease overdue if it is the one that runs: then nothing is staged behind it
        until it has closed."""
        if lease.replica.head() is lease:
            lease.call_overdue()
            self._replicas.refresh(lease.replica, now)

    def _can_meet_a_deadline(self, lease: BatchLease, rows: list[Row], now: float) -> bool:
        """Whether a copy in the fastest healthy group could meet the deadline of one of the rows at
        least."""
        groups = {lease.replica.group}
        if len(self._replicas.groups.by_name) > 1:
            longest = _longest(rows)
            groups |= {
                each
                for each in self._replicas.groups.all()
                if each.healthy and longest <= each.longest
            }
        seconds = min([group.cost.predict(len(rows), lease.batch.width) for group in groups])
        return max(row.tracked.request.deadline for row in rows) - now > seconds

    def _send_copy(
        self, lease: BatchLease, rows: list[Row], origin: Origin, now: float
    ) -> Dispatch | None:
        replicas, spare = self._replicas, origin is Origin.TIE

        def accept(replica: BatchReplica) -> Dispatch | None:
            width = self._width(lease, rows)
            if not self._may_take(replica, lease) or not _fit(rows, width, replica, lease):
                return None
            seconds = replica.group.cost.predict(len(rows), width, replica.spec.replica_id)
            if replica.group is not lease.replica.group and seconds > _useful_s(lease, rows, now):
                return None
            if not self._races.budget.affords(seconds, spare=spare):
                return None
            return self._copy(lease, replica, rows, origin, now)

        return replicas.ready.first(accept, now)

    def _may_take(self, replica: BatchReplica, lease: BatchLease) -> bool:
        if replica is lease.replica or not replica.answers:
            return False
        urgency = lease.rank[:2]
        return all(other.rank[:2] >= urgency for other in replica.leases.values())

    def _width(self, lease: BatchLease, rows: list[Row]) -> int:
        """The width of a batch of these rows, which may be fewer than the lease's."""
        settings, batch = self._settings, lease.batch
        if settings.buckets.fixed_shapes or len(rows) == len(batch.rows):
            return batch.width
        lengths = [row.length for row in rows]
        return max(lengths) if settings.pads else -(-sum(lengths) // len(lengths))

    def _copy(
        self, lease: BatchLease, replica: BatchReplica, rows: list[Row], origin: Origin, now: float
    ) -> Dispatch:
        replica_id, batch = replica.spec.replica_id, lease.batch
        width = self._width(lease, rows)
        seconds = replica.group.cost.predict(len(rows), width, replica_id)
        unstarted = not lease.opened and lease.replica.head() is not lease
        copied = FormedBatch(rows, width, batch.edge, Charge(lease.rank, seconds))
        copy = BatchLease(self._leases.next_id(), replica, copied, now)
        replica.took(copy)
        tied = unstarted and origin is not Origin.PROBE
        self._leases.sign_copy(copy, lease, origin, seconds, tied=tied)
        self._races.budget.pay(seconds)
        self.watch(copy)
        self._replicas.refresh(replica, now)
        dispatch = Dispatch(
            copy.lease_id, replica_id, row_ids(rows), batch.edge, seconds, lease.rank
        )
        dispatch.copy_of, dispatch.tied = lease.lease_id, tied
        dispatch.tells_start = self.needs_start(replica, now)
        return dispatch


def _longest(rows: list[Row]) -> int:
    return max([row.length for row in rows])


def _fit(rows: list[Row], width: int, replica: BatchReplica, lease: BatchLease) -> bool:
    """Whether the replica's group takes rows of these lengths, and as many as they are."""
    group = replica.group
    if _longest(rows) > group.longest:
        return False
    return group is lease.replica.group or group.holds(len(rows), width)


def _useful_s(lease: BatchLease, rows: list[Row], now: float) -> float:
    """Seconds that a copy in another group may take to be of use: until the latest deadline of the
    rows and, where the lease has yet to start, until its own predicted answer."""
    due_s = max(row.tracked.request.deadline for row in rows) - now
    if lease.opened or lease.starts_at <= now:
        return due_s
    return min(due_s, lease.starts_at + lease.predicted_s - now)
