"""The controllers of admission, one of each for a model at a gateway.

`Feasibility` and `BestEffortCapacity` judge new requests, `LearntLimit` counts them, `Codel` looks
at what leaves the queue. Each decides by itself and knows nothing of the others; `Admission` keeps
them, tells them settings and shows their states. The freeze switch (`settings.frozen`) stops all
learning: states stay as they are, decisions go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, sqrt

from routers.api.requests import FlowKey, FlowWork
from routers.api.settings import CodelParameters, DispatcherSettings, LimitParameters, Mode
from routers.api.snapshot import ControllerSnapshot
from routers.estimates.averages import DecayingRate
from routers.policies.admission.feasibility import Feasibility
from routers.policies.admission.verdicts import Verdicts
from routers.state.forecast import Forecast

# Of a learnt limit:
TARGET_SHARE = 0.5
_LEAST_GRADIENT = 0.5
_LIMIT_SMOOTHING = 0.5
_LEAST_WINDOW_S = 0.1
_LEAST_SAMPLES = 10

# Of the best-effort capacity:
_IDLE_SHARE = 0.5
_NOISE = 0.02  # so little is no idle time, but the ripple of the average

# Of the averages that feasibility and the best-effort capacity read:
_WINDOW_S = 0.5
_LATE_WINDOW_S = 2.0
_SLOS = 5.0  # an average spans at least so many, hence more batches


@dataclass(frozen=True, slots=True)
class Watch:
    """least_s: the shortest wait of the interval that runs. stands: what the one before found."""

    least_s: float = inf
    ends_at: float = -inf
    stands: bool = False


class Codel:
    """Does a flow's queue stand, so that what has waited too long in it should go?

    A queue that drains now and then is a burst and does no harm; one whose shortest wait over a
    whole interval exceeds the target only adds delay. While it stands, what has waited over twice
    the target is shed when its turn comes. One watch a flow ever seen, as in fq_codel (RFC 8290): a
    fair queue has as many queues as flows. It needs no forecast and no deadline, so it also works
    where those are wrong. O(1) a call. Source: CoDel as in folly's `Codel.cpp`, without the
    square-root schedule; unlike there, what was found before a pause longer than an interval is
    forgotten."""

    def __init__(self, settings: CodelParameters, *, frozen: bool = False) -> None:
        self.verdicts = Verdicts(settings.mode)
        self._watches: dict[FlowKey, Watch] = {}
        self.tune(settings, frozen=frozen)

    def tune(self, settings: CodelParameters, *, frozen: bool) -> None:
        """Other settings; what was learnt stays."""
        self.settings, self.frozen = settings, frozen
        self.verdicts.tune(settings.mode)

    def judge(self, watch: Watch, wait_s: float, now: float) -> tuple[Watch, bool]:
        """What is known of a flow once another of its requests has waited so long, and whether that
        one is shed if the verdict holds. Each is asked about once, before the batch is filled: what
        is shed leaves its place to the next."""
        stands = watch.stands
        if not self.frozen:
            watch, stands = self._watched(watch, wait_s, now)
        return watch, stands and wait_s > 2.0 * self.settings.target_s

    def watch(self, flow: FlowKey) -> Watch:
        return self._watches.get(flow, _NOTHING_SEEN)

    def learn(self, watches: Mapping[FlowKey, Watch]) -> None:
        """What a decision that was carried out had found."""
        self._watches.update(watches)

    def sheds(self, flow: FlowKey, wait_s: float, now: float) -> bool:
        """Whether a request whose turn has come after `wait_s` is shed instead; learns from it."""
        if self.verdicts.off:
            return False
        watch, is_over = self.judge(self.watch(flow), wait_s, now)
        self._watches[flow] = watch
        return is_over and self.verdicts.no()

    def standing(self) -> list[FlowKey]:
        """Flows whose queues stand, as last found."""
        return [flow for flow, watch in self._watches.items() if watch.stands]

    def _watched(self, watch: Watch, wait_s: float, now: float) -> tuple[Watch, bool]:
        """With a sample more; the first of an interval sheds nothing."""
        if now <= watch.ends_at:
            if wait_s < watch.least_s:
                watch = Watch(wait_s, watch.ends_at, watch.stands)
            return watch, watch.stands
        settings = self.settings
        paused = now > watch.ends_at + settings.interval_s
        stands = watch.least_s > settings.target_s and not paused
        return Watch(wait_s, now + settings.interval_s, stands), False


_NOTHING_SEEN = Watch()


@dataclass(slots=True)
class _Window:
    """A flow's limit, and what the window that runs has seen of its requests."""

    limit: float
    since: float
    shares: float = 0.0
    samples: int = 0
    peak: int = 0


