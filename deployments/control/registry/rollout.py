"""One rollout of one model: step by step more requests for the canary, until it takes over or goes.

    checking -> steps (shares of the requests) -> promoting -> promoted
         |          |                               |
         +----------+---------- aborted <-----------+

It is judged by the same bounds as long as the canary has a share: also while the new version starts
in the live one's place. What does not run there is aborted, too. At either end the canary gets no
more requests.

The registry keeps it and decides; gateways route by `route` and say what they see; the driver puts
the new version in the live one's place, or takes the canary away. Pure state, given the time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Literal

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.account import RolloutAccount, VersionAccount
from deployments.contract.rollout.observations import (
    Histogram,
    Observations,
    VersionObservations,
    commonest,
    seconds_of,
    summed,
)
from deployments.contract.rollout.terms import RolloutRoute, RolloutTerms, canary_of
from deployments.process.cost_gate import too_costly

RolloutPhase = Literal["checking", "step", "promoting", "promoted", "aborted"]


@dataclass(slots=True)
class Rollout:
    """`number`: grows with every rollout of the cluster. `step`: index of the share in force.
    since_s, away_since_s: on the registry's clock. why: of an abort, or of what is waited for.
    reached: whether a gateway has seen a replica of the canary yet; until then one that is promoted
    by hand is not missed."""

    model: str
    number: int
    terms: RolloutTerms
    since_s: float
    phase: RolloutPhase = "checking"
    step: int = 0
    why: str = ""
    away_since_s: float | None = None
    reached: bool = False
    seen: Observations = field(default_factory=lambda: Observations(0, 0))

    @property
    def canary(self) -> str:
        return canary_of(self.model)

    @property
    def ended(self) -> bool:
        return self.phase in ("promoted", "aborted")

    @property
    def route(self) -> RolloutRoute | None:
        """None while the canary gets nothing."""
        if self.phase not in ("step", "promoting"):
            return None
        share = self.terms.shares[min(self.step, len(self.terms.shares) - 1)]
        shadow = self.terms.shadow if self.phase == "step" else 0.0
        return RolloutRoute(self.number, self.step, self.canary, share, shadow, self.terms)

    def look(
        self,
        now: float,
        live: ModelDescription | None,
        canary: ModelDescription | None,
        said: Iterable[Observations],
    ) -> bool:
        """Decides by what is known now; whether gateways must hear of it. `live`, `canary`: as
        announced, None of what is not; `said`: by each gateway, last."""
        if self.phase == "checking":
            return self._check(now, live, canary)
        if self.phase not in ("step", "promoting"):
            return False
        self.seen = summed(self.number, self.step, said)
        if self._is_away(now, canary) and self.away_since_s is not None:
            if now - self.away_since_s < self.terms.away_s:
                return False
            return self._abort(f"it has had no replica for {self.terms.away_s:g} s")
        if why := complaint(self.seen, self.terms, self.terms.shares[self.step]):
            return self._abort(why)
        return self.phase == "step" and self._go_on(now)

    def promote(self, now: float) -> bool:
        """By hand, or after the last step. False where it is decided already."""
        if self.phase not in ("checking", "step"):
            return False
        self.phase, self.since_s, self.why = "promoting", now, ""
        return True

    def finish(self) -> bool:
        """The new version runs in the live one's place."""
        if self.phase != "promoting":
            return False
        self.phase = "promoted"
        return True

    def abort(self, why: str) -> bool:
        """By hand, or because the new version does not run in the live one's place. False where it
        has ended already."""
        return not self.ended and self._abort(why)

    def _check(
        self, now: float, live: ModelDescription | None, canary: ModelDescription | None
    ) -> bool:
        """What it costs, once it has said so; without a live version there is nothing to hold it
        to."""
        if canary is None:
            return False
        if live is not None and (why := too_costly(live, canary, self.terms)):
            return self._abort(why)
        self.phase, self.since_s = "step", now
        return True

    def _is_away(self, now: float, canary: ModelDescription | None) -> bool:
        """`away_since_s` is None while it is not; gateways need a moment after each step."""
        there = canary is not None and self.seen.reached > 0
        self.reached = self.reached or there
        if there or (self.phase == "promoting" and not self.reached):
            self.away_since_s = None
            return False
        if self.away_since_s is None:
            self.away_since_s = now
        return True

    def _go_on(self, now: float) -> bool:
        held_s = now - self.since_s
        own = self.seen.canary if self.terms.shares[self.step] else self.seen.copies
        lacks = self.terms.least_requests - own.requests
        self.why = f"waits for {lacks} more requests" if lacks > 0 else ""
        if held_s < self.terms.hold_s or lacks > 0:
            return False
        if self.step + 1 == len(self.terms.shares):
            return self.promote(now)
        self.step, self.since_s = self.step + 1, now
        self.seen = Observations(self.number, self.step, reached=self.seen.reached)
        return True

    def _abort(self, why: str) -> bool:
        self.phase, self.why = "aborted", why
        return True


