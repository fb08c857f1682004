"""What a new version's batches cost beside the live one's, before it gets any request.

Both have measured batches of the same rows and lengths while they warmed up, each version through
the same code. Compared by length, because a version may be as fast on average and twice as slow
for the longest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.terms import RolloutTerms

_NOISE_S = 0.002
Profile = tuple[tuple[int, int, float], ...]


def too_costly(live: ModelDescription, new: ModelDescription, terms: RolloutTerms) -> str:
    """Why the new version may not be given requests, "" for nothing; nothing either where a
    version has measured nothing, or they have no batch in common."""
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
    """Of its first group, where it has several."""
    return d.groups[0].profile if d.groups else d.profile


def _one_row(profile: Profile) -> dict[tuple[int, int], float]:
    return {(rows, length): cost_s for rows, length, cost_s in profile if rows == 1}


def _by_length(live: Profile, new: Profile) -> Mapping[int, tuple[float, float]]:
    """Seconds of the new and the live version at each length: of the batch where their ratio is
    its median over the numbers of rows that both have measured."""
    known = {(rows, length): cost_s for rows, length, cost_s in live}
    pairs: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for rows, length, cost_s in new:
        if known.get((rows, length)):
            pairs[length].append((cost_s, known[rows, length]))
    for both in pairs.values():
        both.sort(key=lambda pair: pair[0] / pair[1])
    return {length: both[len(both) // 2] for length, both in sorted(pairs.items())}
