"""Which batches are timed, in which order?

A grid of rows x lengths to fit the cost model to, and ragged batches as traffic would make them,
between the grid's points, which the fit never sees: what it is wrong by there is its error. The
grid's extremes come first, so that they are known when time is short; after that each round goes
through all in another order, so that a machine that drifts does so for every shape alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from runtimes.profiling import in_order
from runtimes.types import Limits, RuntimeSettings

HELD = 24
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """A batch of rows of these lengths, tokens. `held`: the fit does not see it."""

    lengths: tuple[int, ...]
    held: bool = False

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def width(self, pads: bool) -> int:
        """As the cost model counts it: the longest row, or the mean where rows are packed."""
        return max(self.lengths) if pads else -(-self.tokens // self.rows)


def grid(settings: RuntimeSettings, limits: Limits) -> tuple[Trial, ...]:
    """Extremes first; see `runtimes.profiling`."""
    return tuple(Trial((length,) * rows) for rows, length in in_order(settings, limits))


def held_out(
    settings: RuntimeSettings, limits: Limits, lengths: Sequence[int], rng: Random
) -> tuple[Trial, ...]:
    """Ragged batches within `max_size` and `max_tokens`, each of one interval of lengths; up to
    `HELD`, none twice. Of rows without lengths: batches of sizes that the grid does not have."""
    most = min(settings.max_size, limits.max_rows or settings.max_size)
    if limits.length_input is None and limits.row_shapes is None:
        return tuple(Trial((1,) * rows, True) for rows in range(3, most) if rows & (rows - 1))[
            :HELD
        ]
    longest = limits.max_length or max(settings.edges, default=1)
    pools = _by_interval([min(length, longest) for length in lengths], settings.edges)
    found: dict[tuple[int, ...], Trial] = {}
    for place in range(_TRIES * HELD):
        pool = pools[place % len(pools)]
        rows = min(most, round(2.0 ** rng.uniform(0.0, most.bit_length())))
        rows = max(1, min(rows, settings.max_tokens // max(pool)))
        drawn = tuple(rng.choice(pool) for _ in range(rows))
        found.setdefault(tuple(sorted(drawn)), Trial(drawn, True))
        if len(found) == HELD:
            break
    return tuple(found.values())


def _by_interval(lengths: Sequence[int], edges: Sequence[int]) -> list[list[int]]:
    pools: dict[int, list[int]] = {}
    for length in lengths:
        pools.setdefault(bisect_left(edges, length), []).append(length)
    return [pools[place] for place in sorted(pools)]


def rounds(first: Sequence[Trial], rng: Random) -> Iterator[tuple[Trial, ...]]:
    """The trials as they stand, then shuffled anew each time, without end."""
    yield tuple(first)
    while True:
        shuffled = list(first)
        rng.shuffle(shuffled)
        yield tuple(shuffled)
