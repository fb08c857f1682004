"""Each tenant's share of the device in every window of time, beside its fair one.

What a tenant should have had in a window is the lesser of what it asked for and its water-filled
share of what was served: by weight among those that still want more, most urgent priority first.
Jain's index over served / should-have is 1 when all got the same part of it. Only tenants whose
share is at least `min_batches` average batches count: smaller ones are served in whole batches.
Everything is in cost, the device seconds that a request takes as one of a full batch of its length,
so that the same request weighs the same whoever schedules it. Source: algorithms.md §3.6; Jain,
Chiu, Hawe (1984).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WINDOW_S = 10.0
MIN_BATCHES = 20.0


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What entitles a tenant: its weight among those of its priority, 0 the most urgent."""

    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Got:
    """One tenant in one window, in cost. `wanted`: what came, and what waited when it began."""

    wanted: float
    share: float
    served: float

    @property
    def part(self) -> float:
        """Of what it should have had; may pass 1 where others left something."""
        return self.served / min(self.wanted, self.share)


@dataclass(frozen=True, slots=True)
class Window:
    """`tenants`: those that count. `jain`: None when none does."""

    from_s: float
    tenants: Mapping[str, Got]

    @property
    def jain(self) -> float | None:
        return jain([got.part for got in self.tenants.values()])


@dataclass(slots=True)
class _TenantCost:
    """Cost by tenant, in the current window but for `waits`."""

    waited: float = 0.0  # when the window began
    came: float = 0.0
    served: float = 0.0
    gone: float = 0.0


@dataclass(slots=True)
class Fairness:
    """Accounts of a run; times ascend. Windows count from `begin_s` on, whole ones only."""

    claims: Mapping[str, Entitlement]
    begin_s: float
    end_s: float
    window_s: float = WINDOW_S
    min_batches: float = MIN_BATCHES
    windows: list[Window] = field(default_factory=list)
    _accounts: dict[str, _TenantCost] = field(default_factory=dict)
    _batches: int = 0
    _from_s: float = 0.0

    def __post_init__(self) -> None:
        self.window_s = min(self.window_s, self.end_s - self.begin_s)
        self._accounts = {name: _TenantCost() for name in self.claims}
        self._from_s = self.begin_s - self.window_s  # the first one is not counted

    def came(self, tenant: str, at_s: float, cost: float) -> None:
        self._advance(at_s)
        self._accounts[tenant].came += cost

    def served(self, tenant: str, at_s: float, cost: float) -> None:
        self._advance(at_s)
        self._accounts[tenant].served += cost

    def gone(self, tenant: str, at_s: float, cost: float) -> None:
        """Refused, expired, or its caller left."""
        self._advance(at_s)
        self._accounts[tenant].gone += cost

    def batch(self, at_s: float) -> None:
        self._advance(at_s)
        self._batches += 1

    def finish(self, at_s: float) -> None:
        """Nothing more will come."""
        self._advance(max(at_s, self.end_s))

    @property
    def min_jain(self) -> float | None:
        found = [each for window in self.windows if (each := window.jain) is not None]
        return min(found, default=None)

    def _advance(self, at_s: float) -> None:
        while at_s >= self._from_s + self.window_s:
            until = self._from_s + self.window_s
            if self._from_s >= self.begin_s and until <= self.end_s + 1e-9:
                self.windows.append(self._close())
            for account in self._accounts.values():
                account.waited += account.came - account.served - account.gone
                account.came = account.served = account.gone = 0.0
            self._batches = 0
            self._from_s = until

    def _close(self) -> Window:
        served = {name: account.served for name, account in self._accounts.items()}
        wanted = {n: max(0.0, a.waited + a.came) for n, a in self._accounts.items()}
        capacity = sum(served.values())
        shares = shares_of(capacity, wanted, self.claims)
        least = self.min_batches * capacity / self._batches if self._batches else 0.0
        counted = {
            name: Got(wanted[name], share, served[name])
            for name, share in shares.items()
            if share >= least and min(wanted[name], share) > 0.0
        }
        return Window(self._from_s, counted)


def jain(values: Iterable[float]) -> float | None:
    """(sum x)^2 / (n sum x^2), 1/n to 1; None of nothing; 1 when all are 0."""
    found = list(values)
    squares = sum(x * x for x in found)
    if not found:
        return None
    return sum(found) ** 2 / (len(found) * squares) if squares else 1.0


def shares_of(
    capacity: float, wanted: Mapping[str, float], claims: Mapping[str, Entitlement]
) -> dict[str, float]:
    """What each tenant is entitled to: where it wants less than its part, the others share the
    rest; where all have enough, a share is what it could have had besides."""
    shares: dict[str, float] = {}
    for priority in sorted({claim.priority for claim in claims.values()}):
        members = [name for name, claim in claims.items() if claim.priority == priority]
        shares |= _filled(capacity, {name: wanted[name] for name in members}, claims)
        capacity -= sum(min(shares[name], wanted[name]) for name in members)
    return shares


def _filled(
    capacity: float, wanted: Mapping[str, float], claims: Mapping[str, Entitlement]
) -> dict[str, float]:
    """One priority's: `level` x weight each, where the level is what uses the capacity up."""
    level, left = 0.0, max(0.0, capacity)
    weights = sum(claims[name].weight for name in wanted)
    for name in sorted(wanted, key=lambda each: wanted[each] / claims[each].weight):
        weight = claims[name].weight
        level = left / weights
        if wanted[name] > level * weight:
            break
        left -= wanted[name]
        weights -= weight
    return {name: level * claims[name].weight for name in wanted}
