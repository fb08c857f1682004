"""Can a new request still be started in time, behind the work that waits before it?

The predicted wait is the work of more urgent priorities, plus the seconds of on-time work before
the request in its flow, divided by the flow's service rate. That rate is the larger of the flow's
weighted share of what more urgent priorities leave, and what the flow was lately given. Neighbours
count by the share of time in which they have work waiting. `ForecastError` learns how wrong
forecasts are; `length_shares` says how much of that margin counts for a length. Once a second, one
new request of each flow and length is let in against the forecast (a *probe*), so that a wrong
forecast cannot refuse for ever. Only new requests are judged. Fair in device seconds by flow.
Chosen by simulation (docs/policies/admission.md). Source: deadline admission as in Clockwork
(OSDI'20) and Mooncake, here by flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import ClassVar, Final

from routers.api.requests import FlowKey, FlowWork, Reason
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode
from routers.estimates.averages import DecayingRate, TimeAverage
from routers.policies.admission.length_shares import LengthUse, margin_part
from routers.policies.admission.types import (
    ADMIT,
    FORECAST_NOTE,
    Answer,
    FlowView,
    Newcomer,
    OnArrival,
    RequestView,
    window_s,
)

# Of the errors of forecasts:
QUANTILE: Final = 0.98
_ERROR_WINDOW_S: Final = 2.0
_PRIOR: Final = 0.25  # of the request's slack
_MIN_SCALE: Final = 0.2
_MAX_SCALE: Final = 2.0
_ERROR_GAIN: Final = 0.05
_STEP: Final = 3.0  # mean errors that the margin may move in a second of misses, about
_MAX_STEP: Final = 0.1  # mean errors, in one sample
_MAX_ERRORS: Final = 5.0  # mean errors that the margin is at most
_MAX_MARGIN: Final = 0.5  # of the request's slack

# Of a forecast:
PROBE_S: Final = 1.0  # between two probes of a flow and length
_WINDOW_S: Final = 0.5
_REFUSED_GAIN: Final = 0.01  # of the moving average, for each new request
_REFUSED_HALF: Final = 0.5  # share of new requests called late, from which the margin counts whole
_ASKS_S: Final = 2.0  # without a new request of a length, after which it counts as not asked for
_KEPT: Final = 16  # lengths of a flow; from here on those not asked for are dropped
_MIN_LEFT: Final = 0.01  # of the replicas: more urgent priorities never count as taking all


class ForecastError:
    """How wrong forecasts of a flow's queue wait have lately been.

    `scale` corrects errors in proportion (batches fuller or emptier than predicted): least squares
    through the origin of actual on forecast waits. A prior of 1 outweighs forecasts below a quarter
    of the slack.
    `margin_s` covers the remaining error: a running 98 % quantile of actual less corrected wait,
    moved a step for each sample. The step shrinks as samples come faster, so that a burst of them
    does not overshoot. The margin uses at most half of the slack, so a flow with nothing waiting is
    never called late.
    A request that left the queue because it was late counts as having waited until then. Sums
    forget over 2 s. `error_s` is the mean absolute error after `scale`.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self.margin_s = self.error_s = 0.0
        self._weight = self._product = self._square = self._at = 0.0

    def corrected_s(self, wait_s: float, slack_s: float, trust: float = 1.0) -> float:
        """The wait to reckon with. With all of the margin (`trust` 1) about one request in fifty
        waits longer; with none of it (`trust` 0) half of them do."""
        corrected_s = wait_s * self.scale
        if trust > 0.0 and slack_s > 0.0:
            corrected_s += trust * min(self.margin_s, _MAX_MARGIN * slack_s)
        return corrected_s

    def learn(self, wait_s: float, slack_s: float, actual_s: float, now: float) -> None:
        """Of a request's slack (`slack_s`), `wait_s` were forecast to be spent waiting, and
        `actual_s` were."""
        kept = exp((self._at - now) / _ERROR_WINDOW_S)
        self._at = now
        self._weight = weight = self._weight * kept + 1.0
        self._product = product = self._product * kept + wait_s * actual_s
        self._square = square = self._square * kept + wait_s * wait_s
        prior = weight * (_PRIOR * slack_s) ** 2 + 1e-12
        scale = (product + prior) / (square + prior)
        if not _MIN_SCALE <= scale <= _MAX_SCALE:
            scale = _MIN_SCALE if scale < _MIN_SCALE else _MAX_SCALE
        self.scale = scale
        self._learn_margin(actual_s - wait_s * scale, _STEP * _ERROR_WINDOW_S / weight)

    def _learn_margin(self, off_s: float, step: float) -> None:
        """The corrected wait was too short by `off_s`. `step`: mean errors to move the margin by,
        at most."""
        margin_s = self.margin_s
        self.error_s = error_s = self.error_s + _ERROR_GAIN * (abs(off_s) - self.error_s)
        moved_s = error_s * (step if step < _MAX_STEP else _MAX_STEP)
        margin_s += moved_s * (QUANTILE if off_s > margin_s else QUANTILE - 1.0)
        if margin_s > _MAX_ERRORS * error_s:
            margin_s = _MAX_ERRORS * error_s
        self.margin_s = margin_s if margin_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class FlowForecasts:
    """What is published of one flow: device seconds a second that it is given, and how its
    forecasts are corrected."""

    flow: FlowKey
    given: float
    scale: float
    margin_s: float


