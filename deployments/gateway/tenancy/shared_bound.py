"""May a tenant have more of what all tenants share: bytes held, bodies that arrive, places to wait?

One tenant alone may have all of it. Once the resource is used up, a tenant with less than its share
(by weight, among the tenants that hold any) still gets more, so that nobody is kept out by what
another holds; a tenant that has its share is refused. The share is one of the bound, or of what the
others leave of twice the bound where that is less: shares of the bound itself add up without end
when tenants come one after another and each fills its own. So at most twice the bound is ever used.
Nothing is taken back from anybody: time limits end what is held.
"""

from __future__ import annotations

from dataclasses import dataclass

Payer = tuple[str, float]
"""A tenant's name and weight."""

NOBODY: Payer = ("", 1.0)
MOST_USED = 2  # times the bound, of all tenants together


@dataclass(slots=True)
class _Held:
    """What one tenant holds."""

    weight: float
    amount: int = 0


class SharedBound:
    """One resource. Whoever adds an amount gives it back. For one thread at a time."""

    def __init__(self, limit: int) -> None:
        self.used = 0  # by all tenants
        self._limit = limit
        self._held: dict[str, _Held] = {}  # by tenant; only those that hold any
        self._weight = 0.0  # of those tenants together

    def fits(self, payer: Payer, amount: int) -> bool:
        """Whether the tenant may have `amount` more."""
        if self.used + amount <= self._limit:
            return True
        name, weight = payer
        held = self._held.get(name)
        own, share = 0, weight / (self._weight + weight)
        if held is not None:
            own, share = held.amount, held.weight / self._weight
        left = MOST_USED * self._limit - (self.used - own)
        return own + amount <= share * min(self._limit, left)

    def add(self, payer: Payer, amount: int) -> None:
        """The tenant holds `amount` more; not checked against the bound."""
        held = self._held.get(payer[0])
        if held is None:
            held = self._held[payer[0]] = _Held(payer[1])
            self._weight += held.weight
        held.amount += amount
        self.used += amount

    def give(self, payer: Payer, amount: int) -> None:
        """The tenant gives `amount` back."""
        held = self._held[payer[0]]
        held.amount -= amount
        self.used -= amount
        if not held.amount:
            del self._held[payer[0]]
            self._weight = self._weight - held.weight if self._held else 0.0
