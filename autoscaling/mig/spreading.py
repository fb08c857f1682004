"""Which replica goes to which GPU, so that a lost GPU costs each model as few replicas as possible?

The number of GPUs is given. Replicas are first dealt out in turn. Then exchanges between two GPUs
(one replica for up to four smaller ones) are made as long as they lower the sum, over models and
GPUs, of the squared number of replicas. Layouts may change, their number does not. Ends when no
such exchange helps, or after `TRIES` of them, so the result is not always the best. Equal input
gives equal output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autoscaling.mig.geometry import Counts, fits, plus, with_one

TRIES = 50_000
MAX_GPUS = 64  # beyond them replicas are dealt out only
_MAX_BACK = 4  # what a half holds of the smallest

Parts = tuple[int, ...]
"""A number of replicas of each demand."""


@dataclass
class GpuSpread:
    """kinds: of each demand, the position of its instance's kind; counts: of each GPU, its
    instances; held: of each GPU, how many replicas of each demand."""

    kinds: Sequence[int]
    counts: list[Counts]
    held: list[Parts]


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A replica of `demand` goes from `source` to `target`, and `back` the other way."""

    demand: int
    source: int
    target: int
    back: Parts


def spread(layouts: Sequence[Counts], kinds: Sequence[int], replicas: Sequence[int]) -> GpuSpread:
    """`layouts` hold just the instances of all demands; `kinds`, `replicas`: of each demand."""
    state = _dealt(layouts, kinds, replicas)
    tries = iter(range(TRIES if len(layouts) <= MAX_GPUS else 0))
    while _improved(state, tries):
        pass
    return state


def _improved(state: GpuSpread, tries: Iterator[int]) -> bool:
    """Whether an exchange made it better before the tries were used up."""
    for exchange, _ in zip(_exchanges(state), tries, strict=False):
        if _gain(state, exchange) > 0 and _carried_out(state, exchange):
            return True
    return False


def _dealt(layouts: Sequence[Counts], kinds: Sequence[int], replicas: Sequence[int]) -> GpuSpread:
    """Each to the GPU with a free instance of its kind that has fewest of its own."""
    held = [[0] * len(kinds) for _ in layouts]
    free = [list(layout) for layout in layouts]
    for demand in sorted(range(len(kinds)), key=lambda d: (-replicas[d], d)):
        for _ in range(replicas[demand]):
            open_ = [n for n, left in enumerate(free) if left[kinds[demand]]]
            gpu = min(open_, key=lambda n: (held[n][demand], n))
            held[gpu][demand] += 1
            free[gpu][kinds[demand]] -= 1
    return GpuSpread(kinds, list(layouts), [tuple(each) for each in held])


def _exchanges(state: GpuSpread) -> Iterator[_Exchange]:
    """Those first that even a demand out by themselves."""
    pairs = list(_pairs(state))
    for uneven in (True, False):
        for demand, source, target in pairs:
            more = state.held[source][demand] - state.held[target][demand]
            if (more >= 2) is uneven:
                for back in _parts(state.held[target]):
                    yield _Exchange(demand, source, target, back)


def _pairs(state: GpuSpread) -> Iterator[tuple[int, int, int]]:
    """(demand, GPU that has one of it, another GPU)"""
    for demand in range(len(state.kinds)):
        for source, held in enumerate(state.held):
            if held[demand]:
                others = (n for n in range(len(state.held)) if n != source)
                yield from ((demand, source, target) for target in others)


@lru_cache(4096)
def _parts(held: Parts) -> tuple[Parts, ...]:
    """At most `_MAX_BACK` of these replicas, few first."""
    found: set[Parts] = {(0,) * len(held)}
    for _ in range(_MAX_BACK):
        found |= {
            with_one(part, n) for part in found for n, most in enumerate(held) if part[n] < most
        }
    return tuple(sorted(found, key=lambda part: (sum(part), part)))


def _gain(state: GpuSpread, exchange: _Exchange) -> int:
    """By how much the sum of squares falls."""
    source, target = state.held[exchange.source], state.held[exchange.target]
    left, right = _after(exchange, source, target)
    return _squares(source) + _squares(target) - _squares(left) - _squares(right)


def _squares(held: Parts) -> int:
    return sum(n * n for n in held)


def _after(exchange: _Exchange, source: Parts, target: Parts) -> tuple[Parts, Parts]:
    left = with_one(plus(source, exchange.back), exchange.demand, -1)
    right = with_one(tuple(n - b for n, b in zip(target, exchange.back, strict=True)),
                     exchange.demand)  # fmt: skip
    return left, right


def _carried_out(state: GpuSpread, exchange: _Exchange) -> bool:
    """Whether both GPUs can hold what they would get; then they have it."""
    at = (exchange.source, exchange.target)
    after = _after(exchange, *(state.held[gpu] for gpu in at))
    counts = [_instances(state.kinds, held, len(state.counts[0])) for held in after]
    if not all(fits(each) for each in counts):
        return False
    for gpu, held, instances in zip(at, after, counts, strict=True):
        state.held[gpu], state.counts[gpu] = held, instances
    return True


def _instances(kinds: Sequence[int], held: Parts, number: int) -> Counts:
    counts = [0] * number
    for kind, replicas in zip(kinds, held, strict=True):
        counts[kind] += replicas
    return tuple(counts)