def account(
    rollout: Rollout, now: float, live: ModelDescription | None, canary: ModelDescription | None
) -> RolloutAccount:
    """`now`: on the registry's clock; `live`, `canary`: the two versions as announced, or None."""
    seen, route, terms = rollout.seen, rollout.route, rollout.terms
    return RolloutAccount(
        model=rollout.model,
        number=rollout.number,
        phase=rollout.phase,
        share=route.share if route else 0.0,
        step=rollout.step + 1,
        steps=len(terms.shares),
        held_s=now - rollout.since_s,
        hold_s=terms.hold_s,
        why=rollout.why,
        live=_version(live, seen.live),
        canary=_version(canary, seen.canary),
        copies=_version(canary, seen.copies),
        compared=seen.compared,
        agreed=seen.agreed,
    )


def _version(description: ModelDescription | None, seen: VersionObservations) -> VersionAccount:
    half_s = median_s(whole(seen.latencies))
    return VersionAccount(
        version=description.version if description else "",
        answered=seen.answered,
        failed=seen.failed,
        median_ms=None if half_s is None else half_s * 1000,
    )


# ---- whether the canary must go ------------------------------------------------------------------

_Z = 2.0  # standard deviations: about 95 %, two-sided
_MIN_FAILURES = 5  # fewer abort nothing
_QUANTILES = (0.5, 0.9)
_NOISE_S = 0.002  # a smaller difference is not taken for a difference between versions
_TOKEN_NOISE_S = 0.0005  # the same, for the time from one token to the next


def complaint(seen: Observations, terms: RolloutTerms, share: float = 1.0) -> str:
    """The first thing that is wrong with the canary, or "". `share`: of the requests that the
    canary gets, 0..1.

    Every bound is tested with confidence. One failure or one slow answer among few aborts nothing,
    and the more has been seen, the smaller a difference counts. Shares are bounded by Wilson's
    interval (Wilson 1927). A quantile is bounded by the values at the ranks that a binomial
    distribution leaves (normal approximation; Conover, Practical Nonparametric Statistics, 3rd
    edition, 3.2).
    """
    return next(_complaints(seen, terms, share), "")


def _complaints(seen: Observations, terms: RolloutTerms, share: float) -> Iterator[str]:
    yield from _failures("requests", seen.canary, seen.live, terms)
    yield from _failures("copied requests", seen.copies, seen.live, terms)
    yield from _disagreement(seen, terms)
    yield from _slowness("requests", seen.canary, seen.live, terms)
    tokens = seen.canary.token_s, seen.live.token_s
    yield from _slower("times from one token to the next", *tokens, terms, _TOKEN_NOISE_S)
    if not share:  # otherwise copied requests wait behind the canary's own
        yield from _slowness("copied requests", seen.copies, seen.live, terms)


