"""How many pool replicas are worth their idle time, and which models should each of them hold?

A pool replica serves the work that models' own replicas cannot take while more of them start. This
excess is recorded over all models: the k-th pool replica would have served the excess above k - 1
replicas, at most one second of work a second. It is worth having while that work, over about the
last day, is worth more than its idle time; a missed second is worth 1 / (1 - percentile) replica
seconds. It is removed when its worth is below half of its cost. Without `auto` the number is the
maximum. `choose_residents` decides what to hold, not when a replica loads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Any

from autoscaling.settings import PoolTerms
from autoscaling.types import PoolDecision, PoolReading, ResidentReading

MARGIN = 2.5  # what comes over what goes: so much do estimates of equal demand differ now and then
ONE_TAKES = 0.7  # work a second that a model may count on at one pool replica, beside others


@dataclass(frozen=True, slots=True)
class ResidentWant:
    """A model that the pool may hold, and how much it needs the pool. Work is in seconds."""

    model: str
    urgent_s: float = 0.0  # work that waits and that its own replicas cannot take in time
    rate: float = 0.0  # offered work a second, expected within the load time
    load_s: float = 1.0  # of a load into the pool; of an engine that was there, of a waking
    size_bytes: int = 0  # of its weights; 0: unknown
    dedicated: int = 0  # hot replicas of its own
    anew_s: float = 0.0  # of a load where it is not in memory; 0: as `load_s`

    def stay_s(self, terms: PoolTerms) -> float:
        """The least time that the model stays loaded."""
        return max(terms.residency_s, terms.residency_loads * self.load_s)

    def worth_s(self, copies: int, terms: PoolTerms) -> float:
        """Seconds of work that one more copy, besides `copies`, would keep from waiting. With n
        replicas of its own, a spike or a loss leaves about 1/(n + 1) of the demand to the pool."""
        left = self.rate / (1 + self.dedicated) - copies * ONE_TAKES
        waiting_s = self.urgent_s - copies * self.load_s  # the others work while it loads
        return max(0.0, left) * self.stay_s(terms) + max(0.0, waiting_s)


def choose_residents(
    pool: Mapping[str, PoolReading],
    wants: Mapping[str, ResidentWant],
    terms: PoolTerms,
    now: float,
) -> dict[str, tuple[str, ...]]:
    """By pool replica, all models that it should hold, the most valuable first.

    A copy of a model is worth the seconds of work that would otherwise wait for a load: what waits
    now and no dedicated replica can take in time, and what is forecast for as long as the copy
    would stay. Copies are ranked by worth a byte: GDSF (Cherkasova 1998), with forecast demand in
    place of the past count and the stay as the cost. A model that is busy, loading, or younger than
    its stay is never unloaded. A new one must be worth `MARGIN` times those that it replaces.
    A model that `wants` does not name is unloaded. A model of unknown size is taken to be as large
    as the largest known one; if no size is known, to fill a replica.
    """
    choice = _Choice(wants, terms, _sizes(pool, wants))
    for name, reading in pool.items():
        choice.places.append(_place(name, reading, choice, now))
    for place in choice.places:
        choice.make_fit(place)
    waiting = set(wants)
    while waiting:
        model = max(waiting, key=choice.rank)
        if not choice.load(model):
            waiting.discard(model)
    return {place.name: choice.in_order(place.held) for place in choice.places}


@dataclass(slots=True, eq=False)
class _Place:
    """One pool replica, as chosen so far."""

    name: str
    free: int  # bytes
    kept: Mapping[str, float]  # as in `PoolReading`
    held: dict[str, int] = field(default_factory=dict)  # model to bytes
    evictable: set[str] = field(default_factory=set)  # models that may be unloaded


class _Choice:
    """The choice so far. `copies`: number of pool replicas that hold each model."""

    def __init__(
        self, wants: Mapping[str, ResidentWant], terms: PoolTerms, sizes: Mapping[str, int]
    ) -> None:
        self.wants, self.terms = wants, terms
        self.places: list[_Place] = []
        self.copies: Counter[str] = Counter()
        self._sizes = sizes
        self._assumed = max(sizes.values(), default=0) or terms.memory_bytes

    def size(self, model: str) -> int:
        return self._sizes[model] or self._assumed

    def rank(self, model: str) -> tuple[float, str]:
        """The worth a byte of the model's next copy; names decide between equals."""
        worth_s = self.wants[model].worth_s(self.copies[model], self.terms)
        return worth_s / self.size(model), model

    def loss_s(self, model: str) -> float:
        """What one of the model's copies is worth, besides its other copies."""
        return self.wants[model].worth_s(self.copies[model] - 1, self.terms)

    # -- loads and evictions

    def load(self, model: str) -> bool:
        """Place one more copy. Returns False if no place is worth it."""
        gain_s = self.wants[model].worth_s(self.copies[model], self.terms)
        size = self.size(model)
        found: tuple[tuple[float, float], _Place, list[str]] | None = None
        for place in self.places:
            victims = None if model in place.held else self._victims(place, size)
            if victims is None:
                continue
            loss_s = sum(map(self.loss_s, victims))
            key = (loss_s + self._coming_s(place, model), self._demand(place))
            if gain_s > MARGIN * loss_s and (found is None or key < found[0]):
                found = key, place, victims
        if found is None:
            return False
        _, place, victims = found
        self._evict(place, victims)
        place.held[model] = size
        place.free -= size
        self.copies[model] += 1
        return True

    def make_fit(self, place: _Place) -> None:
        """Evict models if less memory is allowed now than the place holds."""
        if place.free < 0:
            victims = self._victims(place, 0)
            self._evict(place, sorted(place.evictable) if victims is None else victims)

    def _evict(self, place: _Place, victims: Iterable[str]) -> None:
        for model in victims:
            place.free += place.held.pop(model)
            self.copies[model] -= 1
            place.evictable.discard(model)

    def _victims(self, place: _Place, size: int) -> list[str] | None:
        """The least valuable models that make room for so many bytes, no more than needed. None:
        the evictable models do not make enough room."""
        victims: list[str] = []
        room = place.free
        for model in sorted(place.evictable, key=lambda each: self._density(place, each)):
            if room >= size:
                break
            victims.append(model)
            room += place.held[model]
        if room < size:
            return None
        for model in reversed(victims[:-1]):  # a large one that came last may do alone
            if room - place.held[model] >= size:
                room -= place.held[model]
                victims.remove(model)
        return victims

    def _density(self, place: _Place, model: str) -> tuple[float, str]:
        return self.loss_s(model) / max(1, place.held[model]), model

    def _coming_s(self, place: _Place, model: str) -> float:
        """Work that would wait until the model serves there."""
        want = self.wants[model]
        return want.rate * place.kept.get(model, want.anew_s or want.load_s)

    def _demand(self, place: _Place) -> float:
        """Work a second of the models that the place holds. Copies go where it is least."""
        return sum(self.wants[model].rate for model in place.held)

    def in_order(self, held: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(held, key=lambda model: (-self.loss_s(model), model)))


