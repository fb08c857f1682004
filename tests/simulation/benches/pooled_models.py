"""A pool replica with room for a few models, on virtual time, and who decides what it holds.

Requests wait by model; the device runs one batch at a time, of the model that holds the oldest
request among those that are held; one model is loaded at a time, beside the device. A request that
is not answered by `PATIENCE_S` has missed. What is held is a policy's affair (`swap_policies`),
which is asked every second and when a request comes for a model that is not held; it may not have a
model go that has work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

LOAD_S = 2.0
SLO_S, PATIENCE_S = 1.0, 10.0
ROOM = 3
MAX_ROWS = 8
BASE_S, ROW_S = 0.010, 0.010
WORK_S = ROW_S + BASE_S / MAX_ROWS  # of a request in a full batch
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """What a policy is shown. held: by model, since when it serves; loading: the one that is being
    loaded; busy: those with work; waiting: by model, arrival times, the oldest first."""

    held: Mapping[str, float]
    loading: str | None
    busy: frozenset[str]
    waiting: Mapping[str, Sequence[float]]

    @property
    def unheld(self) -> list[str]:
        """Models that somebody waits for and that are not there, the oldest request first."""
        names = [m for m, queue in self.waiting.items() if queue and m not in self.held]
        return sorted((m for m in names if m != self.loading), key=lambda m: self.waiting[m][0])


class SwapPolicy(Protocol):
    def asked(self, model: str, now: float) -> None:
        """A request has come."""

    def hold(self, view: View, now: float) -> Iterable[str]:
        """The models that should be held, the most urgent first; who is busy or loading stays."""


@dataclass(slots=True)
class Outcome:
    """latencies_s: of every request, those that missed with `PATIENCE_S`."""

    latencies_s: list[float] = field(default_factory=list)
    missed: int = 0
    swaps: int = 0
    hours: float = 0.0
    swapped_at: list[float] = field(default_factory=list)

    @property
    def in_time(self) -> float:
        return sum(each <= SLO_S for each in self.latencies_s) / max(1, len(self.latencies_s))

    def percentile_s(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    @property
    def p99_s(self) -> float:
        return self.percentile_s(0.99)

    @property
    def swaps_an_hour(self) -> float:
        return self.swaps / self.hours


class PoolReplica:
    """One run: `requests` are (time, model), ascending. `wake_s`: what it takes to have a model
    back that was loaded before, an engine that has slept since."""

    def __init__(self, policy: SwapPolicy, models: Iterable[str], wake_s: float = LOAD_S) -> None:
        self.policy = policy
        self._wake_s, self._asleep = wake_s, set[str]()
        self.outcome = Outcome()
        self._queues: dict[str, deque[float]] = {model: deque() for model in models}
        self._held: dict[str, float] = {}
        self._loading: str | None = None
        self._running: str | None = None
        self._agenda: list[tuple[float, int, str, tuple[float, ...]]] = []
        self._entries = 0

    def run(self, requests: Iterable[tuple[float, str]], counted_from_s: float) -> Outcome:
        self._from_s, now = counted_from_s, 0.0
        self._at(TICK_S, "tick")
        for at, model in requests:
            self._advance(at)
            now = at
            self._queues[model].append(at)
            self.policy.asked(model, at)
            if model not in self._held:
                self._decide(at)
            self._start(at)
        self._advance(now + PATIENCE_S)
        self.outcome.hours = (now - counted_from_s) / 3600.0
        return self.outcome

    def _at(self, when: float, what: str, batch: tuple[float, ...] = ()) -> None:
        self._entries += 1
        heappush(self._agenda, (when, self._entries, what, batch))

    def _advance(self, until: float) -> None:
        while self._agenda and self._agenda[0][0] <= until:
            now, _, what, batch = heappop(self._agenda)
            if what == "tick":
                self._give_up(now)
                self._decide(now)
                self._at(now + TICK_S, "tick")
            elif what == "ran":
                self._running = None
                for came in batch:
                    self._ended(came, now - came)
                self._decide(now)
            else:
                assert self._loading is not None
                self._held[self._loading], self._loading = now, None
                self._decide(now)
            self._start(now)

    def _ended(self, came: float, latency_s: float) -> None:
        if came >= self._from_s:
            self.outcome.latencies_s.append(min(latency_s, PATIENCE_S))
            self.outcome.missed += latency_s >= PATIENCE_S

    def _give_up(self, now: float) -> None:
        for queue in self._queues.values():
            while queue and queue[0] <= now - PATIENCE_S:
                self._ended(queue.popleft(), PATIENCE_S)

    # -- the device

    def _start(self, now: float) -> None:
        if self._running is not None:
            return
        ready = [model for model in self._held if self._queues[model]]
        model = min(ready, key=lambda each: self._queues[each][0], default=None)
        if model is not None:
            queue = self._queues[model]
            batch = tuple([queue.popleft() for _ in range(min(MAX_ROWS, len(queue)))])
            self._running = model
            self._at(now + BASE_S + ROW_S * len(batch), "ran", batch)

    # -- what is held

    def _decide(self, now: float) -> None:
        """One load at a time: what is decided while one runs would be decided again."""
        if self._loading is not None:
            return
        busy = frozenset(m for m in self._held if self._queues[m] or m == self._running)
        view = View(dict(self._held), None, busy, self._queues)
        wanted = list(self.policy.hold(view, now))
        for model in wanted:
            if model not in self._held:
                self._swap(model, [m for m in self._held if m not in wanted and m not in busy], now)
                return

    def _swap(self, model: str, going: list[str], now: float) -> None:
        if len(self._held) >= ROOM:
            if not going:
                return
            del self._held[going[0]]
            self._asleep.add(going[0])
            self.outcome.swaps += now >= self._from_s
            self.outcome.swapped_at.append(now)
        self._loading = model
        self._at(now + (self._wake_s if model in self._asleep else LOAD_S), "loaded")
