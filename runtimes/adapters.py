"""Which adapters does an engine hold, and which one makes room for another?

An engine has a bounded number of places. An adapter is loaded for the first request that asks for
it, once, however many ask meanwhile. It stays until its place is needed: then the one goes that was
used least lately (a use counts half after some hundred further ones) among those that no running
request uses. Where all are in use, the least used one takes no new request, so that its place
becomes free once those that run have ended: nobody waits for ever behind popular adapters.

It only decides and counts; the caller loads, unloads, and asks again for whoever waits, in order,
after each change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

_GROWTH = 1.002  # of the weight of each new use: an earlier one counts half after 347 further ones
_LARGEST = 1e100  # weights are scaled down beyond
_GAIN = 0.2  # of the mean of a load's seconds


class Want(Enum):
    """What a request that asks for an adapter is to do."""

    RUN = "run"  # the adapter is here; the request counts as using it
    LOAD = "load"  # load it now, unloading `victim` before
    WAIT = "wait"  # another request loads it, or no place is free


@dataclass(frozen=True, slots=True)
class Answer:
    want: Want
    victim: str = ""  # "": nothing has to go


_RUN, _WAIT = Answer(Want.RUN), Answer(Want.WAIT)


@dataclass(slots=True)
class AdapterSlots:
    """`places`: adapters that are held at once."""

    places: int
    loads: int = 0  # so far, those that failed left out
    load_s: float = 0.0  # mean seconds of a load lately; 0.0: none was loaded
    _using: dict[str, int] = field(default_factory=dict)  # adapter held: requests that use it
    _loading: set[str] = field(default_factory=set)
    _leaving: str = ""  # one in use that takes no new request
    _uses: dict[str, float] = field(default_factory=dict)
    _weight: float = 1.0

    @property
    def held(self) -> tuple[str, ...]:
        """Those that are here and loaded."""
        return tuple(self._using)

    def want(self, name: str, *, first: bool = True) -> Answer:
        """What a request for this adapter is to do. `first`: it has not asked before. After `RUN`
        it must call `done`, after `LOAD` `loaded` or `failed`, and then ask again."""
        if first:
            self._count(name)
        if name in self._using and (name != self._leaving or not self._using[name]):
            self._leaving = "" if name == self._leaving else self._leaving
            self._using[name] += 1
            return _RUN
        if name in self._loading or name in self._using:
            return _WAIT
        victim = ""
        if len(self._using) + len(self._loading) >= self.places:
            if not self._using:
                return _WAIT
            by_uses = sorted(self._using, key=lambda each: self._uses.get(each, 0.0))
            victim = next((each for each in by_uses if not self._using[each]), "")
            if not victim:
                self._leaving = self._leaving or by_uses[0]
                return _WAIT
            del self._using[victim]
            self._leaving = ""
        self._loading.add(name)
        return Answer(Want.LOAD, victim)

    def loaded(self, name: str, seconds: float) -> None:
        """The load has ended well."""
        self._loading.discard(name)
        self._using[name] = 0
        self.loads += 1
        self.load_s += (_GAIN if self.load_s else 1.0) * (seconds - self.load_s)

    def failed(self, name: str) -> None:
        """The load has failed: the place is free again."""
        self._loading.discard(name)

    def done(self, name: str) -> None:
        """A request that ran has ended."""
        self._using[name] -= 1

    def drop(self, name: str) -> bool:
        """Take it out, because nobody may ask for it any more; False: it is in use, or not here."""
        if self._using.get(name, 1):
            return False
        del self._using[name]
        return True

    def _count(self, name: str) -> None:
        self._weight *= _GROWTH
        self._uses[name] = self._uses.get(name, 0.0) + self._weight
        if self._weight > _LARGEST:
            self._uses = {each: uses / self._weight for each, uses in self._uses.items()}
            self._uses = {each: uses for each, uses in self._uses.items() if uses > 1e-6}
            self._weight = 1.0
