"""The groups of replicas that serve one model: what each has learnt, and how much it can do.

A group is replicas of one kind: one runtime on one sort of device. Each group has its own costs
(fit, slowdowns, scatter), batch sizes, turnaround and engine speed, so that a GPU's measurements
never teach a CPU's predictions.

Work of several groups has one unit: predicted device seconds of the *reference* group, the first in
the settings. A replica of a group does `speed` of them a second, found from what a row costs in the
typical batch of each group. So a tenant pays for its rows, not for where they were served. A
reserve group is used only while work would wait for the other groups longer than its `after_s`. It
decides which groups may be used, never which replica. Work: a look at each group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from routers.api.settings import DispatcherSettings, GroupSettings, length_bounds
from routers.estimates.averages import PeerLoad
from routers.estimates.batch_size import BatchSizes
from routers.estimates.cost.model import CostModel
from routers.estimates.engine_speed import EngineSpeed
from routers.estimates.turnaround import Turnaround

_BATCH_GAIN: Final = 0.05
_SPEED_GAIN: Final = 0.05
_STREAM_SCV: Final = 1.0  # lengths of answers are about exponentially distributed
_MIN_SPEED: Final = 1e-4
_MAX_SPEED: Final = 1e4
ANY_LENGTH: Final = 1 << 62  # longer than any row


@dataclass(frozen=True, slots=True)
class LengthRange:
    """The lengths of rows that a replica may take. Both ends are edges of buckets, so that it may
    take all rows of a bucket or none."""

    above: int = 0  # exclusive
    longest: int = ANY_LENGTH  # inclusive

    def __contains__(self, edge: int) -> bool:
        return self.above < edge <= self.longest


@dataclass(frozen=True, slots=True)
class PlannedService:
    """What a group's service takes, for capacity planning.

    For batches: seconds of a full batch of the kind typically sent, mean (`seconds`) and 99th
    percentile, and the squared coefficient of variation (`scv`) of the service time over batches of
    all kinds. For streams: mean and margin of the time to the first token.
    """

    seconds: float
    p99_s: float
    scv: float


class ReplicaGroup:
    """One group: its estimates, and counts of its replicas."""

    def __init__(self, name: str, index: int, settings: DispatcherSettings) -> None:
        # `index`: how many groups there were before; `settings`: with those that differ for it.
        self.name, self.index, self.settings = name, index, settings
        self.cost = CostModel.of(settings)
        self.turnaround = Turnaround()
        self.engine: EngineSpeed | None = None  # of stream replicas
        self._adopt_engine(settings)
        self.sizes = BatchSizes(settings, self.cost)
        self.after_s = 0.0  # of a reserve: used if work waits longer on the others; 0: no reserve
        self.longest = ANY_LENGTH  # row that it takes
        self.lengths: LengthRange | None = None  # of rows that it may take now; None: all
        self.running = self.healthy = 0  # replicas
        self.speed = 1.0  # reference seconds of work that a replica of it does a second
        # Predicted seconds of a typical batch (EWMA), and of the group's next batch.
        self.batch_s = self.next_s = 0.0
        # Predicted seconds of a full batch of the kind typically sent: mean and mean square.
        self.planned_s = self.planned_sq_s2 = 0.0
        self.max_streams = inf  # leases of a stream replica that keep the promised time a token
        # May be used now; its free replicas, when last asked, left what waits to faster groups.
        self.is_open, self.holds_back = True, False
        # Of healthy replicas with work: the sum of their predicted finishes, and their number.
        self._finish_sum_s, self._busy = 0.0, 0

    def adopt(self, settings: DispatcherSettings, edges: tuple[int, ...]) -> None:
        """Go on under these settings. `edges`: of new requests' buckets."""
        self.settings = settings
        self.cost.adopt(settings)
        self._adopt_engine(settings)
        self.sizes = BatchSizes(settings, self.cost)
        self.turnaround.keep(edges, settings.initial_cost_s)

    def _adopt_engine(self, settings: DispatcherSettings) -> None:
        generation = settings.generation
        if generation is None:
            self.engine = None
        elif self.engine is None:
            self.engine = EngineSpeed(generation)
        else:
            self.engine.adopt(generation)
        if self.engine is not None:
            self.engine.frozen = settings.frozen

    def took(self, predicted_s: float, edge: int) -> None:
        """A batch was sent, predicted to take `predicted_s` and led by the bucket `edge`."""
        known = self.batch_s
        self.next_s = self.batch_s = known + (_BATCH_GAIN if known else 1.0) * (predicted_s - known)
        if self.engine is None:
            full_s, gain = self.sizes.full_s(edge), _BATCH_GAIN if self.planned_s else 1.0
            self.planned_s += gain * (full_s - self.planned_s)
            self.planned_sq_s2 += gain * (full_s * full_s - self.planned_sq_s2)

    def service(self) -> PlannedService:
        """What capacity planning reckons with for this group."""
        if self.engine is not None:
            mean_s, margin_s = self.turnaround.typical_s()
            return PlannedService(mean_s, margin_s, _STREAM_SCV)
        mean_s, square_s2 = self.planned_s, self.planned_sq_s2
        if not mean_s:
            _, mean_s = self.sizes.shown(self.settings.bucket_edges[-1])
            square_s2 = mean_s * mean_s
        scatter = self.cost.scatter()
        apart = square_s2 / (mean_s * mean_s) if mean_s > 0.0 else 1.0
        return PlannedService(
            mean_s, mean_s * scatter.p99, max(0.0, apart * (1.0 + scatter.scv) - 1.0)
        )

    # -- how much of the group is in use

    def begin_count(self) -> None:
        """Reset all counts of replicas; they are counted anew."""
        self.running = self.healthy = self._busy = 0
        self._finish_sum_s = 0.0

    def busy_until(self, before: float, after: float) -> None:
        """The predicted finish of one of its healthy replicas has moved; 0.0: it is free now."""
        self._finish_sum_s += after - before
        self._busy += (after > 0.0) - (before > 0.0)

    def held_s(self, now: float) -> float:
        """Predicted seconds of work that its healthy replicas still hold, summed."""
        if not self._busy:
            return 0.0
        return max(0.0, self._finish_sum_s - self._busy * now)

    def holds(self, rows: int, width: int) -> bool:
        """Whether a batch of so many rows is within the group's bounds; a single row always is."""
        settings = self.settings
        fits = rows <= settings.max_size and rows * width <= settings.max_tokens
        return fits or rows == 1

    @property
    def max_work_s(self) -> float:
        """Work of the longest batch of more than one row, reference seconds."""
        return self.sizes.max_s() * self.speed

    def forecast_s(self, rows: int, edge: int) -> float:
        """Predicted seconds of the batch that it would form of these rows at once."""
        return self.cost.predict(min(rows, self.sizes.target(edge)), edge)


