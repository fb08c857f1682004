"""Who gets replicas when all models together want more than there is?

Bounds are the budget's resources and money and what the cluster has. First everybody's minimum and
what drains, since that holds its device until it is gone; the rest by priority, the most urgent
first, and within a priority one replica after the other to whoever has the smallest dominant share
(Ghodsi et al., NSDI 2011: its largest part of any bounded resource). A minimum is granted even
where the bounds are lower. Decides counts, never which replica goes. Work: O(replicas · log
models), and only when the sum of all that is asked does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from autoscaling.settings import Budget, Needs

COST = "cost_per_hour"
_SLIGHTLY = 1e-9
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """Replicas of one group of a model. asked: that it should have; draining: that go and still
    hold theirs."""

    model: str
    group: str
    needs: Needs
    asked: int
    least: int = 0
    draining: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """bound: what there was too little of for more, "" where all was granted."""

    count: int
    bound: str = ""


def ceilings(budget: Budget, cluster: Mapping[str, float] | None) -> dict[str, float]:
    """The lower of budget and cluster by resource; what neither names has no bound. cluster: None:
    not known, or nodes can be added."""
    most = dict(cluster or {})
    for name, amount in budget.resources:
        most[name] = min(amount, most.get(name, amount))
    if budget.cost_per_hour is not None:
        most[COST] = budget.cost_per_hour
    return most


def share(claims: Iterable[Claim], most: Mapping[str, float]) -> dict[Key, Grant]:
    """What each claim gets, by model and group."""
    claims = list(claims)
    left = dict(most)
    asked = dict(most)
    needs = {(each.model, each.group): _bounded(each.needs, most) for each in claims}
    granted = {(each.model, each.group): min(each.least, each.asked) for each in claims}
    for claim in claims:
        key = claim.model, claim.group
        _take(left, needs[key], granted[key] + claim.draining)
        _take(asked, needs[key], claim.asked + claim.draining)
    if all(amount >= -_SLIGHTLY for amount in asked.values()):
        return {(each.model, each.group): Grant(each.asked) for each in claims}
    bounds: dict[Key, str] = {}
    for priority in sorted({each.priority for each in claims}):
        peers = [each for each in claims if each.priority == priority]
        _divide(_Division(needs, granted, bounds, left, most), peers)
    return {key: Grant(count, bounds.get(key, "")) for key, count in granted.items()}


@dataclass(frozen=True, slots=True)
class _Division:
    """needs: of one replica, by claim; granted and bounds: so far; left of the bounds `most`."""

    needs: dict[Key, dict[str, float]]
    granted: dict[Key, int]
    bounds: dict[Key, str]
    left: dict[str, float]
    most: Mapping[str, float]


def _divide(division: _Division, claims: list[Claim]) -> None:
    """One replica at a time to the smallest dominant share, until nothing fits or is asked."""
    asked = {(each.model, each.group): each.asked for each in claims}
    waiting = [(_dominant(division, key), n, key) for n, key in enumerate(asked)]
    heapify(waiting)
    while waiting:
        _, n, key = waiting[0]
        if division.granted[key] >= asked[key]:
            heappop(waiting)
            continue
        short = _short(division.left, division.needs[key])
        if short:
            division.bounds[key] = short
            heappop(waiting)
            continue
        _take(division.left, division.needs[key], 1)
        division.granted[key] += 1
        heapreplace(waiting, (_dominant(division, key), n, key))


def _dominant(division: _Division, key: Key) -> float:
    needs, count = division.needs[key], division.granted[key]
    parts = [count * need / max(division.most[name], _SLIGHTLY) for name, need in needs.items()]
    return max(parts, default=0.0)


def _bounded(needs: Needs, most: Mapping[str, float]) -> dict[str, float]:
    """What one takes of what is bounded."""
    takes = dict(needs.resources)
    takes[COST] = needs.cost_per_hour
    return {name: need for name, need in takes.items() if need > 0.0 and name in most}


def _take(left: dict[str, float], needs: Mapping[str, float], count: int) -> None:
    for name, need in needs.items():
        left[name] -= need * count


def _short(left: Mapping[str, float], needs: Mapping[str, float]) -> str:
    """What there is too little of for one more, the first by name."""
    tight = [name for name, need in needs.items() if left[name] < need - _SLIGHTLY]
    return min(tight, default="")
