"""How much longer does this batch take than the device's speed says?

Real devices stall now and then, for garbage collection, a thermal limit or a neighbour on the same
host, whatever runs on them. Here each batch (of an engine: each step) stalls with the same small
chance, independently of those before, and for the same time, so that stalls of a busy device come
as a Poisson process does. One seed gives every process another sequence, and the same process the
same one: replicas of a model do not stall together.

It decides and does not wait. Device stalls only: the process around it goes on answering.
"""

from __future__ import annotations

import random


class Hiccups:
    """`every`: one batch in so many stalls, on average; 0: none does. `stall_ms`: for how long.
    `process`: whose sequence this is, such as its number at the operating system."""

    def __init__(self, every: int, stall_ms: float, seed: int, process: int) -> None:
        self._chance = 1.0 / every if every else 0.0
        self._stall_s = stall_ms / 1e3
        self._rng = random.Random(f"{seed} {process}")

    def next_s(self) -> float:
        """Seconds that the next batch takes longer; 0 of nearly all."""
        return self._stall_s if self._rng.random() < self._chance else 0.0
