"""Which models should each pool replica hold?

A copy of a model is worth the seconds of work that would otherwise wait for a load: the work that
waits now and that no dedicated replica can take in time, and the work that is forecast for as long
as the copy would stay. Copies are ranked by worth a byte: the most valuable is loaded first, the
least valuable is unloaded first. That is GDSF (Cherkasova 1998), with *forecast* demand in place of
the past count, and with the stay, which grows with the load time, as the cost. A model that is
busy, loading, or younger than its stay is never unloaded. A new model must be worth `MARGIN` times
those that it replaces, so that under stationary demand the most popular stay and nothing is
swapped. Decides what to hold, not when a replica loads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscaling.settings import PoolTerms
from autoscaling.types import PoolReading, ResidentReading

MARGIN = 2.5  # what comes over what goes: so much do estimates of equal demand differ now and then
ONE_TAKES = 0.7  # work a second that a model may count on at one pool replica, beside others


@dataclass(frozen=True, slots=True)
class ResidentWant:
    """A model that the pool may hold, and how much it needs the pool. Work is in seconds."""

    model: str
    urgent_s: float = 0.0  # work that waits and that its own replicas cannot take in time
    rate: float = 0.0  # offered work a second, expected within the load time
    load_s: float = 1.0  # of a load into the pool
    size_bytes: int = 0  # of its weights; 0: unknown
    dedicated: int = 0  # hot replicas of its own

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
            key = (loss_s, self._demand(place))
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
    place = _Place(name, reading.free_bytes)
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
    stays_s = max(want.stay_s(terms), terms.residency_loads * resident.load_s)
    return resident.serves and not resident.busy and now - resident.since >= stays_s