class LearntLimit:
    """How many requests of a flow may be in the core, so that they wait no longer than is good?

    The signal is the share of its time (arrival to latest start) that a request spent waiting.
    Service is no part of it, so long inputs and full batches don't look like congestion; being a
    share, it holds for every SLO. Once a window the limit is multiplied by target over mean share
    (0.5 to 1) and given its square root to grow by, as in Gradient2 and Envoy's gradient limit.
    The reference is the fixed target and no long average, which would follow a lasting overload
    upwards and the limit with it. Without queueing there is nothing to learn: the limit stands at
    its most, and grows only while at least half of it is used. One limit a flow ever seen, O(1) a
    call. Source: Netflix concurrency-limits, Envoy adaptive concurrency."""

    def __init__(self, settings: LimitParameters, *, frozen: bool = False) -> None:
        self.verdicts = Verdicts(settings.mode)
        self._flows: dict[FlowKey, _Window] = {}
        self.tune(settings, frozen=frozen)

    def tune(self, settings: LimitParameters, *, frozen: bool) -> None:
        """Other settings; what was learnt stays."""
        self.settings, self.frozen = settings, frozen
        self.verdicts.tune(settings.mode)

    def sheds(self, flow: FlowKey, inflight: int, now: float) -> bool:
        """Whether a new request is refused; `inflight` of its flow wait or run at this gateway."""
        if self.verdicts.off:
            return False
        window = self._flows.get(flow) or self._open(flow, now)
        if inflight > window.peak:
            window.peak = inflight
        fixed = self.settings.fixed
        limit = window.limit if fixed is None else fixed
        return inflight >= limit and self.verdicts.no()

    def waited(self, flow: FlowKey, wait_s: float, slack_s: float, now: float) -> None:
        """A request left the queue on time; one that turned late there has waited all its slack."""
        if self.frozen or self.settings.fixed is not None or self.verdicts.off:
            return
        window = self._flows.get(flow) or self._open(flow, now)
        window.shares += wait_s / slack_s if wait_s < slack_s else 1.0
        window.samples += 1
        enough = window.samples >= _LEAST_SAMPLES
        if enough and now >= window.since + max(_LEAST_WINDOW_S, slack_s):
            self._learn(window, now)

    @property
    def start(self) -> float:
        """A flow's limit until it has queued."""
        fixed = self.settings.fixed
        return self.settings.most if fixed is None else fixed

    def limits(self) -> dict[FlowKey, float]:
        fixed = self.settings.fixed
        return {
            flow: window.limit if fixed is None else fixed for flow, window in self._flows.items()
        }

    def _learn(self, window: _Window, now: float) -> None:
        share = window.shares / window.samples
        gradient = max(_LEAST_GRADIENT, TARGET_SHARE / share) if share > TARGET_SHARE else 1.0
        base, used = window.limit, window.peak
        window.since, window.shares, window.samples, window.peak = now, 0.0, 0, 0
        if gradient == 1.0 and used < base / 2.0:
            return
        if gradient < 1.0:
            base = min(base, 2.0 * used)
        aim = gradient * base + sqrt(base)
        limit = base + _LIMIT_SMOOTHING * (aim - base)
        window.limit = max(float(self.settings.least), min(float(self.settings.most), limit))

    def _open(self, flow: FlowKey, now: float) -> _Window:
        window = self._flows[flow] = _Window(self.settings.most, now)
        return window


