"""Is there a spike: so much more work than planned that replicas must start now?

Two signs show a spike. *Envelope*: the work in one of several windows exceeds the plan by more
sigmas than chance explains, for independent requests. (The variance of a window's work is its mean
times E[c²]/E[c]; skewness is corrected by Cornish and Fisher, or a few requests would be a spike.)
Short windows show a steep burst at once, long ones a shallow one (InferLine, SoCC 2020). *Backlog*:
the waiting work would take the running replicas more than half of the SLO's slack, in
`BACKLOG_SAMPLES` decisions in a row. A spike holds for `hold_s` after its last sign. A spike is
also expected if spikes came at this time before (`recurring`), early enough to start replicas for
it. Results are reference seconds of work a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from autoscaling.demand import DemandView
from autoscaling.recurring import RecurringSpikes
from autoscaling.settings import PolicySettings

BACKLOG_SAMPLES = 3
RATE_WINDOW_S = 8.0
_SHORT_WINDOWS_S = (2.0, 4.0)
_SHORT_START_S = 5.0
_SAMPLE_S = 0.5
_MIN_SLACK_S = 2.0


def windows(settings: PolicySettings, time_to_capacity_s: float) -> tuple[float, ...]:
    """The windows to compare. If replicas start within seconds, shorter windows are worth it."""
    if time_to_capacity_s > _SHORT_START_S:
        return settings.windows_s
    return tuple(sorted({*_SHORT_WINDOWS_S, *settings.windows_s}))


@dataclass(frozen=True, slots=True)
class Spike:
    """A spike, or none."""

    rate: float = 0.0  # work a second to size for at once; 0.0: there is no spike
    window_s: float = 0.0  # the window that showed it; 0.0: the backlog did
    expected: bool = False  # no sign yet, but it came at this time before


class Envelope:
    """Finds the spikes of one model."""

    def __init__(self) -> None:
        self.recurring = RecurringSpikes()
        self.hold_until: float | None = None
        self._sampled_at: float | None = None
        self._samples = 0

    def holds(self, now: float) -> bool:
        return self.hold_until is not None and now < self.hold_until

    def hold(self, until: float) -> None:
        self.hold_until = until

    def spike(
        self, demand: DemandView, planned_s: float, backlog: Backlog, settings: PolicySettings,
        now: float,
    ) -> Spike:  # fmt: skip
        """The spike that there is now. `planned_s`: work a second that replicas are sized for."""
        shown = self._backlog_spike(demand, backlog, now)
        if not settings.instant:
            return Spike()
        over = _over_plan(demand, planned_s, settings)
        spike = max(shown, over, key=lambda each: each.rate)
        if not settings.forecast:
            return spike
        expected = self._expected(spike, planned_s, backlog, settings, now)
        return max(spike, expected, key=lambda each: each.rate)

    def _expected(
        self, spike: Spike, planned_s: float, backlog: Backlog, settings: PolicySettings, now: float
    ) -> Spike:
        self.recurring.adopt(settings.season_s)
        self.recurring.seen(spike.rate if spike.rate > planned_s else 0.0, planned_s, now)
        times = self.recurring.expected(backlog.starts_in_s, now)
        return Spike(times * planned_s, expected=True)

    def _backlog_spike(self, demand: DemandView, backlog: Backlog, now: float) -> Spike:
        if backlog.wait_s <= 0.5 * backlog.slack_s:
            self._samples = 0
            return Spike()
        if self._sampled_at is None or now - self._sampled_at >= _SAMPLE_S:
            self._sampled_at = now
            self._samples = min(BACKLOG_SAMPLES, self._samples + 1)
        if self._samples < BACKLOG_SAMPLES:
            return Spike()
        catch_up = backlog.work_s / max(_MIN_SLACK_S, backlog.slack_s, backlog.starts_in_s)
        return Spike(demand.rate(RATE_WINDOW_S) + catch_up)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work that waits, and how long it would take."""

    work_s: float
    wait_s: float  # seconds that the hot replicas need for it
    slack_s: float  # seconds of the SLO that may be spent waiting
    starts_in_s: float = 0.0  # until a replica ordered now would serve


def _over_plan(demand: DemandView, planned_s: float, settings: PolicySettings) -> Spike:
    """The spike of the window that shows the highest rate, among those that are fully known."""
    spike = Spike()
    for window_s, rate in demand.rates:
        if window_s > demand.span_s:
            continue
        expected = planned_s * window_s
        chance = _chance(expected, demand.request_work_s, settings.spike_sigmas)
        if rate * window_s > expected + chance and rate > spike.rate:
            spike = Spike(rate, window_s)
    return spike


def _chance(expected: float, request_work_s: float, sigmas: float) -> float:
    """Work above the expectation that a window has as seldom as a Gaussian exceeds `sigmas`."""
    skew = (sigmas * sigmas - 1.0) / 6.0 * request_work_s
    return sigmas * sqrt(expected * request_work_s) + max(0.0, skew)