class _LengthAccount(DecayingRate):
    """What the new requests of one flow and one bucket were told, and as a rate what they were
    given: predicted device seconds a second."""

    asked_at: float  # when its last new request came
    probed_at: float
    refused: float  # share of its new requests lately called late
    trust: float  # how much of the margin counts, 0..1

    def __init__(self, window_s: float) -> None:
        super().__init__(window_s)
        self.asked_at = self.probed_at = -inf
        self.refused = self.trust = 0.0

    def note(self, late: bool) -> None:
        """A new request was called late, or not.

        While few are called late, the margin counts nothing (`trust` 0), because each request
        wrongly called late is one answer less. Once half of them are, it counts whole, because each
        one wrongly let in waits in vain.
        """
        self.refused = refused = self.refused + _REFUSED_GAIN * (late - self.refused)
        self.trust = refused / _REFUSED_HALF if refused < _REFUSED_HALF else 1.0


class _Account(DecayingRate):
    """One flow: as a rate the device seconds a second that it is given, its weight while it has
    work waiting (averaged over time), and its forecast errors."""

    owner: Feasibility
    waits: TimeAverage
    error: ForecastError
    lengths: dict[int, _LengthAccount]

    def __init__(self, owner: Feasibility, window_s: float) -> None:
        super().__init__(window_s)
        self.owner, self.waits = owner, TimeAverage(window_s)
        self.error, self.lengths = ForecastError(), {}

    def length(self, edge: int, now: float) -> _LengthAccount:
        """The account of the length, opened if there is none."""
        found = self.lengths.get(edge)
        if found is None:
            if len(self.lengths) >= _KEPT:
                self.lengths = {
                    e: each for e, each in self.lengths.items() if _is_asked_for(each, now)
                }
            found = self.lengths[edge] = _LengthAccount(self.window_s)
        return found

    def trust_in(self, own: _LengthAccount, now: float) -> float:
        """How much of the margin counts for the length, 0..1."""
        if len(self.lengths) < 2:
            return own.trust
        uses = [
            _length_use(each, now)
            for each in self.lengths.values()
            if each is own or _is_asked_for(each, now)
        ]
        return own.trust * margin_part(_length_use(own, now), uses)


def _is_asked_for(length: _LengthAccount, now: float) -> bool:
    """Whether a new request of this length has come lately."""
    return now - length.asked_at <= _ASKS_S


def _length_use(length: _LengthAccount, now: float) -> LengthUse:
    return LengthUse(length.read(now), length.refused)