@dataclass(slots=True)
class BestEffortCapacity:
    """May another late request wait, or is there no idle moment left that could serve it?

    Capacity for late work is half of what idle moments could serve before it expires: the share of
    the replicas' time that on-time work has lately left, times the time the new request has, times
    the replicas. A system that has just started, or idles, has all of it; in lasting overload
    on-time work takes all the time, and a new request that would be late is refused at once instead
    of expiring slowly. It cannot latch: what opens it is time that passes without on-time work. It
    says nothing of who is late, and a device that hangs counts as idle: what waits for that one is
    bounded by `max_late_rows` and expires. `window_s` should span several batches. `fixed_s`: this
    much capacity, nothing is learnt."""

    verdicts: Verdicts = field(default_factory=lambda: Verdicts(Mode.ENFORCE))
    window_s: float = 2.0
    fixed_s: float | None = None
    frozen: bool = False
    _on_time: DecayingRate = field(init=False)

    def __post_init__(self) -> None:
        self._on_time = DecayingRate(self.window_s)

    def worked(self, seconds: float, now: float) -> None:
        """On-time rows had a replica for so long, here or, as far as is known, for other gateways:
        from dispatch, or the end of the lease before it, to the answer; of a mixed batch their
        share of the charge."""
        if not self.frozen:
            self._on_time.add(seconds, now)

    def refuses(self, late_s: float, time_left_s: float, replicas: float, now: float) -> bool:
        """late_s: predicted device seconds of late work that would wait, the new request's too;
        replicas: as many as work as fast as those of the reference group."""
        if self.verdicts.off or late_s <= self.capacity_s(time_left_s, replicas, now):
            return False
        return self.verdicts.no()

    def would_refuse(self, late_s: float, time_left_s: float, replicas: float, now: float) -> bool:
        """As `refuses`, of a request that has not come: counts nothing."""
        enforces = self.verdicts.mode is Mode.ENFORCE
        return enforces and late_s > self.capacity_s(time_left_s, replicas, now)

    def ends(self, late_s: float, time_left_s: float, replicas: float, now: float) -> bool:
        """Whether all idle moments together could not serve what waits late: for one whose deadline
        has passed; a new request may count on half of them."""
        return self.refuses(_IDLE_SHARE * late_s, time_left_s, replicas, now)

    def capacity_s(self, time_left_s: float, replicas: float, now: float) -> float:
        """Predicted device seconds of late work that may wait."""
        if self.fixed_s is not None:
            return self.fixed_s
        return _IDLE_SHARE * self.spare(replicas, now) * time_left_s * (replicas or 1.0)

    def spare(self, replicas: float, now: float) -> float:
        """Share of the replicas' time that on-time work leaves, 0 to 1."""
        taken = self._on_time.value if self.frozen else self._on_time.read(now)
        left = 1.0 - taken / (replicas or 1.0)
        return max(0.0, left - _NOISE) / (1.0 - _NOISE)

    def tune(self, mode: Mode, window_s: float, *, frozen: bool) -> None:
        """Other settings; what was learnt stays."""
        self.verdicts.tune(mode)
        self._on_time.window_s, self.frozen = window_s, frozen


class Admission:
    def __init__(self, settings: DispatcherSettings) -> None:
        self.feasibility = Feasibility()
        self.best_effort_capacity = BestEffortCapacity()
        self.codel = Codel(settings.admission.codel)
        self.limit = LearntLimit(settings.admission.limit)
        self.tune(settings)

    def tune(self, settings: DispatcherSettings) -> None:
        """Other settings; what was learnt stays."""
        admission, frozen = settings.admission, settings.frozen
        least_s = _SLOS * settings.slo_s
        self.feasibility.tune(admission.feasibility, max(_WINDOW_S, least_s), frozen=frozen)
        self.feasibility.fixed_margin_s = admission.margin_s
        self.best_effort_capacity.tune(
            admission.feasibility, max(_LATE_WINDOW_S, least_s), frozen=frozen
        )
        self.best_effort_capacity.fixed_s = admission.best_effort_capacity_s
        self.codel.tune(admission.codel, frozen=frozen)
        self.limit.tune(admission.limit, frozen=frozen)

    def refused_again(self, flow: FlowKey, edge: int | None, now: float) -> None:
        """A new request was refused as late, as the like of it had just been. `edge`: of its
        bucket; None: nobody has read it."""
        self.feasibility.refused_again(flow, edge, now)
        self.best_effort_capacity.verdicts.no()

    def waited(self, flow: FlowKey, forecast: Forecast, wait_s: float, now: float) -> None:
        """A request that was on time left the queue for a replica, or turned late there."""
        self.feasibility.waited(flow, forecast, wait_s, now)
        self.limit.waited(flow, wait_s, forecast.slack_s, now)

    def snapshot(self, replicas: float, now: float) -> tuple[ControllerSnapshot, ...]:
        margins = self._margins(now)
        limits = tuple((*flow, limit) for flow, limit in self.limit.limits().items())
        lowest = min((limit for _, _, limit in limits), default=self.limit.start)
        margin_s = max((margin for _, _, margin in margins), default=0.0)
        stands = tuple((*flow, 1.0) for flow in self.codel.standing())
        spare = self.best_effort_capacity.spare(replicas, now)
        return (
            self._show("feasibility", self.feasibility.verdicts, margin_s, margins),
            self._show("best_effort_capacity", self.best_effort_capacity.verdicts, spare),
            self._show("codel", self.codel.verdicts, len(stands), stands),
            self._show("limit", self.limit.verdicts, lowest, limits),
        )

    def _margins(self, now: float) -> tuple[FlowWork, ...]:
        fixed_s = self.feasibility.fixed_margin_s
        return tuple(
            (*each.flow, each.margin_s if fixed_s is None else fixed_s)
            for each in self.feasibility.flows(now)
        )

    def _show(
        self, name: str, verdicts: Verdicts, value: float, by_flow: tuple[FlowWork, ...] = ()
    ) -> ControllerSnapshot:
        return ControllerSnapshot(
            name,
            verdicts.mode.value,
            self.feasibility.frozen,
            value,
            verdicts.shed,
            verdicts.would_shed,
            by_flow,
        )