class ReplicaGroups:
    """All groups of one model."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self.by_name: dict[str, ReplicaGroup] = {}
        self.capacity = 0.0  # work of the running replicas, reference seconds a second
        self.peers = PeerLoad()  # what other gateways take of it
        self.bounds: tuple[int, ...] = ()  # lengths at which groups end, see `length_bounds`
        self._edges = settings.bucket_edges
        self._groups_opened = 0  # groups so far
        self.alone: Turnaround | None = None  # of the group, where there is only one
        self.adopt(settings, settings.bucket_edges)

    def of(self, name: str) -> ReplicaGroup:
        """The group of that name. One that no settings list is opened, with costs still to be
        learnt."""
        group = self.by_name.get(name)
        if group is None:
            unknown = replace(self._settings, profile=()) if self._settings.groups else None
            group = self._add(name, unknown or self._settings)
            if self.bounds:  # nobody knows what it can take
                _end_at(group, self.bounds[0])
        return group

    def all(self) -> Iterable[ReplicaGroup]:
        return self.by_name.values()

    def adopt(
        self, settings: DispatcherSettings, edges: tuple[int, ...], used: Collection[str] = ()
    ) -> None:
        """Go on under new settings. A group that they no longer list stays, with what it has
        learnt, while it has replicas: also those that drain, whose groups are `used`."""
        self._settings, self._edges = settings, edges
        self.bounds = length_bounds(settings)
        listed = {each.name: each for each in settings.groups} or {"": GroupSettings("")}
        for name, own in listed.items():
            group = self.by_name.get(name) or self._add(name, settings)
            group.after_s = own.after_s
            _end_at(group, own.max_length if own.max_length in self.bounds else None)
            group.adopt(of_group(settings, own), edges)
        for name, group in list(self.by_name.items()):
            if name not in listed:
                if not group.running and name not in used:
                    del self.by_name[name]
                    continue
                group.adopt(_of_unlisted_group(settings, group), edges)
        # A group that takes all lengths has measured what all of them cost.
        whole = [name for name in listed if self.by_name[name].longest == ANY_LENGTH]
        self.reference = self.by_name[whole[0] if whole else next(iter(listed))]
        for group in self.by_name.values():
            # A reserve is closed until `look_ahead` is next called.
            group.is_open = not group.after_s or len(self.by_name) == 1
            group.holds_back = False
        self.alone = self.reference.turnaround if len(self.by_name) == 1 else None
        self._compare()

    def keep(self, edges: tuple[int, ...]) -> None:
        """These are the buckets of new requests now."""
        self._edges = edges
        for group in self.by_name.values():
            group.turnaround.keep(edges, group.settings.initial_cost_s)

    def _add(self, name: str, settings: DispatcherSettings) -> ReplicaGroup:
        group = self.by_name[name] = ReplicaGroup(name, self._groups_opened, settings)
        self._groups_opened += 1
        self.alone = group.turnaround if len(self.by_name) == 1 else None
        group.turnaround.keep(self._edges, settings.initial_cost_s)
        return group

    # -- which lengths they take

    def takes(self, edge: int) -> bool:
        """Whether a running replica may take rows of this bucket."""
        return any(group.running and edge <= group.longest for group in self.by_name.values())

    def capacity_for(self, edge: int, longest: int = ANY_LENGTH) -> float:
        """Work a second of the running replicas that take rows of this bucket, and none longer than
        `longest`."""
        groups = self.by_name.values()
        return sum([g.running * g.speed for g in groups if edge <= g.longest <= longest])

    def longest_beside(self, group: ReplicaGroup, *, well: bool) -> int:
        """The longest row that a healthy replica may take besides one of this group, which is
        healthy itself or not; where no healthy one is beside it, any running one; 0: none runs."""
        groups = self.by_name.values()
        rest = [g.longest for g in groups if g.healthy > (g is group and well)]
        rest = rest or [g.longest for g in groups if g.running > (g is group)]
        return max(rest, default=0)

    def left_to_unhealthy(self) -> int | None:
        """The length above which rows have unhealthy replicas alone; None: there is none."""
        groups = self.by_name.values()
        healthy = max([g.longest for g in groups if g.healthy], default=0)
        running = max([g.longest for g in groups if g.running], default=0)
        return healthy if running > healthy else None

    # -- how much work they do

    def count(self) -> None:
        """Sum up the capacity. To be called after replicas or speeds have changed."""
        self.capacity = sum([group.running * group.speed for group in self.by_name.values()])

    @property
    def own_capacity(self) -> float:
        """What other gateways have lately left of the capacity."""
        return max(0.0, self.capacity - self.peers.rate)

    def weigh(self, edge: int) -> None:
        """A batch led by this bucket was sent: move speeds towards what its rows cost in each
        group."""
        if self._settings.frozen:
            return
        for group in self.by_name.values():
            speed = self._speed(group, edge) if edge <= group.longest else 0.0
            if speed:
                group.speed += _SPEED_GAIN * (speed - group.speed)
        self.count()

    def _compare(self) -> None:
        """Set speeds by all buckets alike, until batches show which buckets count."""
        for group in self.by_name.values():
            edges = [edge for edge in self._edges if edge <= group.longest]
            speeds = [speed for edge in edges if (speed := self._speed(group, edge))]
            group.speed = sum(speeds) / len(speeds) if speeds else group.speed
        self.reference.speed = 1.0
        self.count()

    def _speed(self, group: ReplicaGroup, edge: int) -> float:
        """The group's speed for rows of this bucket; 0.0: not known yet."""
        if group is self.reference:
            return 1.0
        ours, theirs = _unit_cost_s(self.reference, edge), _unit_cost_s(group, edge)
        if ours <= 0.0 or theirs <= 0.0:
            return 0.0
        return min(_MAX_SPEED, max(_MIN_SPEED, ours / theirs))

    @property
    def main(self) -> ReplicaGroup:
        """The group that does most of the work."""
        if len(self.by_name) == 1:
            return self.reference
        return max(self.by_name.values(), key=lambda group: group.running * group.speed)

    # -- which may be used

    def latest_start(self, edge: int, now: float, deadline: float) -> float:
        """When a row must be dispatched at the latest, on the groups that answer it soonest."""
        if self.alone is not None:
            return self.alone.latest_start(edge, now, deadline)
        latest = [
            group.turnaround.latest_start(edge, now, deadline)
            for group in self.by_name.values()
            if group.running and group.is_open and edge <= group.longest
        ]
        return max(latest, default=deadline)

    def look_ahead(
        self, rows: int, edge: int, waiting_s: Callable[[int], float], now: float
    ) -> None:
        """To be called before replicas are asked. Predicts each group's next batch, of so many rows
        of the bucket that go first, and opens or closes reserves by the work that waits:
        `waiting_s` of rows longer than a length."""
        stream_s = max([group.batch_s for group in self.by_name.values()]) or 1.0
        for group in self.by_name.values():
            group.holds_back = False
            if group.engine is not None:
                group.next_s = stream_s / group.speed
            else:
                group.next_s = group.forecast_s(rows, min(edge, group.longest))
            if group.after_s:
                self._open_or_close(group, waiting_s, now)

    def _open_or_close(
        self, group: ReplicaGroup, waiting_s: Callable[[int], float], now: float
    ) -> None:
        """Open the reserve for all rows, or only for those longer than a bound that would wait too
        long for the groups that take them, or close it."""
        group.is_open = self._wait_s(0, waiting_s(0), now) > group.after_s
        if not self.bounds:
            return
        _end_at(group, group.longest)
        for bound in self.bounds if not group.is_open else ():
            work_s = waiting_s(bound) if bound < group.longest else 0.0
            if work_s > 0.0 and self._wait_s(bound, work_s, now) > group.after_s:
                group.is_open, group.lengths = True, LengthRange(bound, group.longest)
                return

    def _wait_s(self, above: int, waiting_s: float, now: float) -> float:
        """Predicted seconds until the groups that are no reserves have started all that waits of
        rows longer than `above`; inf: none of their replicas that take such rows is healthy."""
        capacity = ahead_s = 0.0
        for group in self.by_name.values():
            if not group.after_s and group.healthy and group.longest > above:
                capacity += group.healthy * group.speed
                one_each_s = group.healthy * group.batch_s
                ahead_s += group.speed * (group.held_s(now) - one_each_s)
        if not capacity:
            return inf
        return max(0.0, (ahead_s + waiting_s) / capacity)

    def finishes_sooner(
        self, group: ReplicaGroup, rows: int, edge: int, waiting_s: float, now: float
    ) -> bool:
        """Whether faster groups, though busy, would finish what waits (these rows, the last of
        `waiting_s`) before a free replica of this group had finished its part."""
        own_s = group.forecast_s(rows, edge)
        capacity = held_s = 0.0
        min_s = inf
        for other in self._others(group, edge):
            other_s = other.forecast_s(rows, edge)
            if other_s < own_s:
                min_s = min(min_s, other_s)
                capacity += other.healthy * other.speed
                held_s += other.speed * other.held_s(now)
        if not capacity:
            return False
        return held_s / capacity + max(min_s, waiting_s / capacity) < own_s

    def in_time_elsewhere_from(
        self, group: ReplicaGroup, rows: int, edge: int, now: float
    ) -> float:
        """Rows with this deadline or a later one could still be answered in time by another group,
        were that group free; inf: none could."""
        ends = [
            now + other.cost.predict(rows, edge, quantile=0.99)
            for other in self._others(group, edge)
        ]
        return min(ends, default=inf)

    def _others(self, group: ReplicaGroup, edge: int) -> Iterator[ReplicaGroup]:
        """The groups that rows of this bucket may be left to; not those that have just left theirs
        themselves."""
        for other in self.by_name.values():
            takes = other.lengths is None or edge in other.lengths
            if other is group or not (takes and other.healthy and other.is_open):
                continue
            if not other.holds_back:
                yield other