class Feasibility(OnArrival):
    """One account for each flow ever seen, O(1) a call. `probes` counts the new requests let in
    against the forecast. Where settings fix the margin, that is added to forecasts, which are then
    not corrected."""

    reason: ClassVar[Reason] = Reason.LATE

    def __init__(self) -> None:
        super().__init__()
        self.probes = 0
        self._window_s = _WINDOW_S
        self._fixed_margin_s: float | None = None
        self._frozen = False
        self._accounts: dict[FlowKey, _Account] = {}
        self._given: dict[int, DecayingRate] = {}  # by priority
        self._rivals: dict[int, TimeAverage] = {}  # by priority

    def mode(self, admission: AdmissionParameters) -> Mode:
        return admission.feasibility

    def tune(self, settings: DispatcherSettings) -> None:
        self._fixed_margin_s = settings.admission.margin_s
        self._window_s, self._frozen = window_s(_WINDOW_S, settings), settings.frozen
        averages: list[DecayingRate | TimeAverage] = [*self._given.values(), *self._rivals.values()]
        for account in self._accounts.values():
            averages += (account, account.waits, *account.lengths.values())
        for average in averages:
            average.window_s = self._window_s

    def judge(self, newcomer: Newcomer, now: float) -> Answer:
        """Nobody probes for a length that was not asked for lately: none of its requests waits to
        be let in against the forecast."""
        slack_s = newcomer.slack_s
        if slack_s <= 0.0:
            return ADMIT
        if not newcomer.capacity:
            return _while_none_runs(newcomer, now)
        account = self._known(newcomer.flow)
        if account is None:
            return ADMIT
        length = account.lengths.get(newcomer.request.forecast_edge) or self._new_length()
        wait_s = self._wait_s(newcomer, account, now)
        if self._fixed_margin_s is not None:
            counted_s = wait_s + self._fixed_margin_s
        else:
            trust = account.trust_in(length, now) if length.trust > 0.0 else 0.0
            counted_s = account.error.corrected_s(wait_s, slack_s, trust)
        if counted_s <= slack_s:
            if length.refused > 0.0:
                return Answer(wait_s, teaches=True)
            return Answer(wait_s) if wait_s > 0.0 else ADMIT
        if now >= length.probed_at + PROBE_S and _is_asked_for(length, now):
            return Answer(wait_s, is_probe=True, teaches=True)
        return Answer(wait_s, counted_s - slack_s, teaches=True)

    def came(self, newcomer: Newcomer, now: float) -> None:
        """Note which flows have work waiting at this moment, and which lengths are asked for."""
        if newcomer.slack_s <= 0.0 or not newcomer.capacity:
            return
        flow, edge = newcomer.flow, newcomer.request.forecast_edge
        account = self._known(flow) or self._open(flow.key)
        if not self._frozen:
            account.waits.report(flow.weight if newcomer.before_s > 0.0 else 0.0, now)
            level = self._rivals.get(flow.priority) or self._new_level(flow.priority)
            level.report(newcomer.competing_weight, now)
        length = account.lengths.get(edge) or account.length(edge, now)
        length.asked_at = now

    def told(self, newcomer: Newcomer, answer: Answer, now: float) -> None:
        account = self._accounts[newcomer.flow.key]
        length = account.lengths[newcomer.request.forecast_edge]
        is_late = answer.late_by_s > 0.0 or answer.is_probe
        if not self._frozen:
            length.note(is_late)
        if answer.is_probe:
            length.probed_at = now
            self.probes += 1

    def rejected_from_cache(self, flow: FlowKey, edge: int | None, now: float) -> None:
        """Where the request was not read (`edge` None), every length that is asked for would have
        been refused."""
        if self._frozen:
            return
        account = self._accounts.get(flow) or self._open(flow)
        if edge is None:
            lengths = [each for each in account.lengths.values() if _is_asked_for(each, now)]
        else:
            lengths = [account.length(edge, now)]
            lengths[0].asked_at = now
        for length in lengths:
            length.note(late=True)

    def served(
        self, work: tuple[FlowWork, ...], now: float, *, late: bool, flows: Sequence[FlowView] = ()
    ) -> None:
        if self._frozen:
            return
        if not work:
            return
        first, first_s = work[0][0], 0.0  # most work is of one priority
        others_s: dict[int, float] = {}
        for at, (priority, tenant, seconds) in enumerate(work):
            account = self._known(flows[at]) if flows else self._accounts.get((priority, tenant))
            account = account or self._open((priority, tenant))
            account.add(seconds, now)
            if priority == first:
                first_s += seconds
            else:
                others_s[priority] = others_s.get(priority, 0.0) + seconds
        self._give(first, first_s, now)
        for priority, seconds in others_s.items():
            self._give(priority, seconds, now)

    def _give(self, priority: int, seconds: float, now: float) -> None:
        given = self._given.get(priority)
        if given is None:
            given = self._given[priority] = DecayingRate(self._window_s)
        given.add(seconds, now)

    def waited(
        self, flow: FlowView, request: RequestView, wait_s: float, now: float, *, taken: bool
    ) -> None:
        """Learn whether its forecast has come true. A request that was taken is given its cost."""
        if self._frozen:
            return
        account = self._known(flow) or self._open(flow.key)
        if taken:
            account.length(request.forecast_edge, now).add(request.cost_s, now)
        forecast_s = request.forecast_s
        if self._fixed_margin_s is None and forecast_s is not None:
            slack_s = request.latest_start - request.queued_at
            account.error.learn(forecast_s, slack_s, wait_s, now)

    def value(self, capacity: float, now: float) -> float:
        """The largest margin of all flows, in seconds."""
        return max([margin_s for _, _, margin_s in self.by_flow(now)], default=0.0)

    def by_flow(self, now: float) -> tuple[FlowWork, ...]:
        fixed_s = self._fixed_margin_s
        return tuple(
            (*each.flow, each.margin_s if fixed_s is None else fixed_s) for each in self.flows(now)
        )

    def flows(self, now: float) -> Iterator[FlowForecasts]:
        """What is known of each flow's forecasts."""
        for flow, account in self._accounts.items():
            error = account.error
            yield FlowForecasts(flow, self._read(account, now), error.scale, error.margin_s)

    # -- the forecast

    def _wait_s(self, newcomer: Newcomer, account: _Account, now: float) -> float:
        """The predicted queue wait, seconds, neither corrected nor with a margin."""
        before_s, urgent_s = newcomer.before_s, newcomer.urgent_s
        if before_s <= 0.0 and urgent_s <= 0.0:
            return 0.0
        flow, capacity = newcomer.flow, newcomer.capacity
        priority, weight = flow.priority, flow.weight
        level = self._rivals.get(priority)
        others = (0.0 if level is None else level.value) - account.waits.value
        left = capacity - self._given_above(priority, now) if priority else capacity
        if left < _MIN_LEFT * capacity:
            left = _MIN_LEFT * capacity
        share = left * weight / (weight + others) if others > 0.0 else left
        rate = self._read(account, now)
        # By its share alone, an aggressor that gets what its neighbours leave unused would be
        # called late. By the measured rate alone, so would a flow that has just become active.
        if rate < share:
            rate = share
        return urgent_s / left + before_s / (rate if rate < capacity else capacity)

    def _given_above(self, priority: int, now: float) -> float:
        """Device seconds a second that more urgent priorities are given."""
        given = 0.0
        for other, rate in self._given.items():
            if other < priority:
                given += self._read(rate, now)
        return given

    def _read(self, rate: DecayingRate, now: float) -> float:
        return rate.value if self._frozen else rate.read(now)

    def _known(self, flow: FlowView) -> _Account | None:
        """The flow's account; None: it has none."""
        account: _Account | None = flow.notes[FORECAST_NOTE]
        if account is None or account.owner is not self:
            flow.notes[FORECAST_NOTE] = account = self._accounts.get(flow.key)
        return account

    def _open(self, flow: FlowKey) -> _Account:
        account = self._accounts[flow] = _Account(self, self._window_s)
        return account

    def _new_length(self) -> _LengthAccount:
        return _LengthAccount(self._window_s)

    def _new_level(self, priority: int) -> TimeAverage:
        level = self._rivals[priority] = TimeAverage(self._window_s)
        return level


def _while_none_runs(newcomer: Newcomer, now: float) -> Answer:
    """The answer while no replica runs: late by as much as the next replica is expected after the
    latest start."""
    if not newcomer.capacity_in_s:
        return ADMIT
    late_by_s = now + newcomer.capacity_in_s - newcomer.request.latest_start
    return Answer(late_by_s=late_by_s) if late_by_s > 0.0 else ADMIT
