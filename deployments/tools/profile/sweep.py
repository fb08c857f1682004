"""Which batches are timed on the live backend, and in which order?

A grid of rows x lengths, to which the cost model is fitted; and ragged batches between the grid's
points, as traffic would make them, which are held out of the fit to measure its error. The extremes
of the grid come first, so that they are known if time is short. Each later round has a new random
order, so that a drift of the machine affects all shapes alike.

One thread runs the batches one after another, as in a replica. The first run of a shape that was
not warmed up compiles and allocates; it does not count. Short batches run several times at each
visit, because disturbances last longer than they do. A batch that would take longer than the time
left is skipped, as is one that the device has no memory for. Measurements before an interruption
are kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

from deployments.tools.profile.backend_loop import plain_batch
from runtimes.errors import BadRows, OutOfMemory, RunError
from runtimes.profiling import at_most, in_order
from runtimes.types import Batch, Limits, Runtime, RuntimeSettings, StageTimes

HELD = 24
_TRIES = 8
_MAX_RUNS = 5  # at a visit
_ENOUGH_S = 0.02


@dataclass(frozen=True, slots=True)
class TimedBatch:
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


def shape_grid(settings: RuntimeSettings, limits: Limits) -> tuple[TimedBatch, ...]:
    """Extremes first; see `runtimes.profiling`."""
    return tuple(TimedBatch((length,) * rows) for rows, length in in_order(settings, limits))


def held_out(
    settings: RuntimeSettings, limits: Limits, lengths: Sequence[int], rng: Random
) -> tuple[TimedBatch, ...]:
    """Ragged batches within `max_size` and `max_tokens`, each of one interval of lengths; up to
    `HELD`, none twice. Of rows without lengths: batches of sizes that the grid does not have."""
    most = min(settings.max_size, limits.max_rows or settings.max_size)
    if limits.length_input is None and limits.row_shapes is None:
        return tuple(TimedBatch((1,) * rows, True) for rows in range(3, most) if rows & (rows - 1))[
            :HELD
        ]
    longest = limits.max_length or max(settings.edges, default=1)
    pools = _by_interval([min(length, longest) for length in lengths], settings.edges)
    found: dict[tuple[int, ...], TimedBatch] = {}
    for place in range(_TRIES * HELD):
        pool = pools[place % len(pools)]
        rows = min(most, round(2.0 ** rng.uniform(0.0, most.bit_length())))
        rows = max(1, min(rows, settings.max_tokens // max(pool)))
        drawn = tuple(rng.choice(pool) for _ in range(rows))
        found.setdefault(tuple(sorted(drawn)), TimedBatch(drawn, True))
        if len(found) == HELD:
            break
    return tuple(found.values())


def _by_interval(lengths: Sequence[int], edges: Sequence[int]) -> list[list[int]]:
    pools: dict[int, list[int]] = {}
    for length in lengths:
        pools.setdefault(bisect_left(edges, length), []).append(length)
    return [pools[place] for place in sorted(pools)]


def rounds(first: Sequence[TimedBatch], rng: Random) -> Iterator[tuple[TimedBatch, ...]]:
    """The all_timed as they stand, then shuffled anew each time, without end."""
    yield tuple(first)
    while True:
        shuffled = list(first)
        rng.shuffle(shuffled)
        yield tuple(shuffled)


Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run: when it began (seconds of `clock`), what the call took, and the backend's stages."""

    timed: TimedBatch
    began_s: float
    took_s: float
    stages: StageTimes


class Sweep:
    """Keeps what it has measured in `samples`, whatever ends it. `watch(what)`: is told before each
    batch; `warmed`: (rows, length) that have run before. Raises what the backend raises for a batch
    that it cannot run."""

    def __init__(
        self,
        runtime: Runtime,
        watch: Callable[[str], None],
        clock: Clock = perf_counter,
        warmed: Collection[tuple[int, int]] = (),
    ) -> None:
        self.samples: list[TimedRun] = []
        self.limits: Limits = runtime.limits()
        self._runtime = runtime
        self._watch = watch
        self._clock = clock
        self._warmed = warmed
        self._batches: dict[TimedBatch, Batch] = {}
        self._known: dict[tuple[int, int], float] = {}
        self._no_memory: set[TimedBatch] = set()

    def run(self, rounds: Iterable[Sequence[TimedBatch]], seconds: float) -> None:
        """Until the time is over or nothing that is left fits into it."""
        end = self._clock() + seconds
        for all_timed in rounds:
            left = [timed for timed in all_timed if timed not in self._no_memory]
            ran = [timed for timed in left if self._fits(timed, end) and self._try(timed)]
            if not ran:
                return

    def _fits(self, timed: TimedBatch, end: float) -> bool:
        left = end - self._clock()
        known = ((*shape, took_s) for shape, took_s in self._known.items())
        runs = 1 if timed in self._batches or self._is_warm(timed) else 2
        return left > runs * at_most(timed.rows, max(timed.lengths), known)

    def _try(self, timed: TimedBatch) -> bool:
        """Whether it ran: several rows may be more than the device has memory for."""
        try:
            self._visit(timed)
        except OutOfMemory:
            if timed.rows == 1:
                raise
            self._no_memory.add(timed)
        return timed not in self._no_memory

    def _visit(self, timed: TimedBatch) -> None:
        self._watch(f"{timed.rows} rows of up to {max(timed.lengths)}")
        batch = self._batches.get(timed)
        if batch is None:
            batch = self._batches[timed] = plain_batch(self.limits, timed.lengths)
            if not self._is_warm(timed):
                self._timed(timed, batch)
        spent_s = 0.0
        for _ in range(_MAX_RUNS):
            self.samples.append(self._timed(timed, batch))
            spent_s += self.samples[-1].took_s
            if spent_s >= _ENOUGH_S:
                break

    def _is_warm(self, timed: TimedBatch) -> bool:
        return len(set(timed.lengths)) == 1 and (timed.rows, timed.lengths[0]) in self._warmed

    def _timed(self, timed: TimedBatch, batch: Batch) -> TimedRun:
        began = self._clock()
        try:
            result = self._runtime.run(batch)
        except BadRows as error:
            raise RunError(f"it refuses zeros as input: {error}") from error
        took_s = self._clock() - began
        shape = timed.rows, max(timed.lengths)
        self._known[shape] = min(took_s, self._known.get(shape, took_s))
        return TimedRun(timed, began, took_s, result.times)
