"""How much work a second is offered for one model, over several windows?

Gateways report counters that only grow (`DemandReading`). These become rates, summed over the
gateways, each over the window that ends at the gateway's last reading. The last reading of a silent
gateway holds for `HELD_S`. After that its part is *unknown*, not zero: the sum is marked partial
until the gateway has been silent for `FORGOTTEN_S` (it was then probably replaced; its successor
has another name). Counting begins at a gateway's first reading, because earlier demand may be hours
old. Work is in reference seconds (`settings.py`); times are seconds. Cost: a bisection a gateway
and window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import sqrt
from statistics import fmean

from autoscaling.types import DemandReading

FRESH_S = 5.0
HELD_S = 10.0
FORGOTTEN_S = 75.0
LONGEST_WINDOW_S = 64.0
WINDOWS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_WINDOW_S)
_SIGMAS = 2.0
_CLOSEST_S = 0.25
_DISPERSION_BIN_S = 2.0


@dataclass(frozen=True, slots=True)
class DemandView:
    """Demand as it is known now."""

    fresh: bool = False  # some gateway has reported within `FRESH_S`
    partial: bool = False  # another was silent for longer than `HELD_S`: rates are lower bounds
    span_s: float = 0.0  # how long demand has been counted; 0.0: there is no rate yet
    rates: tuple[tuple[float, float], ...] = ()  # (window, offered work a second)
    # E[c²]/E[c] of requests' work, which says how work in a window scatters if requests are
    # Poisson. 0.0: unknown.
    request_work_s: float = 0.0
    backlog_s: float = 0.0  # work that waits
    urgent: bool = False  # requests wait that no running replica can take
    runs: bool = False  # replicas work on some
    requested_at: float | None = None  # of the latest request; None: none was seen
    # The part of the demand that is rows longer than each length at which a group ends.
    longer: Mapping[int, DemandView] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        return self.urgent or self.backlog_s > 0.0

    def rate(self, window_s: float) -> float:
        return dict(self.rates)[window_s]

    def recent_rate(self) -> float:
        """Work a second just now: the rate of the longest window that shorter windows do not
        contradict. Each window bounds the rate by the work in it, plus or minus chance (a bound is
        wrong in one case of forty). So steady demand is measured over a minute, and demand that has
        begun or ended over the few seconds that show it."""
        found = 0.0
        for window_s, rate in sorted(self.rates, reverse=True):
            low, high = _bounds(rate * window_s, self.request_work_s)
            found = min(max(found, low / window_s), high / window_s) if found else rate
        return found


class Demand:
    """The demand for one model, at all gateways."""

    def __init__(self) -> None:
        self.requested_at: float | None = None
        self._gateways: dict[str, _Counters] = {}
        self._longer: dict[int, Demand] = {}  # the part of rows longer than a length

    def on_report(self, gateway: str, reading: DemandReading, now: float) -> None:
        """Take a gateway's reading. If its counters are lower than before, counting begins again. A
        `now` before the last one counts as the last one. Raises ValueError for an amount of work
        that is negative or not finite."""
        if not _is_sound(reading):
            raise ValueError(
                f"gateway {gateway} reports {reading}; amounts of work must be finite, 0 or more"
            )
        counters = self._gateways.get(gateway)
        if counters is None or counters.runs_back(reading):
            counters = self._gateways[gateway] = _Counters(reading, now)
            came = False
        else:
            came = counters.add(reading, now)
        if came or reading.urgent or reading.backlog_s > 0.0:
            self.requested_at = now
        for length, offered_s in reading.longer_s.items():
            backlog_s = reading.longer_backlog_s.get(length, 0.0)
            part = DemandReading(offered_s, requests=reading.requests, backlog_s=backlog_s)
            self._longer.setdefault(length, Demand()).on_report(gateway, part, now)

    def gone(self, gateway: str) -> None:
        """Forget a gateway that is known to have ended."""
        self._gateways.pop(gateway, None)
        for part in self._longer.values():
            part.gone(gateway)

    def view(self, windows_s: Iterable[float], now: float) -> DemandView:
        self._forget(now)
        every = self._gateways.values()
        told = [each for each in every if now - each.at <= HELD_S]
        fresh = [each for each in told if now - each.at <= FRESH_S]
        if not fresh:
            return DemandView(requested_at=self.requested_at)
        windows_s, request_work_s = tuple(windows_s), _request_work_s(told)
        parts = {each: part.view(windows_s, now) for each, part in self._longer.items()}
        return DemandView(
            fresh=True,
            partial=len(told) < len(every),
            span_s=max(each.span_s for each in told),
            rates=tuple((each, sum(c.rate(each) for c in told)) for each in windows_s),
            request_work_s=request_work_s,
            backlog_s=sum(each.last.backlog_s for each in fresh),
            urgent=any(each.last.urgent for each in fresh),
            runs=any(each.last.running > 0 for each in fresh),
            requested_at=self.requested_at,
            # How long rows scatter is not told apart: as much as all of them.
            longer={
                each: replace(part, request_work_s=request_work_s)
                for each, part in parts.items()
                if part.fresh
            },
        )

    def work_since(self, since: float, now: float) -> float:
        """Offered work that was reported since then, reference seconds."""
        return sum(each.since(since) for each in self._gateways.values() if now - each.at <= HELD_S)

    def dispersion_s(self, now: float) -> float:
        """Variance over mean of the work in bins of 2 s over the last minute. The variance is that
        of differences between successive bins, so that a slow rise does not count. 0.0: too little
        is known."""
        bins: list[float] = []
        for counters in self._gateways.values():
            if now - counters.at <= HELD_S:
                own = counters.bins(_DISPERSION_BIN_S, 30)
                bins = [a + b for a, b in zip(bins, own, strict=True)] if bins else own
        mean = fmean(bins) if bins else 0.0
        if mean <= 0.0 or not any(bins[15:]):
            return 0.0
        squares = [(a - b) ** 2 for a, b in pairwise(bins)]
        return fmean(squares) / 2.0 / mean

    def _forget(self, now: float) -> None:
        for gateway, counters in list(self._gateways.items()):
            if now - counters.at > FORGOTTEN_S:
                del self._gateways[gateway]


class _Counters:
    """The counters of one gateway, at points over the longest window, at least `_CLOSEST_S` apart.
    Between two points work is assumed to have come evenly."""

    def __init__(self, reading: DemandReading, now: float) -> None:
        self.last, self.at = reading, now
        self._times, self._offered = [now], [reading.offered_s]
        self._squares = [reading.offered_sq_s2]

    @property
    def span_s(self) -> float:
        return self.at - self._times[0]

    def runs_back(self, reading: DemandReading) -> bool:
        return reading.offered_s < self.last.offered_s or reading.requests < self.last.requests

    def add(self, reading: DemandReading, now: float) -> bool:
        """Take a reading. Returns whether requests came since the last one."""
        came = reading.requests > self.last.requests
        self.last, self.at = reading, max(now, self.at)
        if len(self._times) > 1 and self.at - self._times[-2] < _CLOSEST_S:
            self._drop(len(self._times) - 1, len(self._times))
        self._times.append(self.at)
        self._offered.append(reading.offered_s)
        self._squares.append(reading.offered_sq_s2)
        old = bisect_right(self._times, self.at - LONGEST_WINDOW_S) - 1
        if old > 64:
            self._drop(0, old)
        return came

    def _drop(self, first: int, end: int) -> None:
        for series in (self._times, self._offered, self._squares):
            del series[first:end]

    def since(self, since: float) -> float:
        return self._offered[-1] - self._at(self._offered, since)

    def rate(self, window_s: float) -> float:
        span_s = min(window_s, self.span_s)
        return self.since(self.at - span_s) / span_s if span_s > 0.0 else 0.0

    def squares(self) -> float:
        return self._squares[-1] - self._at(self._squares, self.at - LONGEST_WINDOW_S)

    def bins(self, bin_s: float, count: int) -> list[float]:
        """The work in each of the last `count` bins, the latest first."""
        edges = [self._at(self._offered, self.at - bin_s * n) for n in range(count + 1)]
        return [a - b for a, b in pairwise(edges)]

    def _at(self, series: list[float], moment: float) -> float:
        """The counter's value at that moment; before the oldest point, the oldest value."""
        after = bisect_right(self._times, moment)
        if after == 0:
            return series[0]
        if after == len(self._times):
            return series[-1]
        since, until = self._times[after - 1], self._times[after]
        part = (moment - since) / (until - since)
        return series[after - 1] + part * (series[after] - series[after - 1])


def _bounds(work_s: float, request_work_s: float) -> tuple[float, float]:
    """Bounds of the mean work of a window in which so much came (Wilson's, for Poisson counts)."""
    half_s = 0.5 * _SIGMAS * _SIGMAS * request_work_s
    spread_s = _SIGMAS * sqrt(work_s * request_work_s + 0.5 * half_s * request_work_s)
    return max(0.0, work_s + half_s - spread_s), work_s + half_s + spread_s


def _request_work_s(told: list[_Counters]) -> float:
    offered = sum(each.since(each.at - LONGEST_WINDOW_S) for each in told)
    squares = sum(each.squares() for each in told)
    return squares / offered if offered > 0.0 else 0.0


def _is_sound(reading: DemandReading) -> bool:
    amounts = (
        reading.offered_s, reading.offered_sq_s2, reading.backlog_s, reading.oldest_wait_s,
        *reading.longer_s.values(), *reading.longer_backlog_s.values(),
    )  # fmt: skip
    return all(0.0 <= amount < 1e18 for amount in amounts)
