"""Which requests make up a given share of all requests?

Of each block of `BLOCK` requests as many as the share says, at places that are drawn anew for each
block. So the share is exact in the long run, and no pattern in the order of the callers makes one
caller meet the same version always.
"""

from __future__ import annotations

from math import floor
from random import Random

BLOCK = 20
_ROUNDING = 1e-9  # by how much a product of floats may be too small


class EvenShare:
    """One share of one model's requests."""

    def __init__(self, share: float, rng: Random) -> None:
        self._share = share  # 0..1
        self._rng = rng
        self._seen = 0  # requests
        self._places: frozenset[int] = frozenset()  # in the present block, that belong to it

    def takes(self) -> bool:
        """Whether the next request belongs to the share."""
        place = self._seen % BLOCK
        if not place:
            due = self._due_of(self._seen + BLOCK) - self._due_of(self._seen)
            self._places = frozenset(self._rng.sample(range(BLOCK), due))
        self._seen += 1
        return place in self._places

    def _due_of(self, requests: int) -> int:
        """How many of the first `requests` belong to the share."""
        return floor(requests * self._share + _ROUNDING)
