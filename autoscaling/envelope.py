"""Is there more work than was planned for, so much that a replica must start now?

Two signs. *Envelope*: the work of one of several windows exceeds the plan by more sigmas than
chance does, where requests come independently (variance of a window's work: its mean times
E[c²]/E[c]); short windows see a steep burst at once, long ones a shallow one (InferLine, SoCC
2020). *Backlog*: what waits would take the running replicas more than half of the slack that the
SLO leaves, in `BACKLOG_SAMPLES` decisions in a row. A spike holds for `hold_s` after its last sign.
Answers in reference seconds of work a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from autoscaling.demand import DemandView
from autoscaling.settings import PolicySettings

BACKLOG_SAMPLES = 3
RATE_WINDOW_S = 8.0
_SHORT_WINDOWS_S = (2.0, 4.0)
_SHORT_START_S = 5.0
_SAMPLE_S = 0.5
_LEAST_SLACK_S = 2.0


def windows(settings: PolicySettings, time_to_capacity_s: float) -> tuple[float, ...]:
    """Where replicas are there in a moment, shorter windows pay."""
    if time_to_capacity_s > _SHORT_START_S:
        return settings.windows_s
    return tuple(sorted({*_SHORT_WINDOWS_S, *settings.windows_s}))


@dataclass(frozen=True, slots=True)
class Spike:
    """rate: work a second to size for at once, 0.0: there is no spike. window_s: that showed it,
    0.0: the backlog did."""

    rate: float = 0.0
    window_s: float = 0.0


class Envelope:
    """Of one model."""

    def __init__(self) -> None:
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
        """planned_s: work a second that the replicas are sized for."""
        shown = self._backlog_spike(demand, backlog, now)
        if not settings.instant:
            return Spike()
        over = _over_plan(demand, planned_s, settings)
        return max(shown, over, key=lambda each: each.rate)

    def _backlog_spike(self, demand: DemandView, backlog: Backlog, now: float) -> Spike:
        if backlog.wait_s <= 0.5 * backlog.slack_s:
            self._samples = 0
            return Spike()
        if self._sampled_at is None or now - self._sampled_at >= _SAMPLE_S:
            self._sampled_at = now
            self._samples = min(BACKLOG_SAMPLES, self._samples + 1)
        if self._samples < BACKLOG_SAMPLES:
            return Spike()
        catch_up = backlog.work_s / max(_LEAST_SLACK_S, backlog.slack_s, backlog.starts_in_s)
        return Spike(demand.rate(RATE_WINDOW_S) + catch_up)


@dataclass(frozen=True, slots=True)
class Backlog:
    """work_s: that waits; wait_s: what it takes the hot replicas; slack_s: that the SLO leaves
    beside service; starts_in_s: until a replica ordered now would help."""

    work_s: float
    wait_s: float
    slack_s: float
    starts_in_s: float = 0.0


def _over_plan(demand: DemandView, planned_s: float, settings: PolicySettings) -> Spike:
    """The window that shows most, of those that lie within what is known."""
    spike = Spike()
    for window_s, rate in demand.rates:
        if window_s > demand.span_s:
            continue
        expected = planned_s * window_s
        chance = settings.spike_sigmas * sqrt(expected * demand.request_work_s)
        if rate * window_s > expected + chance and rate > spike.rate:
            spike = Spike(rate, window_s)
    return spike
