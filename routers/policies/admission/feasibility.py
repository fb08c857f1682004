"""Can a new request still be started in time, behind what waits before it?

Predicted wait: the seconds of on-time work that go before it in its flow, over the rate at which
that flow is served, and before those the work of more urgent priorities. The rate is the larger of
the flow's weighted share of what more urgent priorities leave and what it was lately given: by its
share alone an aggressor would be called late that in truth gets what its neighbours do not use, by
the measured rate alone a flow that has just woken up. Neighbours count by the share of time in
which they have work waiting. What forecasts are wrong by is learnt (`ForecastError`); how much of
that counts for a length is `length_shares`' question. Only new requests are judged. Once a second a
new request of each flow and length is let in against the forecast, so that a wrong one cannot
refuse for ever. Chosen by simulation, see docs/policies/admission.md. Source: deadline admission as
in Clockwork (OSDI'20) and Mooncake, here by flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import exp, inf

from routers.api.requests import FlowKey, FlowWork
from routers.api.settings import Mode
from routers.estimates.averages import DecayingRate, TimeAverage
from routers.policies.admission.length_shares import LengthUse, margin_part
from routers.policies.admission.verdicts import Verdicts
from routers.state.forecast import Forecast

# Of what forecasts were wrong by:
QUANTILE = 0.98
_WINDOW_S = 2.0
_PRIOR = 0.25  # of the time there was
_LEAST_SCALE, _MOST_SCALE = 0.2, 2.0
_ERROR_GAIN = 0.05
_STEP = 3.0  # mean errors that the margin may move in a second of misses, about
_MOST_STEP = 0.1  # mean errors, in one sample
_MOST_ERRORS = 5.0  # the margin is at most so many mean errors
_MOST_MARGIN = 0.5  # of the time there is

# Of a forecast:
PROBE_S = 1.0
_REFUSED_GAIN = 0.01  # a new request
_REFUSED_HALF = 0.5
_ASKS_S = 2.0  # without a new request after which a length is not asked for
_KEPT = 16  # lengths of a flow, before those that are not asked for are dropped
_LEAST_LEFT = 0.01  # of the replicas: more urgent priorities never count as taking all


@dataclass(slots=True)
class ForecastError:
    """How wrong forecasts of a flow's queue wait have lately been.

    `scale` corrects what is wrong in proportion (batches fuller or emptier than weighed): least
    squares through the origin of actual on forecast waits, with 1 as a prior that outweighs
    forecasts below a quarter of the time there was. `margin_s` covers what is left: a running 98 %
    quantile of actual less corrected wait, moved by a step a sample that shrinks as samples come
    faster, so that a burst of them does not overshoot. It is used up to half of the time there is:
    a flow with nothing waiting is never called late. What left the queue as late counts as having
    waited until then. Sums forget over 2 s; `error_s` is the mean absolute error after `scale`."""

    scale: float = 1.0
    margin_s: float = 0.0
    error_s: float = 0.0
    _weight: float = 0.0
    _product: float = 0.0
    _square: float = 0.0
    _at: float = 0.0

    def corrected_s(self, wait_s: float, slack_s: float, trust: float = 1.0) -> float:
        """The wait to count with: with all of the margin (`trust` 1) exceeded by about one in
        fifty, with none of it by half."""
        corrected_s = wait_s * self.scale
        if trust > 0.0 and slack_s > 0.0:
            corrected_s += trust * min(self.margin_s, _MOST_MARGIN * slack_s)
        return corrected_s

    def learn(self, forecast: Forecast, actual_s: float, now: float) -> None:
        wait_s, kept = forecast.wait_s, exp((self._at - now) / _WINDOW_S)
        self._at = now
        self._weight = weight = self._weight * kept + 1.0
        self._product = product = self._product * kept + wait_s * actual_s
        self._square = square = self._square * kept + wait_s * wait_s
        prior = weight * (_PRIOR * forecast.slack_s) ** 2 + 1e-12
        scale = (product + prior) / (square + prior)
        if not _LEAST_SCALE <= scale <= _MOST_SCALE:
            scale = _LEAST_SCALE if scale < _LEAST_SCALE else _MOST_SCALE
        self.scale = scale
        self._learn_margin(actual_s - wait_s * scale, _STEP * _WINDOW_S / weight)

    def _learn_margin(self, off_s: float, step: float) -> None:
        """The corrected wait was too short by `off_s`; `step`: mean errors to move by, at most."""
        margin_s = self.margin_s
        self.error_s = error_s = self.error_s + _ERROR_GAIN * (abs(off_s) - self.error_s)
        moved_s = error_s * (step if step < _MOST_STEP else _MOST_STEP)
        margin_s += moved_s * (QUANTILE if off_s > margin_s else QUANTILE - 1.0)
        if margin_s > _MOST_ERRORS * error_s:
            margin_s = _MOST_ERRORS * error_s
        self.margin_s = margin_s if margin_s > 0.0 else 0.0


@dataclass(slots=True)
class QueueAhead:
    """What a new request finds. Seconds are predicted device seconds of on-time work, here and, as
    far as is known, at other gateways.

    ahead_s: what of its flow goes before it. urgent_s: what waits in more urgent priorities.
    rivals: weights of the flows of its priority that have work waiting, its own too if it has.
    replicas: as many as work as fast as those of the reference group. edge, cost_s: of its bucket,
    and of its own service.
    """

    flow: FlowKey
    weight: float
    ahead_s: float
    rivals: float
    urgent_s: float
    replicas: float
    edge: int = 0
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FlowForecasts:
    """Published state of one flow: device seconds it is given a second, and how its forecasts are
    corrected."""

    flow: FlowKey
    given: float
    scale: float
    margin_s: float


@dataclass(slots=True)
class _LengthAccount:
    """What the new requests of a flow that belong to one bucket were told, and given."""

    given: DecayingRate
    asked_at: float = -inf
    probed_at: float = -inf
    refused: float = 0.0  # share of its new requests lately called late
    trust: float = 0.0

    def note(self, late: bool) -> None:
        """How much of the margin counts (`trust`): nothing while few are late, when each wrongly
        called late is one answer less; all of it once half are, when each let in wrongly waits for
        nothing."""
        self.refused = refused = self.refused + _REFUSED_GAIN * (late - self.refused)
        self.trust = refused / _REFUSED_HALF if refused < _REFUSED_HALF else 1.0


@dataclass(slots=True)
class _Account:
    given: DecayingRate
    waits: TimeAverage
    error: ForecastError = field(default_factory=ForecastError)
    lengths: dict[int, _LengthAccount] = field(default_factory=dict)

    def length(self, edge: int, now: float) -> _LengthAccount:
        found = self.lengths.get(edge)
        if found is None:
            if len(self.lengths) >= _KEPT:
                self.lengths = {e: each for e, each in self.lengths.items() if _asks(each, now)}
            found = self.lengths[edge] = _LengthAccount(DecayingRate(self.given.window_s))
        return found

    def trust_in(self, own: _LengthAccount, now: float) -> float:
        """How much of the margin counts for the length."""
        if own.trust <= 0.0 or len(self.lengths) < 2:
            return own.trust
        uses = [
            _use(each, now) for each in self.lengths.values() if each is own or _asks(each, now)
        ]
        return own.trust * margin_part(_use(own, now), uses)


def _asks(length: _LengthAccount, now: float) -> bool:
    return now - length.asked_at <= _ASKS_S


def _use(length: _LengthAccount, now: float) -> LengthUse:
    return LengthUse(length.given.read(now), length.refused)


@dataclass(slots=True)
class Feasibility:
    """One account a flow ever seen, O(1) a call. `window_s` should span several batches.

    verdicts: a no is a new request called late. probes: new requests let in against the forecast.
    fixed_margin_s: forecasts are taken as they are, and this much is added.
    """

    verdicts: Verdicts = field(default_factory=lambda: Verdicts(Mode.ENFORCE))
    window_s: float = 0.5
    fixed_margin_s: float | None = None
    frozen: bool = False
    probes: int = 0
    _accounts: dict[FlowKey, _Account] = field(default_factory=dict)
    _given: dict[int, DecayingRate] = field(default_factory=dict)  # by priority
    _rivals: dict[int, TimeAverage] = field(default_factory=dict)  # by priority

    def judge(self, ahead: QueueAhead, latest_start: float, now: float) -> Forecast:
        """Late (`late_by_s` > 0) or on time; a new request that is queued keeps it for `waited`."""
        slack_s = latest_start - now
        if self.verdicts.off:
            return Forecast(0.0, slack_s, 0.0, ahead.edge, ahead.cost_s)
        account = self._accounts.get(ahead.flow) or self._open(ahead.flow)
        if not self.frozen:  # who has work waiting at this moment
            account.waits.tell(ahead.weight if ahead.ahead_s > 0.0 else 0.0, now)
            self._level(ahead.flow[0]).tell(ahead.rivals, now)
        length = account.length(ahead.edge, now)
        length.asked_at = now
        forecast = self._forecast(ahead, account, length, slack_s, now)
        late_by_s = forecast.late_by_s
        if (late_by_s > 0.0 or length.refused > 0.0) and not self.frozen:
            length.note(late_by_s > 0.0)
        if late_by_s <= 0.0:
            return forecast
        if now >= length.probed_at + PROBE_S:
            length.probed_at = now
            self.probes += 1
            forecast.late_by_s = 0.0
        elif not self.verdicts.no():
            forecast.late_by_s = 0.0
        return forecast

    def late_by_s(self, ahead: QueueAhead, latest_start: float, now: float) -> float:
        """As `judge` would say of such a request, had it come; changes nothing. Of a length that
        nobody asks for no new request waits to be let in against the forecast."""
        account = self._accounts.get(ahead.flow)
        if self.verdicts.mode is not Mode.ENFORCE or account is None:
            return 0.0
        length = account.lengths.get(ahead.edge) or _LengthAccount(DecayingRate(self.window_s))
        if _asks(length, now) and now >= length.probed_at + PROBE_S:
            return 0.0
        return self._forecast(ahead, account, length, latest_start - now, now).late_by_s

    def refused_again(self, flow: FlowKey, edge: int | None, now: float) -> None:
        """A new request was called late unasked, as the like of it had just been. `edge`: of its
        bucket; None: nobody has read it, and every length that is asked for would have been."""
        self.verdicts.no()
        if self.frozen:
            return
        account = self._accounts.get(flow) or self._open(flow)
        if edge is None:
            lengths = [each for each in account.lengths.values() if _asks(each, now)]
        else:
            lengths = [account.length(edge, now)]
            lengths[0].asked_at = now
        for length in lengths:
            length.note(late=True)

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
                given = self._given[priority] = DecayingRate(self.window_s)
            given.add(seconds, now)

    def waited(self, flow: FlowKey, forecast: Forecast, actual_s: float, now: float) -> None:
        """A request was dispatched, or turned late while it waited."""
        if not (self.frozen or self.verdicts.off or self.fixed_margin_s is not None):
            account = self._accounts.get(flow) or self._open(flow)
            account.error.learn(forecast, actual_s, now)

    def started(self, flow: FlowKey, forecast: Forecast, now: float) -> None:
        """A request goes to a replica, on time."""
        if not (self.frozen or self.verdicts.off):
            account = self._accounts.get(flow) or self._open(flow)
            account.length(forecast.edge, now).given.add(forecast.cost_s, now)

    def tune(self, mode: Mode, window_s: float, *, frozen: bool) -> None:
        """Other settings; what was learnt stays."""
        self.verdicts.tune(mode)
        self.window_s, self.frozen = window_s, frozen
        averages: list[DecayingRate | TimeAverage] = [*self._given.values(), *self._rivals.values()]
        for account in self._accounts.values():
            averages += (account.given, account.waits)
            averages += [length.given for length in account.lengths.values()]
        for average in averages:
            average.window_s = window_s

    def flows(self, now: float) -> Iterator[FlowForecasts]:
        for flow, account in self._accounts.items():
            error = account.error
            yield FlowForecasts(flow, self._read(account.given, now), error.scale, error.margin_s)

    # -- the forecast

    def _forecast(
        self,
        ahead: QueueAhead,
        account: _Account,
        length: _LengthAccount,
        slack_s: float,
        now: float,
    ) -> Forecast:
        others = self._level(ahead.flow[0]).value - account.waits.value
        wait_s = self._wait_s(ahead, account.given, others, now)
        if self.fixed_margin_s is not None:
            counted_s = wait_s + self.fixed_margin_s
        else:
            counted_s = account.error.corrected_s(wait_s, slack_s, account.trust_in(length, now))
        late_by_s = max(0.0, counted_s - slack_s)
        return Forecast(wait_s, slack_s, late_by_s, ahead.edge, ahead.cost_s)

    def _wait_s(self, ahead: QueueAhead, given: DecayingRate, others: float, now: float) -> float:
        """`others`: weight of its rivals of late."""
        if ahead.ahead_s <= 0.0 and ahead.urgent_s <= 0.0:
            return 0.0
        priority, weight = ahead.flow[0], ahead.weight
        replicas = ahead.replicas or 1.0
        left = replicas - self._given_above(priority, now) if priority else replicas
        if left < _LEAST_LEFT * replicas:
            left = _LEAST_LEFT * replicas
        share = left * weight / (weight + others) if others > 0.0 else left
        rate = self._read(given, now)
        if rate < share:
            rate = share
        return ahead.urgent_s / left + ahead.ahead_s / (rate if rate < replicas else replicas)

    def _given_above(self, priority: int, now: float) -> float:
        """Device seconds a second that more urgent priorities are given."""
        given = 0.0
        for other, rate in self._given.items():
            if other < priority:
                given += self._read(rate, now)
        return given

    def _read(self, rate: DecayingRate, now: float) -> float:
        return rate.value if self.frozen else rate.read(now)

    def _open(self, flow: FlowKey) -> _Account:
        account = _Account(DecayingRate(self.window_s), TimeAverage(self.window_s))
        self._accounts[flow] = account
        return account

    def _level(self, priority: int) -> TimeAverage:
        level = self._rivals.get(priority)
        if level is None:
            level = self._rivals[priority] = TimeAverage(self.window_s)
        return level
