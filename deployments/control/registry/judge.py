"""Has enough been seen of a canary to say that its rollout must be aborted, and why?

Every bound is tested with confidence. One failure or one slow answer among few aborts nothing, and
the more has been seen, the smaller a difference counts. Shares are bounded by Wilson's interval
(Wilson 1927). A quantile is bounded by the values at the ranks that a binomial distribution leaves
(normal approximation; Conover, Practical Nonparametric Statistics, 3rd edition, 3.2). Reasons are
sentences for people.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from math import sqrt

from deployments.contract.rollout.observations import (
    Histogram,
    Observations,
    VersionObservations,
    commonest,
    seconds_of,
)
from deployments.contract.rollout.terms import RolloutTerms

_Z = 2.0  # standard deviations: about 95 %, two-sided
_MIN_FAILURES = 5  # fewer abort nothing
_QUANTILES = (0.5, 0.9)
_NOISE_S = 0.002  # a smaller difference is not taken for a difference between versions
_TOKEN_NOISE_S = 0.0005  # the same, for the time from one token to the next


def complaint(seen: Observations, terms: RolloutTerms, share: float = 1.0) -> str:
    """The first thing that is wrong with the canary, or "". `share`: of the requests that the
    canary gets, 0..1."""
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


_Z = 2.0  # standard deviations: about 95 %, two-sided


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