def _failures(
    what: str, canary: VersionObservations, live: VersionObservations, terms: RolloutTerms
) -> Iterator[str]:
    # A live version that has not failed excuses no failure.
    usual = _wilson(live.failed, live.requests, _Z) if live.failed else 0.0
    allowed = usual + terms.max_errors
    if canary.failed >= _MIN_FAILURES and _wilson(canary.failed, canary.requests, -_Z) > allowed:
        yield (
            f"{canary.failed} of {canary.requests} {what} failed (the live version: "
            f"{live.failed} of {live.requests}), most of them with {commonest(canary.reasons)}"
        )


def _disagreement(seen: Observations, terms: RolloutTerms) -> Iterator[str]:
    least = terms.agreement.least
    wrong = seen.compared - seen.agreed
    if terms.agreement.asked and wrong and 1 - _wilson(wrong, seen.compared, -_Z) < least:
        yield (
            f"{seen.agreed} of {seen.compared} compared requests agree with the live version's; "
            f"{least:.1%} must"
        )


def _slowness(
    what: str, canary: VersionObservations, live: VersionObservations, terms: RolloutTerms
) -> Iterator[str]:
    """Compared by length, and over all lengths: both versions get the same mixture of lengths."""
    yield from _slower(what, whole(canary.latencies), whole(live.latencies), terms)
    for length in sorted(canary.latencies.keys() & live.latencies.keys()):
        own, usual = canary.latencies[length], live.latencies[length]
        yield from _slower(f"{what} up to {length} long", own, usual, terms)


def _slower(
    what: str, canary: Histogram, live: Histogram, terms: RolloutTerms, noise_s: float = _NOISE_S
) -> Iterator[str]:
    for quantile in _QUANTILES:
        slow, usual = at_least(canary, quantile), at_most(live, quantile)
        if slow is None or usual is None:
            continue
        if slow > usual * terms.max_latency_ratio + noise_s:
            yield (
                f"its p{quantile * 100:g} of {what} is above {slow * 1000:.3g} ms, the live "
                f"version's below {usual * 1000:.3g} ms"
            )


def _wilson(hits: int, total: int, z: float) -> float:
    """The end of Wilson's score interval at `z` standard deviations: a bound that the true share is
    almost certainly above (`z` negative) or below."""
    share, z2 = hits / total, z * z
    centre = share + z2 / (2 * total)
    spread = z * sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    return (centre + spread) / (1 + z2 / total)


# ---- bounds of a histogram's quantiles -----------------------------------------------------------


def at_least(histogram: Histogram, quantile: float) -> float | None:
    """Seconds that the true quantile is almost certainly above; None if there are too few
    requests."""
    total = sum(histogram.values())
    rank = math.floor(total * quantile - _spread(total, quantile))
    return None if rank < 1 else seconds_of(_at(histogram, rank) - 1)


def at_most(histogram: Histogram, quantile: float) -> float | None:
    """Seconds that the true quantile is almost certainly below; None if there are too few
    requests."""
    total = sum(histogram.values())
    rank = math.ceil(total * quantile + _spread(total, quantile)) + 1
    return None if rank > total else seconds_of(_at(histogram, rank))


def median_s(histogram: Histogram) -> float | None:
    """The median in seconds, rounded up to a step; None without requests."""
    total = sum(histogram.values())
    return seconds_of(_at(histogram, (total + 1) // 2)) if total else None


def whole(by_length: Mapping[int, Histogram]) -> Counter[int]:
    """One histogram over all lengths."""
    return sum((Counter(each) for each in by_length.values()), Counter())


def _spread(total: int, quantile: float) -> float:
    return _Z * math.sqrt(total * quantile * (1 - quantile))


def _at(histogram: Histogram, rank: int) -> int:
    """The step of the request at that rank, counted from 1."""
    passed = 0
    for step in sorted(histogram):
        passed += histogram[step]
        if passed >= rank:
            return step
    raise ValueError(f"rank {rank} of {passed}")
