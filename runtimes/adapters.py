"""Which adapters does an engine hold, and which one makes room for another?

An engine has a bounded number of places. An adapter is loaded for the first request that asks for
it, once, however many ask meanwhile. It stays until its place is needed: then the one goes that was
used least lately (a use counts half after some hundred further ones) among those that no running
request uses. Where all are in use, the least used one takes no new request, so that its place
becomes free once those that run have ended: nobody waits for ever behind popular adapters.

`AdapterSlots` only decides and counts; its caller loads, unloads, and asks again for whoever waits,
in order, after each change. `ResidentAdapters` is such a caller, for an engine on an event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from runtimes.types import Adapter, AdapterLoad

logger = logging.getLogger("headrace.replica")
RETRY_S = 30.0  # after a load that failed, until the next try
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


class AdapterUnavailable(Exception):
    """The adapter cannot be loaded now; what callers may know of it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the adapter {name!r} cannot be loaded now; the server's log says why")


Load = Callable[[str, Path, str], Awaitable[None]]
"""Loads an adapter: its name, folder, and the digest of its content."""


class ResidentAdapters:
    """An engine's adapters on the event loop that it runs on. `load` and `unload` do it at the
    engine; what they raise is the failure of the load, which all requests that wait for it get, and
    those of the next `RETRY_S` without another try; a log says why."""

    def __init__(
        self,
        adapters: Mapping[str, Adapter],
        places: int,
        load: Load,
        unload: Callable[[str], Awaitable[None]],
    ) -> None:
        self._adapters = adapters  # may change as the engine runs
        self._sources: dict[str, str] = {}  # of those that are loaded, or were to be
        self._stale: set[str] = set()  # loaded from a source that is not theirs any more
        self._slots = AdapterSlots(places)
        self._load, self._unload = load, unload
        self._failures = self._waiting = 0
        self._failed_at: dict[tuple[str, str], float] = {}  # by name and source
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # Of their own: files may take minutes to come, and the loop's threads are everybody's.
        self._threads = ThreadPoolExecutor(max(places, 1), thread_name_prefix="adapters")

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    @property
    def load(self) -> AdapterLoad:
        slots = self._slots
        failing = sorted({name for name, _ in self._failed_at if self._is_failing(name)})
        return AdapterLoad(
            slots.held, slots.loads, self._failures, slots.load_s, self._waiting, tuple(failing)
        )

    def _is_failing(self, name: str) -> bool:
        """Whether its load failed just now, so that it is not tried."""
        adapter = self._adapters.get(name)
        failed_at = self._failed_at.get((name, adapter.source)) if adapter else None
        return failed_at is not None and time.perf_counter() - failed_at < RETRY_S

    async def use(self, name: str) -> None:
        """Returns when a request for the adapter may run, which must call `done` when it has ended.
        Raises AdapterUnavailable."""
        first = True
        while True:
            adapter = self._adapters.get(name)
            if adapter is None:
                raise AdapterUnavailable(name)
            if self._is_failing(name):
                raise AdapterUnavailable(name)
            answer, first = self._wanted(name, adapter, first=first), False
            if answer.want is Want.RUN:
                return
            if answer.want is Want.LOAD:
                # A task of its own: the request that began it may leave while others wait.
                bringing = self._bring(name, adapter, answer.victim)
                task = asyncio.get_running_loop().create_task(bringing)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            self._waiting += 1
            try:
                await self._changed.wait()
            finally:
                self._waiting -= 1

    def _wanted(self, name: str, adapter: Adapter, *, first: bool) -> Answer:
        """As `AdapterSlots.want`, but one that was loaded from another source goes first, once no
        request uses it."""
        if name in self._slots.held and self._sources[name] != adapter.source:
            if not self._slots.drop(name):
                return _WAIT
            self._stale.add(name)
        return self._slots.want(name, first=first)

    def done(self, name: str) -> None:
        """A request that may run has ended."""
        self._slots.done(name)
        self._notify()

    async def close(self) -> None:
        """Ends the loads that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _bring(self, name: str, adapter: Adapter, victim: str) -> None:
        try:
            stale, self._stale = self._stale, set()
            for gone in {*stale, victim} - {""}:
                await self._unload(gone)
            loop = asyncio.get_running_loop()
            folder, digest = await loop.run_in_executor(self._threads, adapter.files)
            began = time.perf_counter()
            await self._load(name, folder, digest)
        except Exception as fault:
            self._failures += 1
            self._failed_at[name, adapter.source] = time.perf_counter()
            self._slots.failed(name)
            logger.error("the adapter %s cannot be loaded: %s", name, fault)
        else:
            self._failed_at.pop((name, adapter.source), None)
            self._sources[name] = adapter.source
            self._slots.loaded(name, time.perf_counter() - began)
        finally:
            self._notify()

    def _notify(self) -> None:
        """Whoever waits asks again, the longest waiting first."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
