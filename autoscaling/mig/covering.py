"""What is the least number of GPUs that hold the given numbers of instances?

Exact while that is cheap; else the result says that it is not proved (`Cover.proved`). Every GPU is
one of the maximal layouts (`geometry.maximal`), of which any part may be used, so this is a
covering problem. Best-fit decreasing gives a first solution. From a lower bound on, a depth-first
search tries one GPU more at a time; it serves the largest kind first and never tries a state again
that is known to fail. After `STEPS` steps the best-fit solution is kept. Which replica goes where
is decided by `spreading`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

from autoscaling.mig.geometry import (
    COMPUTE_SLICES,
    KINDS,
    MEMORY_SLICES,
    NONE,
    Counts,
    fits,
    free_compute,
    free_memory,
    maximal,
    with_one,
)

STEPS = 20_000
DEEPEST = 200  # GPUs; beyond it nothing is searched


@dataclass(frozen=True, slots=True)
class Cover:
    """gpus: the instances of each GPU. at_least: how many are needed in any case."""

    gpus: tuple[Counts, ...]
    at_least: int

    @property
    def proved(self) -> bool:
        return len(self.gpus) == self.at_least


@lru_cache(4096)
def cover(counts: Counts, steps: int = STEPS) -> Cover:
    """The fewest GPUs for these instances, best-fit decreasing where the search gives up."""
    greedy, search = best_fit(counts), _Search(steps)
    for gpus in range(lower_bound(counts), len(greedy)):
        if gpus > DEEPEST:
            return Cover(greedy, gpus)
        found = search.within(counts, gpus)
        if found is not None:
            return Cover(tuple(sorted(found, reverse=True)), gpus)
        if search.tired:
            return Cover(greedy, gpus)
    return Cover(greedy, len(greedy))


def best_fit(counts: Counts) -> tuple[Counts, ...]:
    """Largest kinds first, each where it leaves the least room."""
    gpus: Counter[Counts] = Counter()  # equal ones together: there are no more than 77
    for kind in reversed(range(len(KINDS))):
        for _ in range(counts[kind]):
            fitting = [gpu for gpu in +gpus if fits(with_one(gpu, kind))]
            fullest = min(fitting, key=lambda gpu: (_room(gpu), gpu), default=NONE)
            gpus[fullest] -= 1
            gpus[with_one(fullest, kind)] += 1
    return tuple(sorted((+gpus).elements(), reverse=True))


def _room(gpu: Counts) -> tuple[int, int]:
    return free_memory(gpu), free_compute(gpu)


def lower_bound(counts: Counts) -> int:
    """GPUs that are needed in any case: by memory, by compute, and by the halves that 3g and 4g
    take; by the single place of 4g; by the three of 2g."""
    one, double, two, three, four, seven = counts
    sizes = sum(n * kind.size for n, kind in zip(counts, KINDS, strict=True))
    slices = sum(n * kind.compute for n, kind in zip(counts, KINDS, strict=True))
    # At most 7 instances of any kind, and a half has room for 2 of two memory slices.
    return max(
        ceil(sizes / MEMORY_SLICES),
        ceil(slices / COMPUTE_SLICES),
        seven + ceil((three + four) / 2),
        seven + four,
        seven + ceil((double + two + 2 * (three + four)) / 4),
        seven + ceil(two / 3),
        seven + ceil((one + double + two) / 7),
    )


@dataclass
class _Search:
    """steps: left. failed: what could not be held, by how many GPUs."""

    steps: int
    failed: set[tuple[Counts, int]] = field(default_factory=set)

    @property
    def tired(self) -> bool:
        return self.steps <= 0

    def within(self, counts: Counts, gpus: int) -> tuple[Counts, ...] | None:
        """The instances of at most so many GPUs; None: not found."""
        if not any(counts):
            return ()
        if self.tired or lower_bound(counts) > gpus or (counts, gpus) in self.failed:
            return None
        self.steps -= 1
        for part in _parts(counts):
            rest = self.within(_without(counts, part), gpus - 1)
            if rest is not None:
                return (part, *rest)
        if not self.tired:
            self.failed.add((counts, gpus))
        return None


def _parts(counts: Counts) -> Iterator[Counts]:
    """What one GPU may take of them, the largest kind among it: fullest first, none within
    another."""
    largest = max(kind for kind in range(len(KINDS)) if counts[kind])
    clipped = {
        tuple(min(a, b) for a, b in zip(layout, counts, strict=True))
        for layout in maximal()
        if layout[largest]
    }
    kept = [part for part in clipped if not any(_within(part, other) for other in clipped)]
    yield from sorted(kept, key=lambda part: (_room(part), part))


def _within(part: Counts, other: Counts) -> bool:
    return part != other and all(a <= b for a, b in zip(part, other, strict=True))


def _without(counts: Counts, part: Counts) -> Counts:
    return tuple(a - b for a, b in zip(counts, part, strict=True))
