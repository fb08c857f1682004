"""Can a newcomer still be started in time, behind what waits before it?

Predicted wait: the seconds of on-time work that go before it in its flow, over the rate at which
that flow is served, and before those the work of more urgent priorities. The rate is the larger of
the flow's weighted share of what more urgent priorities leave and what it was lately given: by its
share alone an aggressor would be called late that in truth gets what its neighbours do not use, by
the measured rate alone a flow that has just woken up. Neighbours count by the share of time in
which they have work waiting. What forecasts are wrong by is learnt, see `forecast`. Only newcomers
are judged: what turns late while it waits is `deadlines`' business. Once a second a flow's newcomer
is let in against the forecast, so that a wrong one cannot refuse for ever.
Source: deadline admission as in Clockwork (OSDI'20) and Mooncake, here by flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from routers.admission.forecast import Forecast, ForecastError
from routers.admission.verdicts import Verdicts
from routers.pace import Level, Pace
from routers.settings import Mode
from routers.types import FlowKey, FlowWork

PROBE_S = 1.0
_REFUSED_GAIN = 0.01  # a newcomer
_REFUSED_HALF = 0.5
_LEAST_LEFT = 0.01  # of the replicas: more urgent priorities never count as taking all


@dataclass(slots=True)
class Claim:
    """What a newcomer finds. Seconds are predicted device seconds of on-time work, here and, as far
    as is known, at other gateways.

    ahead_s: what of its flow goes before it. urgent_s: what waits in more urgent priorities.
    rivals: weights of the flows of its priority that have work waiting, its own too if it has.
    """

    flow: FlowKey
    weight: float
    ahead_s: float
    rivals: float
    urgent_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class FlowForecasts:
    """Published state of one flow: device seconds it is given a second, and how its forecasts are
    corrected."""

    flow: FlowKey
    given: float
    scale: float
    margin_s: float


@dataclass(slots=True)
class _Account:
    given: Pace
    waits: Level
    error: ForecastError = field(default_factory=ForecastError)
    probed_at: float = -inf
    refused: float = 0.0  # share of its newcomers lately called late
    trust: float = 0.0

    def note(self, late: bool) -> None:
        """How much of the margin counts (`trust`): nothing while few are late, when each wrongly
        called late is one answer less; all of it once half are, when each let in wrongly waits for
        nothing."""
        self.refused = refused = self.refused + _REFUSED_GAIN * (late - self.refused)
        self.trust = refused / _REFUSED_HALF if refused < _REFUSED_HALF else 1.0


@dataclass(slots=True)
class Feasibility:
    """One account a flow ever seen, O(1) a call. `window_s` should span several batches.

    verdicts: a no is a newcomer called late. probes: newcomers let in against the forecast.
    fixed_margin_s: forecasts are taken as they are, and this much is added.
    """

    verdicts: Verdicts = field(default_factory=lambda: Verdicts(Mode.ENFORCE))
    window_s: float = 0.5
    fixed_margin_s: float | None = None
    frozen: bool = False
    probes: int = 0
    _accounts: dict[FlowKey, _Account] = field(default_factory=dict)
    _given: dict[int, Pace] = field(default_factory=dict)  # by priority
    _rivals: dict[int, Level] = field(default_factory=dict)  # by priority

    def judge(self, claim: Claim, latest_start: float, now: float) -> Forecast:
        """Late (`late_by_s` > 0) or on time; a newcomer that is queued keeps it for `waited`."""
        slack_s = latest_start - now
        if self.verdicts.off:
            return Forecast(0.0, slack_s)
        account = self._accounts.get(claim.flow) or self._open(claim.flow)
        level = self._level(claim.flow[0])
        if not self.frozen:  # who has work waiting at this moment
            account.waits.tell(claim.weight if claim.ahead_s > 0.0 else 0.0, now)
            level.tell(claim.rivals, now)
        others = level.value - account.waits.value
        wait_s = self._wait_s(claim, account.given, others, now)
        late_by_s = self._counted_s(account, wait_s, slack_s) - slack_s
        if (late_by_s > 0.0 or account.refused > 0.0) and not self.frozen:
            account.note(late_by_s > 0.0)
        if late_by_s <= 0.0:
            return Forecast(wait_s, slack_s)
        if now >= account.probed_at + PROBE_S:
            account.probed_at = now
            self.probes += 1
            return Forecast(wait_s, slack_s)
        return Forecast(wait_s, slack_s, late_by_s if self.verdicts.no() else 0.0)

    def refused_again(self, flow: FlowKey) -> None:
        """A newcomer was called late unasked, as the like of it had just been."""
        self.verdicts.no()
        if not self.frozen:
            (self._accounts.get(flow) or self._open(flow)).note(late=True)

    def served(self, work: Iterable[FlowWork], now: float) -> None:
        """Flows were given device seconds, by this gateway's batches or by another's."""
        if self.frozen:
            return
        accounts, given_s = self._accounts, dict[int, float]()
        for priority, tenant, seconds in work:
            account = accounts.get((priority, tenant)) or self._open((priority, tenant))
            account.given.add(seconds, now)
            given_s[priority] = given_s.get(priority, 0.0) + seconds
        for priority, seconds in given_s.items():
            given = self._given.get(priority)
            if given is None:
                given = self._given[priority] = Pace(self.window_s)
            given.add(seconds, now)

    def waited(self, flow: FlowKey, forecast: Forecast, actual_s: float, now: float) -> None:
        """A request was dispatched, or turned late while it waited."""
        if not (self.frozen or self.verdicts.off or self.fixed_margin_s is not None):
            account = self._accounts.get(flow) or self._open(flow)
            account.error.learn(forecast, actual_s, now)

    def tune(self, mode: Mode, window_s: float, *, frozen: bool) -> None:
        """Other settings; what was learnt stays."""
        self.verdicts.tune(mode)
        self.window_s, self.frozen = window_s, frozen
        averages: list[Pace | Level] = [*self._given.values(), *self._rivals.values()]
        for account in self._accounts.values():
            averages += (account.given, account.waits)
        for average in averages:
            average.window_s = window_s

    def flows(self, now: float) -> Iterator[FlowForecasts]:
        for flow, account in self._accounts.items():
            error = account.error
            yield FlowForecasts(flow, self._read(account.given, now), error.scale, error.margin_s)

    # -- the forecast

    def _counted_s(self, account: _Account, wait_s: float, slack_s: float) -> float:
        if self.fixed_margin_s is not None:
            return wait_s + self.fixed_margin_s
        return account.error.corrected_s(wait_s, slack_s, account.trust)

    def _wait_s(self, claim: Claim, given: Pace, others: float, now: float) -> float:
        """`others`: weight of its rivals of late."""
        if claim.ahead_s <= 0.0 and claim.urgent_s <= 0.0:
            return 0.0
        priority, weight = claim.flow[0], claim.weight
        replicas = float(claim.replicas or 1)
        left = replicas - self._given_above(priority, now) if priority else replicas
        if left < _LEAST_LEFT * replicas:
            left = _LEAST_LEFT * replicas
        share = left * weight / (weight + others) if others > 0.0 else left
        rate = self._read(given, now)
        if rate < share:
            rate = share
        return claim.urgent_s / left + claim.ahead_s / (rate if rate < replicas else replicas)

    def _given_above(self, priority: int, now: float) -> float:
        """Device seconds a second that more urgent priorities are given."""
        given = 0.0
        for other, pace in self._given.items():
            if other < priority:
                given += self._read(pace, now)
        return given

    def _read(self, pace: Pace, now: float) -> float:
        return pace.value if self.frozen else pace.read(now)

    def _open(self, flow: FlowKey) -> _Account:
        account = _Account(Pace(self.window_s), Level(self.window_s))
        self._accounts[flow] = account
        return account

    def _level(self, priority: int) -> Level:
        level = self._rivals.get(priority)
        if level is None:
            level = self._rivals[priority] = Level(self.window_s)
        return level
