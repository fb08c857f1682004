"""The batches that run before a replica calls itself warm.

Every bucket edge with 1, 2, 4 … rows up to `max_size`, as far as `max_tokens` (rows x length)
allows: those are the shapes for which lazy allocation, kernel choice and just-in-time compilation
would otherwise fall to a caller. The largest comes first, so that memory is taken once.

Values are zeros, which every model can take. After a while nothing new is started: the largest
batches have run by then, and what is left is not worth waiting for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from runtimes.datatypes import DTYPES
from runtimes.errors import LoadError, RunError
from runtimes.types import Batch, Limits, Ragged, RuntimeSettings, TensorSpec

WARM_S = 30.0  # when a backend's settings say nothing else


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
    `LoadError` where one fails: callers would meet the same."""
    begin, wanted = perf_counter(), shapes(settings, limits)
    for done, (rows, length) in enumerate(wanted):
        settings.progress("warming", done / len(wanted))
        attempt(run, batch(limits, rows, length), length)
        if perf_counter() - begin > warm_s:
            break
    settings.progress("warming", 1.0)


def briefly(
    settings: RuntimeSettings, limits: Limits, run: Callable[[Batch], object], seconds: float
) -> None:
    """One row of each length, the shortest first, until so many seconds have passed; at least one.
    For a runtime that is wanted at once: further shapes are made when they come. Raises `LoadError`
    where a batch fails."""
    begin = perf_counter()
    settings.progress("warming", 0.0)
    for rows, length in sorted(shapes(settings, limits), key=lambda shape: shape[1]):
        if rows == 1:
            attempt(run, batch(limits, rows, length), length)
            if perf_counter() - begin > seconds:
                break
    settings.progress("warming", 1.0)


def batch(limits: Limits, rows: int, length: int) -> Batch:
    """Zeros for every input that must be given; a dynamic axis that is not the length has size 1.

    An axis counts as the length when it is dynamic and at the length input's place in its rows.
    """
    limits = of_length(limits, length)
    inputs = {
        spec.name: _zeros(spec, rows, length, limits.length_axis if limits.length_input else 0)
        for spec in limits.inputs
        if spec.name not in limits.optional_inputs
    }
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


def attempt(run: Callable[[Batch], object], tried: Batch, length: int) -> None:
    """Raises `LoadError` where the batch fails."""
    try:
        run(tried)
    except RunError as error:
        raise LoadError(
            f"the model does not run {tried.rows} rows of {length} (lengths.max and batch bound "
            f"what it is tried with): {error}"
        ) from error


def _zeros(spec: TensorSpec, rows: int, length: int, length_axis: int) -> Ragged:
    shape = tuple(
        size if size >= 0 else (length if axis == length_axis else 1)
        for axis, size in enumerate(spec.shape[1:], start=1)
    )
    size, dtype = rows * math.prod(shape), DTYPES[spec.datatype]
    data = np.full(size, b"", dtype) if spec.datatype == "BYTES" else np.zeros(size, dtype)
    return Ragged(spec.datatype, data, (shape,) * rows)