def of_group(settings: DispatcherSettings, own: GroupSettings) -> DispatcherSettings:
    """The model's settings, with those that differ for the group."""
    if not settings.groups:
        return settings
    generation = settings.generation
    if generation is not None:
        generation = replace(generation, profile=own.engine_profile)
    most = settings.max_size if own.max_size is None else min(settings.max_size, own.max_size)
    tokens = settings.max_tokens if own.max_tokens is None else own.max_tokens
    return replace(
        settings, profile=own.profile, max_size=most, max_tokens=tokens, generation=generation
    )


def _end_at(group: ReplicaGroup, longest: int | None) -> None:
    """The group takes rows of at most `longest`; None: all rows."""
    group.longest = ANY_LENGTH if longest is None else longest
    group.lengths = None if group.longest == ANY_LENGTH else LengthRange(0, group.longest)


def _of_unlisted_group(settings: DispatcherSettings, group: ReplicaGroup) -> DispatcherSettings:
    """The model's settings for a group that they no longer list: what was measured of it still
    holds."""
    known, generation = group.settings, settings.generation
    if generation is not None and known.generation is not None:
        generation = replace(generation, profile=known.generation.profile)
    most = min(settings.max_size, known.max_size)
    tokens = min(settings.max_tokens, known.max_tokens)
    return replace(
        settings, profile=known.profile, max_size=most, max_tokens=tokens, generation=generation
    )


def _unit_cost_s(group: ReplicaGroup, edge: int) -> float:
    """Seconds of a row of the bucket in a typical batch of the group, or of a weighted token."""
    return group.cost.unit_s(edge) if group.engine is None else group.engine.token_s
