"""The speed of stream replicas: what a token is worth in seconds, and when one comes.

Three things, each learnt from what leases report, each with a fixed value beside it. `token_s`:
seconds a weighted token of a replica that is full, which turns tokens into predicted device
seconds; a replica that is not full works slower because it has less to do, so it only shows that
the speed is at least so high. `prompt_s`: seconds until a first token for each token that has to be
read before it. `most_leases`: how many sequences may run at once for the promised time a token to
hold. One speed for all replicas of a group; what is fair is counted in tokens, wherever they are
made.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from routers.api.settings import GenerationParameters
from routers.estimates.first_tokens import FirstTokens
from routers.estimates.replica_pace import ReplicaPace

# Of a fitted line:
_KEEP = 0.98  # of a point's weight, with each newer one: about the last fifty count
_APART = 0.2  # standard deviation of x, relative to its mean, from which a slope is believed
_LEAST = 8

# Of what is learnt:
_WINDOW_S = 1.0
_GAIN = 0.2
_FIRST_TOKEN_S = 1e-3
_FIRST_PROMPT_S = 1e-4


@dataclass(slots=True)
class LineFit:
    """What line do the latest points lie on? Least squares over exponentially forgotten points: y =
    base + slope * x, the slope never negative. While the latest points lie too close together to
    tell, the slope stays what it was, at first the one to start from, and the base follows.

    `slope`, and `base` to go with it, are to be read only; `first`: the slope to start from;
    `is_known`: points have shown it."""

    first: float = 0.0
    points: int = 0
    base: float = 0.0
    slope: float = 0.0
    is_known: bool = False
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def __post_init__(self) -> None:
        self.slope = self.first

    def learn(self, x: float, y: float) -> None:
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
    """`given`: weighted tokens that its replica had given by the last time, 0: it does not say."""

    since: float
    tokens: float = 0.0
    full: bool = True
    given: float = 0.0


class EngineSpeed:
    """`samples`: of `token_s`; 0: it is a guess, or the profile's. `pace`: of each replica beside
    the group's; `first_tokens`: how they scatter around `first_token_s`."""

    def __init__(self, settings: GenerationParameters) -> None:
        self.frozen = False
        self.samples = 0
        self._meters: dict[str, _Meter] = {}
        self._settings = settings
        self._start(settings)

    def adopt(self, settings: GenerationParameters) -> None:
        """Go on under new settings. Another profile is another engine: what was learnt goes."""
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
        fixed = self._settings.tokens_per_s
        return self._token_s if fixed is None else 1.0 / fixed

    @property
    def prompt_s(self) -> float:
        fixed = self._settings.prompt_tokens_per_s
        return self._first_tokens.slope if fixed is None else 1.0 / fixed

    def first_token_s(self, tokens: float) -> float:
        """Seconds from a lease's sending to its first token, with so many to be read before it."""
        if self._settings.prompt_tokens_per_s is not None:
            return tokens * self.prompt_s
        return self._first_tokens.base + tokens * self._first_tokens.slope

    @property
    def most_leases(self) -> float:
        """inf: no bound is known, or none is asked for; at least 1."""
        tpot_s, steps = self._settings.tpot_s, self._steps
        if tpot_s == inf or not steps.is_known or steps.slope <= 0.0:
            return inf
        return max(1.0, (tpot_s - steps.base) / steps.slope)

    @property
    def alone_s(self) -> float:
        """Seconds of a step of a replica that is not full; what a token of a full one is worth
        while no step was measured."""
        steps = self._steps
        return steps.base if steps.is_known else self._settings.output_weight * self.token_s

    def company_s(self, leases: int, load: float) -> float:
        """Seconds that an output token takes longer beside so many leases; by how full the replica
        is while that has not been measured."""
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
        """It has served so many weighted tokens more; `full`: it could not have taken more.
        `given`: what it has given to all gateways, ever; where that is known it counts, and not
        what this gateway's requests were given."""
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
        """It holds nothing any more: the time until it does is nobody's."""
        self._meters.pop(replica_id, None)

    def forget(self, replica_id: str) -> None:
        """It is gone."""
        self.idle(replica_id)
        self.pace.forget(replica_id)

    def began(self, tokens: float, seconds: float) -> None:
        """A first token came so long after its lease was sent, with so many to be read for it."""
        if not self.frozen and tokens > 0.0 and seconds > 0.0:
            self._first_tokens.learn(tokens, seconds)

    def waited(self, edge: int, seconds: float, predicted_s: float) -> None:
        """A first token of this bucket came so long after its replica had begun with it, or was not
        waited for any longer."""
        if not self.frozen:
            self.first_tokens.observe(edge, seconds, predicted_s)

    def stepped(self, running: float, seconds: float) -> None:
        """Output tokens came so many seconds apart while so many sequences ran."""
        if not self.frozen and seconds > 0.0:
            self._steps.learn(running, seconds)


def _of_profile(profile: tuple[tuple[int, int, float], ...]) -> tuple[float, float]:
    """Seconds an output token with the most sequences running, and a prompt token in the largest
    step; 0.0: not measured."""
    decodes = [(running, seconds) for running, tokens, seconds in profile if running == tokens]
    prompts = [(tokens, seconds) for running, tokens, seconds in profile if tokens > running]
    running, decode_s = max(decodes, default=(1, 0.0))
    tokens, prompt_s = max(prompts, default=(1, 0.0))
    return decode_s / running, prompt_s / tokens
