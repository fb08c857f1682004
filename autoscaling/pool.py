"""How many pool replicas are worth their idle time?

A pool replica serves the work that models' own replicas cannot take while more of them start. This
excess is recorded over all models: the k-th pool replica would have served the excess above k - 1
replicas, at most one second of work a second. A replica is worth having while the work that it
would have served, over about the last day, is worth more than its idle time. The price of a missed
second of work follows from the SLO: 1 / (1 - percentile) replica seconds. A replica is removed when
its worth is below half of its cost. Without `auto` the number is the maximum. Also reports what the
pool has cost and saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Any

from autoscaling.residency import ResidentWant, choose_residents
from autoscaling.settings import PoolTerms
from autoscaling.types import PoolDecision, PoolReading

MEMORY_S = 86_400.0
_MIN_SEEN_S = 3_600.0
_GOES_AT = 0.5
_MAX_STEP_S = 10.0


@dataclass(frozen=True, slots=True)
class Excess:
    """The excess demand of one model that the pool may run."""

    model: str
    work: float  # a second, beyond what its own hot replicas can do
    price: float  # of a missed second of work, in seconds of an idle pool replica
    want: ResidentWant  # for the choice of residents


@dataclass
class Accounts:
    """The pool's accounts."""

    # By k: what the k-th replica would have been worth, in idle replica seconds, decaying over a
    # day; and the time over which it was counted, decaying alike.
    worth: list[float] = field(default_factory=list)
    seen_s: float = 0.0
    # Totals so far.
    cost_s: float = 0.0  # replica seconds
    saved_s: float = 0.0  # work that the pool could serve and a model's own replicas could not


class Pool:
    """The shared pool of one cluster."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self.target: int | None = None
        self._at: float | None = None

    def decide(
        self, readings: Mapping[str, PoolReading], excesses: Iterable[Excess], terms: PoolTerms,
        now: float, frozen: bool,
    ) -> PoolDecision:  # fmt: skip
        excesses = list(excesses)
        self._account(readings, excesses, terms, now)
        if not frozen or self.target is None:
            self.target = self._count(terms)
        wants = {each.model: each.want for each in excesses}
        if frozen:
            residents = {name: _held(reading) for name, reading in readings.items()}
        else:
            residents = choose_residents(readings, wants, terms, now)
        accounts = self.accounts
        return PoolDecision(
            replicas=self.target,
            residents=residents,
            text=self._text(terms),
            cost_hours=accounts.cost_s / 3600.0,
            saved_s=accounts.saved_s,
        )

    def _account(
        self, readings: Mapping[str, PoolReading], excesses: list[Excess], terms: PoolTerms,
        now: float,
    ) -> None:  # fmt: skip
        """Add the time since the last decision, at most `_MAX_STEP_S`: a longer gap is not
        guessed."""
        step_s = 0.0 if self._at is None else min(_MAX_STEP_S, max(0.0, now - self._at))
        self._at = now
        accounts = self.accounts
        kept = exp(-step_s / MEMORY_S)
        accounts.seen_s = accounts.seen_s * kept + step_s
        accounts.worth += [0.0] * (terms.max - len(accounts.worth))
        work = sum(each.work for each in excesses)
        worth = sum(each.work * each.price for each in excesses)
        price = worth / work if work else 0.0
        for k, before in enumerate(accounts.worth):
            served = min(1.0, max(0.0, work - k))
            accounts.worth[k] = before * kept + served * price * step_s
        accounts.cost_s += len(readings) * step_s
        accounts.saved_s += step_s * _served(readings, excesses)

    def _count(self, terms: PoolTerms) -> int:
        if not terms.auto:
            return terms.max
        current = self.target or 0
        count = terms.min
        while count < terms.max and self.worth(count) >= (_GOES_AT if count < current else 1.0):
            count += 1
        return count

    def worth(self, k: int) -> float:
        """The worth of one replica more than k, as a multiple of its idle cost."""
        seen_s = max(self.accounts.seen_s, _MIN_SEEN_S)
        return self.accounts.worth[k] / seen_s if k < len(self.accounts.worth) else 0.0

    def _text(self, terms: PoolTerms) -> str:
        target = self.target or 0
        if not terms.auto or terms.min >= terms.max:
            return f"{target} pool replicas, as the settings say."
        return (
            f"{target} pool replicas: one more would have been worth"
            f" {self.worth(target):.2f} of its idle time over the last day."
        )

    def save(self) -> dict[str, Any]:
        accounts = self.accounts
        return {
            "worth": list(accounts.worth),
            "seen_s": accounts.seen_s,
            "cost_s": accounts.cost_s,
            "saved_s": accounts.saved_s,
            "target": self.target,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.target = state["target"]
        self.accounts = Accounts(
            list(state["worth"]), state["seen_s"], state["cost_s"], state["saved_s"]
        )


def _held(reading: PoolReading) -> tuple[str, ...]:
    return tuple(each.model for each in reading.residents)


def _served(readings: Mapping[str, PoolReading], excesses: list[Excess]) -> float:
    """Work a second that residents can take and their models' own replicas cannot."""
    excess = {each.model: each.work for each in excesses}
    served = 0.0
    for reading in readings.values():
        room = 1.0
        for resident in reading.residents:
            taken = min(room, excess.get(resident.model, 0.0)) if resident.serves else 0.0
            if taken:
                excess[resident.model] -= taken
                room -= taken
                served += taken
    return served
