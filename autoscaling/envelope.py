"""Is there a spike: so much more work than planned that replicas must start now?

Two signs show a spike. *Envelope*: the work in one of several windows exceeds the plan by more
sigmas than chance explains, for independent requests. (The variance of a window's work is its mean
times E[c²]/E[c]; skewness is corrected by Cornish and Fisher.) Short windows show a steep burst at
once, long ones a shallow one (InferLine, SoCC 2020). *Backlog*: the waiting work would take the
running replicas more than half of the SLO's slack, in `BACKLOG_SAMPLES` decisions in a row. A spike
holds for `hold_s` after its last sign. A spike is also *expected* if spikes began at this time of
the last hours, days or seasons (`RecurringSpikes`), early enough to start replicas for it: jobs
that run by the clock make bursts that are over before replicas that start with them could help.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import sqrt
from typing import Any

from autoscaling.demand import DemandView
from autoscaling.settings import PolicySettings

HOUR_S, DAY_S = 3_600.0, 86_400.0
TOLERANCE_S = 30.0
MOST = 256
_QUIET_S = 30.0  # without a sign, before the next one is another spike
_LONGEST_S = 900.0
_MIN_PERIOD_S = 120.0
_LOOKED_AT = 3
_NEEDED = 2
_HEIGHTS = 8  # periods whose heights count


@dataclass(slots=True)
class Episode:
    """A spike that was seen."""

    onset: float
    last: float  # its latest sign
    height: float  # its greatest rate over the plan's


@dataclass(frozen=True, slots=True)
class Expected:
    """A spike that is expected."""

    at: float  # when it is likely to begin
    height: float  # as a multiple of the plan


class RecurringSpikes:
    """Of one model. season_s: another period than an hour and a day, 0: there is none."""

    def __init__(self, season_s: float = 0.0) -> None:
        self._season_s = season_s
        self._episodes: list[Episode] = []
        self._expected: list[Expected] = []
        self._open: Episode | None = None

    def adopt(self, season_s: float) -> None:
        """Counts from the next spike on."""
        self._season_s = season_s

    @property
    def _periods(self) -> set[float]:
        return {HOUR_S, DAY_S, *([self._season_s] if self._season_s > _MIN_PERIOD_S else [])}

    def seen(self, rate: float, planned: float, now: float) -> None:
        """Take whether this decision saw a spike: its rate, or 0.0."""
        current = self._open
        if rate > 0.0 and planned > 0.0:
            height = rate / planned
            if current is None:
                self._open = Episode(now, now, height)
            else:
                current.last, current.height = now, max(current.height, height)
        elif current is not None and now - current.last > _QUIET_S:
            self._close(current, now)

    def expected(self, lead_s: float, now: float) -> float:
        """The multiple of the plan that is wanted now, if replicas must be ordered `lead_s` before
        a spike; 0.0: none is expected."""
        while self._expected and self._expected[0].at + TOLERANCE_S < now:
            self._expected.pop(0)
        height = 0.0
        for each in self._expected:
            if each.at - TOLERANCE_S - lead_s > now:
                break
            height = max(height, each.height)
        return height

    def _close(self, episode: Episode, now: float) -> None:
        """End a spike. One that lasted longer than a quarter of an hour was demand, not a spike."""
        self._open = None
        if episode.last - episode.onset <= _LONGEST_S:
            self._episodes.append(episode)
            del self._episodes[:-MOST]
        self._expect(now)

    def _expect(self, now: float) -> None:
        """Compute the expected spikes again, sorted by time."""
        onsets = [each.onset for each in self._episodes]
        found: list[Expected] = []
        for period_s in self._periods:
            for episode in self._episodes:
                for ahead in (1, 2):
                    at = episode.onset + ahead * period_s
                    if now < at + TOLERANCE_S:
                        found += self._supported(at, period_s, onsets)
        self._expected = sorted(found, key=lambda each: each.at)

    def _supported(self, at: float, period_s: float, onsets: list[float]) -> list[Expected]:
        """One, if enough spikes came at that time of the last periods."""
        heights = [self._height(at - n * period_s, onsets) for n in range(1, _HEIGHTS + 1)]
        if sum(height > 0.0 for height in heights[:_LOOKED_AT]) < _NEEDED:
            return []
        return [Expected(at, max(heights))]

    def _height(self, at: float, onsets: list[float]) -> float:
        """The height of the highest spike that began then; 0.0: none did."""
        place, height = bisect_left(onsets, at - TOLERANCE_S), 0.0
        while place < len(onsets) and onsets[place] <= at + TOLERANCE_S:
            height = max(height, self._episodes[place].height)
            place += 1
        return height

    # -- state for a successor

    def save(self, now: float) -> dict[str, Any]:
        kept = [*self._episodes, *([self._open] if self._open else [])]
        return {
            "episodes": [
                [now - e.onset, now - e.last, float(f"{e.height:.4g}")] for e in kept
            ]
        }  # fmt: skip

    def load(self, state: dict[str, Any], now: float) -> None:
        """Take over a saved state. Raises KeyError, TypeError or ValueError if it is none."""
        self._open = None
        self._episodes = [
            Episode(now - float(onset), now - float(last), float(height))
            for onset, last, height in state["episodes"]
        ]
        self._expect(now)


BACKLOG_SAMPLES = 3
RATE_WINDOW_S = 8.0
_SHORT_WINDOWS_S = (2.0, 4.0)
_SHORT_START_S = 5.0
_SAMPLE_S = 0.5
MIN_SLACK_S = 2.0


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
        catch_up = backlog.work_s / max(MIN_SLACK_S, backlog.slack_s, backlog.starts_in_s)
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
