"""Which models get replicas when all together want more than there is?

Bounds are the budget's resources and money, and what the cluster has. First come all minima and the
draining replicas, because these hold their devices until they have ended. The rest goes by
priority, the most urgent first; within a priority, one replica at a time goes to the model with the
smallest dominant share (its largest share of any bounded resource; Ghodsi et al., NSDI 2011). A
minimum is granted even above the bounds. Decides counts, not which replica is removed. Work:
O(replicas · log models), and only if the sum of all claims does not fit.
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
    """The replicas that one group of a model asks for."""

    model: str
    group: str
    needs: Needs  # of one replica
    asked: int
    minimum: int = 0  # replicas that are granted in any case
    draining: int = 0  # replicas that still hold their devices
    priority: int = 0  # 0 is the most urgent


@dataclass(frozen=True, slots=True)
class Grant:
    """The replicas that a claim gets."""

    count: int
    bound: str = ""  # the resource that was too short for more; "": all was granted


def ceilings(budget: Budget, cluster: Mapping[str, float] | None) -> dict[str, float]:
    """By resource, the lower of budget and cluster; a resource that neither names has no bound.
    `cluster` None: unknown, or nodes can be added."""
    limits = dict(cluster or {})
    for name, amount in budget.resources:
        limits[name] = min(amount, limits.get(name, amount))
    if budget.cost_per_hour is not None:
        limits[COST] = budget.cost_per_hour
    return limits


def share(claims: Iterable[Claim], limits: Mapping[str, float]) -> dict[Key, Grant]:
    """The grant of each claim, by (model, group). `limits`: see `ceilings`."""
    claims = list(claims)
    left = dict(limits)
    asked = dict(limits)
    needs = {(each.model, each.group): _bounded(each.needs, limits) for each in claims}
    granted = {(each.model, each.group): min(each.minimum, each.asked) for each in claims}
    for claim in claims:
        key = claim.model, claim.group
        _take(left, needs[key], granted[key] + claim.draining)
        _take(asked, needs[key], claim.asked + claim.draining)
    if all(amount >= -_SLIGHTLY for amount in asked.values()):
        return {(each.model, each.group): Grant(each.asked) for each in claims}
    bounds: dict[Key, str] = {}
    for priority in sorted({each.priority for each in claims}):
        peers = [each for each in claims if each.priority == priority]
        _divide(_Division(needs, granted, bounds, left, limits), peers)
    return {key: Grant(count, bounds.get(key, "")) for key, count in granted.items()}


@dataclass(frozen=True, slots=True)
class _Division:
    """A division under way."""

    needs: dict[Key, dict[str, float]]  # of one replica, by claim
    granted: dict[Key, int]  # so far
    bounds: dict[Key, str]  # what was too short, so far
    left: dict[str, float]  # of the bounds
    limits: Mapping[str, float]  # see `ceilings`


def _divide(division: _Division, claims: list[Claim]) -> None:
    """Give one replica at a time to the claim with the smallest dominant share, until nothing more
    fits or is asked for."""
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
    parts = [count * need / max(division.limits[name], _SLIGHTLY) for name, need in needs.items()]
    return max(parts, default=0.0)


def _bounded(needs: Needs, limits: Mapping[str, float]) -> dict[str, float]:
    """What one replica takes of the bounded resources."""
    takes = dict(needs.resources)
    takes[COST] = needs.cost_per_hour
    return {name: need for name, need in takes.items() if need > 0.0 and name in limits}


def _take(left: dict[str, float], needs: Mapping[str, float], count: int) -> None:
    for name, need in needs.items():
        left[name] -= need * count


def _short(left: Mapping[str, float], needs: Mapping[str, float]) -> str:
    """The resource that is too short for one more replica, the first by name; "": none."""
    tight = [name for name, need in needs.items() if left[name] < need - _SLIGHTLY]
    return min(tight, default="")
