"""Which MIG slices fit on one GPU together: exact, by the placements that the driver allows.

A GPU of this family has 8 memory slices and 7 compute slices. An instance covers a run of memory
slices that may begin at certain places only, so two sums are not enough: 3g beside 3g leaves one
compute slice that nothing can use, and 3g beside two 2g fits only with the 3g at 4. Every kind of
instance may stand wherever a larger kind may, so the smallest kind that holds a replica is never
worse than another one.

Source: `nvidia-smi mig -lgipp`, the same on A100 and H100; NVIDIA's MIG user guide.
Not modelled: GPUs of four compute slices (A30), media extensions (`+me`), the driver before R510,
which refused 4g beside 3g.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

MEMORY_SLICES = 8
COMPUTE_SLICES = 7

Counts = tuple[int, ...]
"""Instances of each kind, in the order of `KINDS`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """compute: its compute slices. size: its memory slices, from one of `starts` on."""

    name: str
    compute: int
    size: int
    starts: tuple[int, ...]

    @property
    def cost(self) -> float:
        """Share of a GPU that it takes, 0 to 1: of what it takes more of."""
        return max(self.compute / COMPUTE_SLICES, self.size / MEMORY_SLICES)


KINDS = (
    Kind("1g", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    Kind("1g double", 1, 2, (0, 2, 4, 6)),
    Kind("2g", 2, 2, (0, 2, 4)),
    Kind("3g", 3, 4, (4, 0)),  # the upper half first: the lower one holds more beside it
    Kind("4g", 4, 4, (0,)),
    Kind("7g", 7, 8, (0,)),
)
NONE: Counts = (0,) * len(KINDS)


@dataclass(frozen=True, slots=True)
class Placement:
    """An instance of the kind at this position of `KINDS`, from memory slice `start` on."""

    kind: int
    start: int

    @property
    def covers(self) -> range:
        return range(self.start, self.start + KINDS[self.kind].size)


def fits(counts: Counts) -> bool:
    """Whether one GPU can hold these instances at once."""
    return placed(counts) is not None


@cache
def placed(counts: Counts) -> tuple[Placement, ...] | None:
    """Where each of them stands, largest first; None where one GPU cannot hold them."""
    if any(n < 0 for n in counts) or _compute(counts) > COMPUTE_SLICES:
        return None
    wanted = [kind for kind in reversed(range(len(KINDS))) for _ in range(counts[kind])]
    if sum(KINDS[kind].size for kind in wanted) > MEMORY_SLICES:
        return None
    return _place(wanted, frozenset(range(MEMORY_SLICES)))


def _place(wanted: Sequence[int], free: frozenset[int]) -> tuple[Placement, ...] | None:
    if not wanted:
        return ()
    for start in KINDS[wanted[0]].starts:
        first = Placement(wanted[0], start)
        if free.issuperset(first.covers):
            rest = _place(wanted[1:], free.difference(first.covers))
            if rest is not None:
                return (first, *rest)
    return None


@cache
def feasible() -> tuple[Counts, ...]:
    """All that one GPU can hold, without the empty one, in ascending order."""
    most = [range(len(kind.starts) + 1) for kind in KINDS]
    return tuple(counts for counts in product(*most) if any(counts) and fits(counts))


@cache
def maximal() -> tuple[Counts, ...]:
    """Those that leave no room for a further instance of any kind."""
    return tuple(counts for counts in feasible() if not any(_grown(counts)))


def _grown(counts: Counts) -> Iterator[bool]:
    return (fits(with_one(counts, kind)) for kind in range(len(KINDS)))


def with_one(counts: Counts, kind: int, more: int = 1) -> Counts:
    return (*counts[:kind], counts[kind] + more, *counts[kind + 1 :])


def plus(counts: Counts, others: Counts) -> Counts:
    return tuple(a + b for a, b in zip(counts, others, strict=True))


def left_over(counts: Counts) -> tuple[Counts, ...]:
    """What still fits beside them: each largest choice, those of the largest kinds first."""
    fitting = [each for each in feasible() if fits(plus(counts, each))]
    largest = [each for each in fitting if not any(_within(each, other) for other in fitting)]
    return tuple(sorted(largest, key=lambda each: each[::-1], reverse=True))


def _within(counts: Counts, other: Counts) -> bool:
    return counts != other and all(a <= b for a, b in zip(counts, other, strict=True))


def _compute(counts: Counts) -> int:
    return sum(n * kind.compute for n, kind in zip(counts, KINDS, strict=True))


def free_compute(counts: Counts) -> int:
    return COMPUTE_SLICES - _compute(counts)


def free_memory(counts: Counts) -> int:
    """Memory slices that no instance covers."""
    return MEMORY_SLICES - sum(n * kind.size for n, kind in zip(counts, KINDS, strict=True))
