"""Do a new version's batches cost too much to give it any request?

Both versions have measured batches of the same rows and lengths in their warm-up, with the same
code. They are compared by length, because a version may be as fast on average and twice as slow for
the longest rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.terms import RolloutTerms

_NOISE_S = 0.002  # a smaller difference is not taken for a difference between versions
Profile = tuple[tuple[int, int, float], ...]


def too_costly(live: ModelDescription, new: ModelDescription, terms: RolloutTerms) -> str:
    """Why the new version may get no requests; "" if it may. It may, too, if either version has
    measured nothing, or they have measured no batch in common."""
    return next(_complaints(live, new, terms), "")


def _complaints(
    live: ModelDescription, new: ModelDescription, terms: RolloutTerms
) -> Iterator[str]:
    slo_s = new.scheduling.slo_s
    for (rows, length), cost_s in sorted(_one_row(_profile(new)).items()):
        if cost_s > slo_s:
            yield (
                f"{rows} row of length {length} takes it {cost_s * 1000:.3g} ms, more than its "
                f"deadline ({slo_s * 1000:g} ms)"
            )
    for length, (new_s, live_s) in _by_length(_profile(live), _profile(new)).items():
        if new_s > live_s * terms.max_cost_ratio + _NOISE_S:
            yield (
                f"a batch of length {length} takes it {new_s * 1000:.3g} ms, the live version "
                f"{live_s * 1000:.3g} ms: more than {terms.max_cost_ratio:g} times as long"
            )


def _profile(d: ModelDescription) -> Profile:
    """The profile of the model, or of its first group if it has groups."""
    return d.groups[0].profile if d.groups else d.profile


def _one_row(profile: Profile) -> dict[tuple[int, int], float]:
    return {(rows, length): cost_s for rows, length, cost_s in profile if rows == 1}


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
