"""The batches that run before a replica is warm, and the shapes that a device is prepared for.

Every bucket edge with 1, 2, 4 … rows up to `max_size`, as far as `max_tokens` (rows x length)
allows: for those shapes lazy allocation, kernel choice and compilation would otherwise fall to a
caller. The largest comes first, so that memory is taken once. Values are zeros, which every model
can take. After a while nothing new is started.

Where a device is prepared for certain shapes (captured graphs, static compilation, engine
profiles), a batch of R rows padded to L runs in the prepared shape that holds it and wastes the
least: fewest rows x length, then fewest rows. What none holds is run by its caller as it comes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Generic, TypeVar

import numpy as np

from runtimes.errors import BadRows, LoadError, OutOfMemory, RunError, Unhealthy
from runtimes.rows import lengths_of
from runtimes.types import DTYPES, Batch, Limits, Ragged, RuntimeSettings, TensorSpec

Shape = tuple[int, int]  # rows, length
WARM_S = 30.0  # when a backend's settings say nothing else
STARVED_CHECKS = 30  # of health, in a row: a minute, at one in 2 s
logger = logging.getLogger("headrace.replica")


class LastRun:
    """Whether a runtime is still well. After a failed batch the smallest must run."""

    def __init__(self) -> None:
        self._failed = False
        self._starved = 0  # checks in a row for which even the smallest batch found no memory

    def failed(self) -> None:
        """A batch has failed, or begins and has not answered yet."""
        self._failed = True

    def answered(self) -> None:
        self._failed, self._starved = False, 0

    def check(self, run_smallest: Callable[[], object]) -> bool:
        """To be called by `health`. Whether the last batch has answered. Raises `Unhealthy` where
        the smallest batch fails. For lack of memory only after `STARVED_CHECKS`: other processes
        may give it back, and where this one has leaked it, a new one has it."""
        if not self._failed:
            return True
        try:
            run_smallest()
            return True
        except OutOfMemory as error:
            self._starved += 1
            if self._starved >= STARVED_CHECKS:
                raise Unhealthy(
                    f"the smallest batch found no memory in {self._starved} checks: {error}"
                ) from error
            return False
        except RunError as error:
            raise Unhealthy(f"even the smallest batch fails: {error}") from error


def sizes(max_size: int) -> tuple[int, ...]:
    """1, 2, 4 … and `max_size` itself, ascending."""
    powers = [1 << exponent for exponent in range(max_size.bit_length())]
    return tuple(sorted({*powers, max_size}))


def grid(edges: Sequence[int], max_size: int, max_tokens: int) -> Iterator[tuple[int, int]]:
    """(rows, length) pairs, most tokens first. One row is always tried, however long it is.

    Where `max_tokens` falls between two sizes, the largest that fits is tried as well.
    """
    pairs: set[tuple[int, int]] = set()
    for edge in edges:
        most = max(1, min(max_size, max_tokens // max(1, edge)))
        pairs.update((rows, edge) for rows in sizes(most))
    yield from sorted(pairs, key=lambda pair: (-pair[0] * pair[1], pair))


def shapes(settings: RuntimeSettings, limits: Limits) -> tuple[tuple[int, int], ...]:
    """(rows, length) of each batch, within the backend's own bounds; length 1 for rows without."""
    max_size = min(settings.max_size, limits.max_rows or settings.max_size)
    if limits.row_shapes is not None:
        return tuple(grid(limits.row_shapes.lengths, max_size, settings.max_tokens))
    if limits.length_input is None:
        return tuple(grid((1,), max_size, max_size))
    longest = limits.max_length or max(settings.edges, default=1)
    edges = sorted({min(edge, longest) for edge in settings.edges})
    return tuple(grid(edges, max_size, settings.max_tokens))


def warm(
    settings: RuntimeSettings, limits: Limits, run: Callable[[Batch], object], warm_s: float
) -> None:
    """Runs the batches one by one, with progress, until `warm_s` seconds have passed. Raises
    `LoadError` where one fails: callers would meet the same. Only memory may be too small for
    several rows: then callers' batches are halved."""
    _each_until(settings, limits, run, shapes(settings, limits), warm_s)


def briefly(
    settings: RuntimeSettings, limits: Limits, run: Callable[[Batch], object], seconds: float
) -> None:
    """One row of each length, the shortest first, until so many seconds have passed; at least one.
    For a runtime that is wanted at once: further shapes are made when they come. Raises `LoadError`
    where a batch fails."""
    alone = sorted(shape for shape in shapes(settings, limits) if shape[0] == 1)
    _each_until(settings, limits, run, alone, seconds)


def _each_until(
    settings: RuntimeSettings, limits: Limits, run: Callable[[Batch], object],
    wanted: Sequence[Shape], seconds: float,
) -> None:  # fmt: skip
    begin, fits = perf_counter(), True
    for done, (rows, length) in enumerate(wanted):
        settings.progress("warming", done / len(wanted))
        if not attempt(run, batch(limits, rows, length), length) and fits:
            fits = False  # smaller ones may not fit either: one line is enough
            logger.warning(
                "the device has no memory for %d rows of %d: such batches will be halved; lower "
                "batch.max_tokens or batch.max_size",
                rows, length, extra={"model": settings.name},
            )  # fmt: skip
        if perf_counter() - begin > seconds:
            break
    settings.progress("warming", 1.0)