def _sizes(pool: Mapping[str, PoolReading], wants: Mapping[str, ResidentWant]) -> dict[str, int]:
    """Bytes by model, from `wants` or else from a replica that holds it; 0: unknown."""
    sizes = {name: want.size_bytes for name, want in wants.items()}
    for reading in pool.values():
        for resident in reading.residents:
            if not sizes.get(resident.model, 1):
                sizes[resident.model] = resident.size_bytes
    return sizes


def _place(name: str, reading: PoolReading, choice: _Choice, now: float) -> _Place:
    """The replica as it is now. A model that is not wanted keeps its bytes while it has work."""
    place = _Place(name, reading.free_bytes, reading.kept)
    for resident in reading.residents:
        want = choice.wants.get(resident.model)
        if want is None:
            place.free += 0 if resident.busy else resident.size_bytes
            continue
        size = resident.size_bytes
        if not size:  # is being loaded, and not counted yet
            size = choice.size(resident.model)
            place.free -= size
        place.held[resident.model] = size
        choice.copies[resident.model] += 1
        if _may_go(resident, want, choice.terms, now):
            place.evictable.add(resident.model)
    return place


def _may_go(resident: ResidentReading, want: ResidentWant, terms: PoolTerms, now: float) -> bool:
    back_s = resident.wake_s or resident.load_s
    stays_s = max(want.stay_s(terms), terms.residency_loads * back_s)
    return resident.serves and not resident.busy and now - resident.since >= stays_s


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
