"""Which batches must have run before a replica may call itself warm?

Every bucket edge with 1, 2, 4 … rows up to `max_size`, as far as `max_tokens` (rows x length)
allows: those are the shapes for which lazy allocation, kernel choice and just-in-time compilation
would otherwise fall to a caller. The largest comes first, so that memory is taken once.

A pure generator of sizes; filling them with values and running them is the backend's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


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