def batch(limits: Limits, rows: int, length: int) -> Batch:
    """The backend's own sample, else zeros for every input that must be given; a dynamic axis that
    is not the length has size 1.

    An axis counts as the length when it is dynamic and at the length input's place in its rows.
    """
    if limits.sample is not None:
        return _of_sample(limits, limits.sample(length), rows)
    limits, inputs = of_length(limits, length), {}
    length_axis = limits.length_axis if limits.length_input else 0
    for spec in limits.inputs:
        if spec.name in limits.optional_inputs:
            continue
        whole = sized(spec, length_axis, rows, length)
        shape = tuple(1 if size == -1 else size for size in whole[1:])
        size, dtype = rows * math.prod(shape), DTYPES[spec.datatype]
        if spec.datatype == "BYTES":
            is_length = spec.name == limits.length_input and limits.length_axis == 0
            data = np.full(size, b"one " * length if is_length else b"", dtype)
        else:
            data = np.zeros(size, dtype)
        inputs[spec.name] = Ragged(spec.datatype, data, (shape,) * rows)
    return Batch(rows, np.full(rows, length, np.int64), inputs)


def _of_sample(limits: Limits, row: Mapping[str, Ragged], rows: int) -> Batch:
    """So many copies of the row. Raises `LoadError` where it is longer than rows may be."""
    inputs = {
        name: Ragged(each.datatype, np.tile(each.data, rows), each.shapes * rows)
        for name, each in row.items()
    }
    length = 1
    if limits.length_input is not None:
        length = lengths_of(row[limits.length_input], limits)[0]
    if limits.max_length is not None and length > limits.max_length:
        raise LoadError(f"an example is {length} long; lengths.max is {limits.max_length}")
    return Batch(rows, np.full(rows, length, np.int64), inputs)


def of_length(limits: Limits, length: int) -> Limits:
    """The limits, where rows have shapes of their own with the shape of this length alone."""
    known = limits.row_shapes
    if known is None:
        return limits
    shape = dict(known.shapes)[length]
    inputs = tuple(
        replace(spec, shape=(-1, *shape)) if spec.name == known.input else spec
        for spec in limits.inputs
    )
    return replace(limits, inputs=inputs)


def attempt(run: Callable[[Batch], object], tried: Batch, length: int) -> bool:
    """False where the device has too little memory for several rows. Raises `LoadError` where the
    batch fails otherwise."""
    try:
        run(tried)
        return True
    except (BadRows, RunError) as error:
        if isinstance(error, OutOfMemory) and tried.rows > 1:
            return False
        raise LoadError(
            f"the model does not run {tried.rows} rows of {length} (lengths.max and batch bound "
            f"what it is tried with): {error}"
        ) from error


def fitting(rows: int, length: int, prepared: Sequence[Shape]) -> Shape | None:
    """The least of `prepared` that holds the batch; None when it fits into none."""
    holding = [shape for shape in prepared if shape[0] >= rows and shape[1] >= length]
    return min(holding, key=lambda shape: (shape[0] * shape[1], shape[0]), default=None)


def fixed_edges(settings: RuntimeSettings, limits: Limits) -> tuple[int, ...]:
    """The lengths that a device prepared for `settings` pads to, ascending, the longest row's among
    them; none for rows without length."""
    if limits.length_input is None:
        return ()
    warmed = {length for _, length in shapes(settings, limits)}
    return tuple(sorted(warmed | ({limits.max_length} if limits.max_length else set())))


def edge_of(length: int, edges: Sequence[int]) -> int:
    """The smallest edge that holds `length`; itself beyond them all."""
    return next((edge for edge in sorted(edges) if edge >= length), length)


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Least, typical and most of a size."""

    least: int
    typical: int
    most: int

    def holds(self, size: int) -> bool:
        return self.least <= size <= self.most


@dataclass(frozen=True, slots=True)
class OptimizationProfile:
    """The rows and lengths that TensorRT builds an engine for, and those that it tunes it for."""

    rows: SizeRange
    lengths: SizeRange

    def holds(self, rows: int, length: int) -> bool:
        return self.rows.holds(rows) and self.lengths.holds(length)

    def shapes(self, spec: TensorSpec, length_axis: int | None) -> tuple[tuple[int, ...], ...]:
        """An input's least, typical and most shape; see `sized`."""
        rows, lengths = self.rows, self.lengths
        return (
            sized(spec, length_axis, rows.least, lengths.least),
            sized(spec, length_axis, rows.typical, lengths.typical),
            sized(spec, length_axis, rows.most, lengths.most),
        )


def sized(spec: TensorSpec, length_axis: int | None, rows: int, length: int) -> tuple[int, ...]:
    """An input's shape in a batch; -1 stays for a dynamic axis that is neither the batch nor the
    length."""
    return tuple(
        rows if axis == 0 else length if axis == length_axis and size == -1 else size
        for axis, size in enumerate(spec.shape)
    )


Replay = TypeVar("Replay")


class CapturedShapes(Generic[Replay]):
    """`wanted`: shapes to capture; `capture(shape)` captures one. Used by one thread at a time."""

    def __init__(self, wanted: Sequence[Shape], capture: Callable[[Shape], Replay]) -> None:
        self._wanted = frozenset(wanted)
        self._capture = capture
        self._kept: dict[Shape, Replay] = {}

    def shape_for(self, rows: int, length: int, *, same_length: bool = False) -> Shape:
        """The shape to pad a batch to: the smallest captured one that holds it, else its own.
        `same_length`: its rows are padded already, and only more rows can be added."""
        kept = [shape for shape in self._kept if not same_length or shape[1] == length]
        return fitting(rows, length, kept) or (rows, length)

    def replay_of(self, shape: Shape) -> Replay | None:
        return self._kept.get(shape)

    def capture(self, shape: Shape) -> None:
        """Nothing for a shape that is not wanted or has been captured."""
        if shape in self._wanted and shape not in self._kept:
            self._kept[shape] = self._capture(shape)

    def clear(self) -> None:
        self._kept.clear()
        self._wanted = frozenset()

    @property
    def captured(self) -> tuple[Shape, ...]:
        return tuple(sorted(self._kept))
