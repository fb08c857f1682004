"""Do a new version's batches cost too much to give it any request?

Both versions have measured batches of the same rows and lengths in their warm-up, with the same
code. They are compared by length, because a version may be as fast on average and twice as slow for
the longest rows.

A version with a rollout serves beside the live one, so little is lost if it is refused wrongly
(`too_costly`). A version that changes at once would not serve at all. It measures while the live
version serves, perhaps on the same processors, so it is compared with what the live version takes
by now, as gateways have fitted it (`refusal`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.observations import CostBounds, LiveCosts, Profile
from deployments.contract.rollout.terms import RolloutTerms

_NOISE_S = 0.002  # a smaller difference is not taken for a difference between versions
_SURELY_SLOWER = 1.5  # times the live version's time; less may be another load on the machine


def refusal(live: LiveCosts, new: Profile, bounds: CostBounds) -> str:
    """Why a new version may not take the live one's place; "" if it may. It may, too, if they have
    measured no batch in common, or where the live version takes longer than the deadline too."""
    return next(_refusals(live, new, bounds), "") if bounds.max_ratio else ""


def _refusals(live: LiveCosts, new: Profile, bounds: CostBounds) -> Iterator[str]:
    surely = min(_SURELY_SLOWER, bounds.max_ratio)
    for length, new_s in _over(new, bounds.slo_s):
        live_s = live_seconds(live, 1, length)
        if 0.0 < live_s <= bounds.slo_s and new_s > live_s * surely + _NOISE_S:
            yield (f"{_late(length, new_s, bounds.slo_s)}; the live version takes {_ms(live_s)}")
    common = tuple((r, n, live_seconds(live, r, n)) for r, n, _ in live.profile)
    yield from _slower(common, new, bounds.max_ratio)


def late_rows(new: Profile, slo_s: float) -> str:
    """Which single row takes longer than its deadline, the shortest of them; "" if none does."""
    return next((_late(length, cost_s, slo_s) for length, cost_s in _over(new, slo_s)), "")


def too_costly(live: ModelDescription, new: ModelDescription, terms: RolloutTerms) -> str:
    """Why the new version may get no requests; "" if it may. It may, too, if either version has
    measured nothing, or they have measured no batch in common."""
    return next(_complaints(live, new, terms), "")


def _complaints(
    live: ModelDescription, new: ModelDescription, terms: RolloutTerms
) -> Iterator[str]:
    slo_s = new.scheduling.slo_s
    for length, cost_s in _over(_profile(new), slo_s):
        yield _late(length, cost_s, slo_s)
    yield from _slower(_profile(live), _profile(new), terms.max_cost_ratio)


def _slower(live: Profile, new: Profile, max_ratio: float) -> Iterator[str]:
    for length, (new_s, live_s) in _by_length(live, new).items():
        if new_s > live_s * max_ratio + _NOISE_S:
            yield (
                f"a batch of length {length} takes it {_ms(new_s)}, the live version "
                f"{_ms(live_s)}: more than {max_ratio:g} times as long"
            )


def _over(profile: Profile, slo_s: float) -> Iterable[tuple[int, float]]:
    """The lengths of single rows that take longer than that, ascending, and their seconds."""
    return sorted((length, s) for rows, length, s in profile if rows == 1 and s > slo_s)


def _late(length: int, cost_s: float, slo_s: float) -> str:
    return (
        f"1 row of length {length} takes it {_ms(cost_s)}, more than its deadline "
        f"({slo_s * 1000:g} ms)"
    )


def _ms(seconds: float) -> str:
    digits = ".3g" if seconds < 0.999 else ".0f"
    return f"{seconds * 1000:{digits}} ms"


def live_seconds(live: LiveCosts, rows: int, length: int) -> float:
    """The longest that any of them says; 0 if none knows."""
    measured = (s for r, n, s in live.profile if (r, n) == (rows, length))
    predicted = (
        launch_s + rows * (row_s + length * (token_s + square_s * length))
        for launch_s, row_s, token_s, square_s in live.fits
    )
    return max((*measured, *predicted), default=0.0)


def _profile(d: ModelDescription) -> Profile:
    """The profile of the model, or of its main group if it has groups."""
    return d.profile if d.main_group is None else d.main_group.profile


def _by_length(live: Profile, new: Profile) -> Mapping[int, tuple[float, float]]:
    """For each length, the seconds of the new and the live version for one batch: the batch whose
    ratio is the median over the numbers of rows that both have measured."""
    known = {(rows, length): cost_s for rows, length, cost_s in live}
    pairs: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for rows, length, cost_s in new:
        if known.get((rows, length)):
            pairs[length].append((cost_s, known[rows, length]))
    for both in pairs.values():
        both.sort(key=lambda pair: pair[0] / pair[1])
    return {length: both[len(both) // 2] for length, both in sorted(pairs.items())}
