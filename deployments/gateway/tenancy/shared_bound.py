"""May a tenant have more of what all share: bytes held, bodies that arrive?

One alone may have all of it. When it is used up, who has less than its share by weight, among those
who have any, still gets more, so that nobody is kept out by what another holds; who has its share
is refused. So at most twice the bound is ever used. Nothing is taken back from anybody: limits of
time end what is held.
"""

from __future__ import annotations

from dataclasses import dataclass

Payer = tuple[str, float]
"""A tenant's name and weight."""

NOBODY: Payer = ("", 1.0)


@dataclass(slots=True)
class _Held:
    weight: float
    amount: int = 0


class SharedBound:
    """`used`: of `limit`. Whoever adds gives back. For the event loop alone."""

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._held: dict[str, _Held] = {}
        self._weight = 0.0

    def fits(self, payer: Payer, amount: int) -> bool:
        if self.used + amount <= self._limit:
            return True
        name, weight = payer
        held = self._held.get(name)
        if held is None:
            return amount <= self._limit * weight / (self._weight + weight)
        return held.amount + amount <= self._limit * held.weight / self._weight

    def add(self, payer: Payer, amount: int) -> None:
        held = self._held.get(payer[0])
        if held is None:
            held = self._held[payer[0]] = _Held(payer[1])
            self._weight += held.weight
        held.amount += amount
        self.used += amount

    def give(self, payer: Payer, amount: int) -> None:
        held = self._held[payer[0]]
        held.amount -= amount
        self.used -= amount
        if not held.amount:
            del self._held[payer[0]]
            self._weight = self._weight - held.weight if self._held else 0.0
