"""Which requests make up a share of them?

Of each block of requests so many as the share says, at places drawn anew for each block: exact in
the long run, and nothing that repeats in the order of the callers always meets the same version.
"""

from __future__ import annotations

from math import floor
from random import Random

BLOCK = 20
_EXACT = 1e-9  # what products of floats are off by


class EvenShare:
    """`share`: 0..1."""

    def __init__(self, share: float, rng: Random) -> None:
        self._share = share
        self._rng = rng
        self._seen = 0
        self._places: frozenset[int] = frozenset()

    def takes(self) -> bool:
        """Whether the next request belongs to it."""
        place = self._seen % BLOCK
        if not place:
            due = self._until(self._seen + BLOCK) - self._until(self._seen)
            self._places = frozenset(self._rng.sample(range(BLOCK), due))
        self._seen += 1
        return place in self._places

    def _until(self, requests: int) -> int:
        """How many of the first so many belong to it."""
        return floor(requests * self._share + _EXACT)
