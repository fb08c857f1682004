"""Which models should each pool replica hold?

A copy of a model is worth the seconds of work that would otherwise wait for a load: what waits now
and no dedicated replica can take in time, and what is forecast for as long as it would stay. Work a
byte decides: the dearest is loaded first, the cheapest goes first. That is GDSF (Cherkasova 1998)
with the *forecast* demand in the place of the past count; the stay, which grows with the load time,
is its cost. What is busy, loading or younger than its stay never goes, and what comes must be worth
`MARGIN` times what goes: under stationary demand the most popular stay and nothing is swapped. It
says what to hold, never when a replica loads it.
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
    """What is known of a model that the pool may hold; work in seconds.

    urgent_s: work that waits and that dedicated replicas cannot take in time. rate: offered work a
    second, expected within its load time. load_s: of a load into the pool. size_bytes: of its
    weights, 0: unknown. dedicated: hot replicas of its own.
    """

    model: str
    urgent_s: float = 0.0
    rate: float = 0.0
    load_s: float = 1.0
    size_bytes: int = 0
    dedicated: int = 0

    def stay_s(self, terms: PoolTerms) -> float:
        """How long it stays at least once it was loaded."""
        return max(terms.residency_s, terms.residency_loads * self.load_s)

    def worth_s(self, copies: int, terms: PoolTerms) -> float:
        """Work that one more copy beside so many would keep from waiting. With n replicas of its
        own a spike or a loss leaves about 1/(n + 1) of the demand to the pool."""
        left = self.rate / (1 + self.dedicated) - copies * ONE_TAKES
        waiting_s = self.urgent_s - copies * self.load_s  # the others work while it loads
        return max(0.0, left) * self.stay_s(terms) + max(0.0, waiting_s)


def choose_residents(
    pool: Mapping[str, PoolReading],
    wants: Mapping[str, ResidentWant],
    terms: PoolTerms,
    now: float,
) -> dict[str, tuple[str, ...]]:
    """By pool replica, the models that it should hold, those to keep included, dearest first.

    A model that `wants` does not name goes. One of unknown size is taken to be as large as the
    largest known, and to fill a replica where none is known.
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
    """A pool replica. held: bytes by model; free: bytes beside them; evictable: who may go."""

    name: str
    free: int
    held: dict[str, int] = field(default_factory=dict)
    evictable: set[str] = field(default_factory=set)


class _Choice:
    """What was chosen so far. `copies`: replicas that hold it, by model."""

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
        """Of its next copy: worth a byte; names decide between equals."""
        worth_s = self.wants[model].worth_s(self.copies[model], self.terms)
        return worth_s / self.size(model), model

    def loss_s(self, model: str) -> float:
        """What one of its copies is worth beside the others."""
        return self.wants[model].worth_s(self.copies[model] - 1, self.terms)

    # -- what goes and comes

    def load(self, model: str) -> bool:
        """Place a further copy; False where that is not worth it."""
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
        """Where less fits than is held, because less memory is allowed now."""
        if place.free < 0:
            victims = self._victims(place, 0)
            self._evict(place, sorted(place.evictable) if victims is None else victims)

    def _evict(self, place: _Place, victims: Iterable[str]) -> None:
        for model in victims:
            place.free += place.held.pop(model)
            self.copies[model] -= 1
            place.evictable.discard(model)

    def _victims(self, place: _Place, size: int) -> list[str] | None:
        """The cheapest that make room for so many bytes, none but what is needed; None: they do
        not."""
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
        """Work a second that comes to what it holds: copies are spread by it."""
        return sum(self.wants[model].rate for model in place.held)

    def in_order(self, held: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(held, key=lambda model: (-self.loss_s(model), model)))


def _sizes(pool: Mapping[str, PoolReading], wants: Mapping[str, ResidentWant]) -> dict[str, int]:
    """Bytes by model, as wanted or else as held somewhere; 0: unknown."""
    sizes = {name: want.size_bytes for name, want in wants.items()}
    for reading in pool.values():
        for resident in reading.residents:
            if not sizes.get(resident.model, 1):
                sizes[resident.model] = resident.size_bytes
    return sizes


def _place(name: str, reading: PoolReading, choice: _Choice, now: float) -> _Place:
    """The replica as it stands; what is not wanted keeps its bytes while it has work."""
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
