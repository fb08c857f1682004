"""How fast are a group's stream replicas: what is a token worth in seconds, when does one come?

Three values are learnt from what leases report; settings may fix the first two. `token_s`: seconds
of a weighted token on a full replica; turns tokens into predicted device seconds. A replica that is
not full is slower because it has less to do, so it shows only that the speed is at least as high.
`prompt_s`: seconds until a first token, for each token that has to be read before it.
`max_leases`: how many sequences may run at once while the promised time a token (TPOT) holds. One
speed for all replicas of a group; fairness is counted in tokens, wherever they are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from routers.api.settings import GenerationParameters
from routers.estimates.ratio_histogram import FirstTokens

# Of a fitted line:
_KEEP: Final = 0.98  # of a point's weight, with each newer point: about the last fifty count
_APART: Final = 0.2  # standard deviation of x, relative to its mean, from which a slope is believed
_LEAST: Final = 8  # points

# Of what is learnt:
_WINDOW_S: Final = 1.0
_GAIN: Final = 0.2
_FIRST_TOKEN_S: Final = 1e-3  # `token_s` until anything is known
_FIRST_PROMPT_S: Final = 1e-4  # `prompt_s` until anything is known


@dataclass(slots=True)
class LineFit:
    """On what line do the latest points lie? Least squares over exponentially forgotten points: y =
    base + slope × x, the slope never negative.

    While the latest points lie too close together in x to tell, the slope stays what it was
    (`first` to begin with) and only the base follows.
    """

    first: float = 0.0  # the slope to start from
    points: int = 0
    base: float = 0.0  # to be read only, as `slope`
    slope: float = 0.0
    is_known: bool = False  # points have shown the slope
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def __post_init__(self) -> None:
        self.slope = self.first

    def learn(self, x: float, y: float) -> None:
        """Take in one more point."""
        self.points += 1
        self._weight = self._weight * _KEEP + 1.0
        gain = 1.0 / self._weight
        self._x += gain * (x - self._x)
        self._y += gain * (y - self._y)
        self._xx += gain * (x * x - self._xx)
        self._xy += gain * (x * y - self._xy)
        spread = self._xx - self._x * self._x
        if self.points >= _LEAST and spread > (_APART * self._x) ** 2:
            self.slope = max(0.0, (self._xy - self._x * self._y) / spread)
            self.is_known = True
        self.base = max(0.0, self._y - self.slope * self._x)


@dataclass(slots=True)
class _Meter:
    """One replica since `since`. `given`: weighted tokens that it had given in all by then; 0.0: it
    does not say."""

    since: float
    tokens: float = 0.0
    full: bool = True
    given: float = 0.0


class EngineSpeed:
    """The speed of one group's engines. `samples` counts those of `token_s`; while it is 0,
    `token_s` is a guess or comes from the profile. `pace` is each replica's slowdown to the group,
    and `first_tokens` how measured times scatter around `first_token_s`."""

    def __init__(self, settings: GenerationParameters) -> None:
        self.frozen = False
        self.samples = 0
        self._meters: dict[str, _Meter] = {}
        self._settings = settings
        self._start(settings)

    def adopt(self, settings: GenerationParameters) -> None:
        """Go on under new settings. Another profile means another engine, so what was learnt
        goes."""
        fresh = settings.profile != self._settings.profile
        self._settings = settings
        if fresh:
            self._start(settings)

    def _start(self, settings: GenerationParameters) -> None:
        output_s, input_s = _of_profile(settings.profile)
        priced = (output_s / settings.output_weight, input_s / settings.input_weight)
        known = [each for each in priced if each]
        self._token_s = sum(known) / len(known) if known else _FIRST_TOKEN_S
        self.pace, self.first_tokens = ReplicaPace(), FirstTokens()
        self._first_tokens = LineFit(input_s or _FIRST_PROMPT_S)
        self._steps = LineFit()
        self.samples = 0
        for running, tokens, seconds in settings.profile:
            if running == tokens:  # a step that reads no prompt
                self._steps.learn(running, seconds)

    # -- what is known

    @property
    def token_s(self) -> float:
        """Seconds of a weighted token on a full replica."""
        fixed = self._settings.tokens_per_s
        return self._token_s if fixed is None else 1.0 / fixed

    @property
    def is_measured(self) -> bool:
        """Whether `token_s` is more than a guess."""
        settings = self._settings
        return self.samples > 0 or settings.tokens_per_s is not None or bool(settings.profile)

    @property
    def prompt_s(self) -> float:
        """Seconds until a first token, for each token that has to be read before it."""
        fixed = self._settings.prompt_tokens_per_s
        return self._first_tokens.slope if fixed is None else 1.0 / fixed

    def first_token_s(self, tokens: float) -> float:
        """Seconds from sending a lease to its first token, with so many tokens to be read before
        it."""
        if self._settings.prompt_tokens_per_s is not None:
            return tokens * self.prompt_s
        return self._first_tokens.base + tokens * self._first_tokens.slope

    @property
    def max_leases(self) -> float:
        """Sequences that may run at once, at least 1; inf: no bound is known, or none is asked
        for."""
        tpot_s, steps = self._settings.tpot_s, self._steps
        if tpot_s == inf or not steps.is_known or steps.slope <= 0.0:
            return inf
        return max(1.0, (tpot_s - steps.base) / steps.slope)

    @property
    def alone_s(self) -> float:
        """Seconds of an output token of a sequence that runs alone; while no step was measured,
        those of a token on a full replica."""
        steps = self._steps
        return steps.base if steps.is_known else self._settings.output_weight * self.token_s

    def delay_by_others_s(self, leases: int, load: float) -> float:
        """Seconds by which an output token is delayed beside so many leases; while that has not
        been measured, by how full the replica is (`load`)."""
        steps = self._steps
        if steps.is_known:
            return steps.slope * leases
        return self._settings.output_weight * self.token_s * load

    def step_s(self, running: float) -> float | None:
        """Predicted seconds of an output token beside so many sequences; None: too few were
        measured."""
        steps = self._steps
        return steps.base + steps.slope * running if steps.points >= _LEAST else None

    @property
    def knows_first_tokens(self) -> bool:
        """Whether `first_token_s` is more than a guess."""
        return self._first_tokens.points >= _LEAST

    # -- what is learnt

    def worked(
        self, replica_id: str, weighted: float, now: float, *, full: bool, given: float = 0.0
    ) -> None:
        """The replica has served so many weighted tokens more to this gateway. `full`: it could not
        have taken more work. `given`: weighted tokens that it has given to all gateways, ever;
        where the replica reports it, only this counts."""
        if self.frozen:
            return
        meter = self._meters.get(replica_id)
        if meter is None:
            self._meters[replica_id] = _Meter(now, given=given)
            return  # what these tokens took is not known
        if given > 0.0:
            weighted = max(0.0, given - meter.given) if meter.given else 0.0
            meter.given = given
        elif meter.given:
            return
        meter.tokens += weighted
        meter.full = meter.full and full
        span_s = now - meter.since
        if span_s >= _WINDOW_S and meter.tokens > 0.0:
            self._learn(span_s / meter.tokens, full=meter.full)
            self._meters[replica_id] = _Meter(now, given=meter.given)

    def _learn(self, token_s: float, *, full: bool) -> None:
        if full or token_s < self._token_s:
            gain = _GAIN if self.samples else 1.0
            self._token_s += gain * (token_s - self._token_s)
            self.samples += 1

    def idle(self, replica_id: str) -> None:
        """The replica holds nothing any more: the time until it does counts for nothing."""
        self._meters.pop(replica_id, None)

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self.idle(replica_id)
        self.pace.forget(replica_id)

    def began(self, tokens: float, seconds: float) -> None:
        """A first token came `seconds` after its lease was sent, with so many tokens to be read for
        it."""
        if not self.frozen and tokens > 0.0 and seconds > 0.0:
            self._first_tokens.learn(tokens, seconds)

    def waited(self, edge: int, seconds: float, predicted_s: float) -> None:
        """A first token of this bucket came `seconds` after its replica had begun with the request,
        or was not awaited any longer."""
        if not self.frozen:
            self.first_tokens.observe(edge, seconds, predicted_s)

    def stepped(self, running: float, seconds: float) -> None:
        """Output tokens came `seconds` apart while so many sequences ran."""
        if not self.frozen and seconds > 0.0:
            self._steps.learn(running, seconds)


def _of_profile(profile: tuple[tuple[int, int, float], ...]) -> tuple[float, float]:
    """Seconds of an output token with the most sequences running, and of a prompt token in the
    largest step; 0.0: not measured."""
    decodes = [(running, seconds) for running, tokens, seconds in profile if running == tokens]
    prompts = [(tokens, seconds) for running, tokens, seconds in profile if tokens > running]
    running, decode_s = max(decodes, default=(1, 0.0))
    tokens, prompt_s = max(prompts, default=(1, 0.0))
    return decode_s / running, prompt_s / tokens


_VERDICT_S: Final = 1.0
_VERDICTS: Final = 5
_MOST: Final = 64.0  # times slower, or faster, that a verdict may say at most


@dataclass(slots=True)
class _Pace:
    """One replica. `least` is the lowest ratio of the samples since the last verdict. `verdicts`
    are the last ones; before the first, the replica is taken to be as fast as its group."""

    since: float = -inf
    least: float = inf
    verdicts: tuple[float, ...] = (1.0,) * _VERDICTS


class ReplicaPace:
    """The slowdown of each stream replica to its group.

    Samples are times to first tokens and times between tokens, measured over predicted by the
    group's lines, so that neither prompts nor the number of sequences matter. The caller leaves out
    waits in which other prompts were read. One stall affects all streams of a replica, so all
    samples of a window make one verdict: the quickest of them, because a slow engine is always slow
    and an engine that was busy otherwise is not. A sample that began before the last verdict is
    left out, so a stall is in at most two verdicts. The slowdown is the median of the last five
    verdicts, so one stall does not change it.
    """

    def __init__(self) -> None:
        self._paces: dict[str, _Pace] = {}

    def slowdown(self, replica_id: str) -> float:
        """Measured over predicted seconds; 1.0 until it was measured."""
        pace = self._paces.get(replica_id)
        return 1.0 if pace is None else sorted(pace.verdicts)[_VERDICTS // 2]

    def took(
        self, replica_id: str, began_at: float, now: float, predicted_s: float, *, alone: bool
    ) -> float | None:
        """Take in a sample that lasted from `began_at` to now. Returns a verdict if it completes
        one: the lowest ratio of measured to predicted seconds since the last verdict. `alone`: this
        sample makes a verdict by itself."""
        pace = self._paces.get(replica_id)
        if pace is None:
            pace = self._paces[replica_id] = _Pace()
        if began_at < pace.since or predicted_s <= 0.0:
            return None
        pace.least = min(pace.least, (now - began_at) / predicted_s)
        if not alone and now - pace.since < _VERDICT_S:
            return None
        ratio = min(_MOST, max(1.0 / _MOST, pace.least))
        self._paces[replica_id] = _Pace(now, verdicts=(*pace.verdicts[1:], ratio))
        return ratio

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._paces.pop(replica_id, None)
